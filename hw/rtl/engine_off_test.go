//go:build !rtl

package rtl

import (
	"errors"
	"testing"
)

func TestNotBuilt(t *testing.T) {
	if _, err := Open(512, 1); !errors.Is(err, ErrNotBuilt) {
		t.Errorf("Open gave %v, want ErrNotBuilt", err)
	}
}
