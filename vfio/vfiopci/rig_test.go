package vfiopci_test

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"rnic/vfio"
	"rnic/vfio/vfiopci"
	"rnic/vfio/vfiotest"
)

const bdf = "0000:03:00.0"

// ways are the three interfaces, forced.
var ways = []string{"type1", "iommufd", "compat"}

// backends are what they are called.
var backends = map[string]string{"type1": "type1v2", "iommufd": "iommufd", "compat": "iommufd-compat"}

func open(t *testing.T, k *vfiotest.Kernel, addr string) (*vfiopci.Device, error) {
	t.Helper()
	d, err := vfiopci.Open(t.Context(), addr, vfiopci.WithSystem(k), vfiopci.WithTimeout(10*time.Second))
	if err == nil {
		t.Cleanup(func() { _ = d.Close() })
	}
	return d, err
}

func mustOpen(t *testing.T, k *vfiotest.Kernel, addr string) *vfiopci.Device {
	t.Helper()
	d, err := open(t, k, addr)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// eachWay runs f with a machine of one function, opened by each way.
func eachWay(t *testing.T, m vfiotest.Machine, fn vfiotest.Function, f func(t *testing.T, k *vfiotest.Kernel, fn *vfiotest.Function, d *vfiopci.Device)) {
	t.Helper()
	fn.Addr = bdf
	for _, w := range ways {
		t.Run(w, func(t *testing.T) {
			k := vfiotest.New(t, m)
			fn := k.Add(fn)
			f(t, k, fn, mustOpen(t, k, bdf+"?vfio="+w))
		})
	}
}

func memory(t *testing.T, n int) *vfio.Memory {
	t.Helper()
	m, err := vfio.AllocMemory(n, vfio.MemoryOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wants checks that an error is of a kind and says each of the words.
func wants(t *testing.T, err, kind error, words ...string) {
	t.Helper()
	var e *vfio.Error
	if err == nil || !errors.Is(err, kind) || !errors.As(err, &e) || e.Addr == "" {
		t.Errorf("%v; want %v, as a *vfio.Error with an address", err, kind)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%v\ndoes not say %q", err, w)
		}
	}
}

// setup checks the parts of a *vfio.SetupError.
func setup(t *testing.T, err error, check string, kind error, words ...string) {
	t.Helper()
	wants(t, err, kind, words...)
	var e *vfio.SetupError
	if !errors.As(err, &e) {
		t.Errorf("%v is no SetupError", err)
		return
	}
	if e.Check != check || e.Object == "" || e.Value == "" || e.Limit == "" || e.Fix == "" {
		t.Errorf("%+v; want check %s and every part", e, check)
	}
}

// subsequence checks that calls contain these, in this order.
func subsequence(t *testing.T, calls []string, want ...string) {
	t.Helper()
	rest := calls
	for _, w := range want {
		i := slices.Index(rest, w)
		if i < 0 {
			t.Fatalf("%q is missing, or too early, in\n%s", w, strings.Join(calls, "\n"))
		}
		rest = rest[i+1:]
	}
}

func within(t *testing.T, what string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatalf("%s does not happen", what)
	}
}

func nextEvent(t *testing.T, d vfio.Device) vfio.Event {
	t.Helper()
	select {
	case e := <-d.Events():
		return e
	case <-time.After(20 * time.Second):
		t.Fatal("no event comes")
		return 0
	}
}

func fill(b []byte, v byte) { copy(b, bytes.Repeat([]byte{v}, len(b))) }
