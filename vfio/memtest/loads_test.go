package memtest

import (
	"runtime"
	"testing"
)

//go:noinline
func load(b []byte) byte { return b[3] }

func TestLoads(t *testing.T) {
	b := make([]byte, 8)
	for want := range 4 {
		n := Least(t, &b[3], want, func() func() {
			return func() {
				for range want {
					runtime.KeepAlive(load(b))
				}
			}
		})
		if n != want {
			t.Errorf("%d loads are counted as %d", want, n)
		}
	}
}
