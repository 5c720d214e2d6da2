package driver_test

import (
	"context"
	"testing"
)

// TestSmallestCQ: a completion queue for one completion can be had.
func TestSmallestCQ(t *testing.T) {
	d := open(t, "soft:?wire=smallest")
	cq, err := d.CreateCQ(context.Background(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if cq.Entries() < 1 {
		t.Errorf("%d entries", cq.Entries())
	}
}
