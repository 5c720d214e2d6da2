package vfio

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// OpenFunc opens the device behind "scheme:rest".
type OpenFunc func(ctx context.Context, rest string) (Device, error)

var schemes struct {
	sync.RWMutex
	m map[string]OpenFunc
}

// Register makes an address scheme known to Open. Packages call it from
// init; a scheme registered twice panics, as database/sql does.
func Register(scheme string, open OpenFunc) {
	schemes.Lock()
	defer schemes.Unlock()
	if schemes.m == nil {
		schemes.m = make(map[string]OpenFunc)
	}
	if open == nil || scheme == "" || schemes.m[scheme] != nil {
		panic("vfio: Register of scheme " + scheme + " twice, or without a function")
	}
	schemes.m[scheme] = open
}

// Schemes lists the registered schemes, sorted.
func Schemes() []string {
	schemes.RLock()
	defer schemes.RUnlock()
	return slices.Sorted(maps.Keys(schemes.m))
}

// Packages that register a scheme, for the error that names the import.
var providers = map[string]string{
	"vfio-user": "rnic/vfio/vfiouser",
	SchemePCI:   "rnic/vfio/vfiopci",
	"soft":      "rnic/hw/softcard/soft",
}

// SchemePCI is the scheme of a PCI address: "0000:03:00.0" is short for
// "pci:0000:03:00.0".
const SchemePCI = "pci"

var bdf = regexp.MustCompile(`^([0-9a-fA-F]{4,}:)?[0-9a-fA-F]{2}:[0-1][0-9a-fA-F]\.[0-7](\?.*)?$`)

// Open opens the device at addr: "scheme:rest", or the PCI address of a
// function that the kernel's VFIO drives, with options behind a question mark
// (package vfio/vfiopci has them). The context bounds it.
func Open(ctx context.Context, addr string) (Device, error) {
	fail := func(err error) error { return &Error{Addr: addr, Op: "open", Err: err} }
	scheme, rest, ok := strings.Cut(addr, ":")
	if bdf.MatchString(addr) {
		scheme, rest, ok = SchemePCI, addr, true
	}
	if !ok {
		return nil, fail(fmt.Errorf("%w: want SCHEME:REST or a PCI address such as 0000:03:00.0", ErrInvalid))
	}
	schemes.RLock()
	open := schemes.m[scheme]
	schemes.RUnlock()
	if open == nil {
		if p := providers[scheme]; p != "" {
			return nil, fail(fmt.Errorf("scheme %q is not linked in; add: import _ %q: %w", scheme, p, ErrNotSupported))
		}
		return nil, fail(fmt.Errorf("unknown scheme %q (have %s); import the package that registers it: %w",
			scheme, strings.Join(Schemes(), ", "), ErrNotSupported))
	}
	return open(ctx, rest)
}
