package vfio

import (
	"fmt"
	"slices"
	"strings"
	"sync"
)

// FallbackIOVARanges are the usable DMA addresses where nobody tells: 39 bits,
// as the narrowest common IOMMU has, without the window of message-signalled
// interrupts at 0xfee00000 and without the lowest addresses, where a null
// pointer would point.
func FallbackIOVARanges() []IOVARange {
	return []IOVARange{{0x10000, 0xfedfffff}, {0xfef00000, 1<<39 - 1}}
}

const (
	// hugeAlign is the alignment of ranges that are at least that large, so
	// that the IOMMU can use its larger pages.
	hugeAlign = 2 << 20
	// Freed ranges are kept out of use until more than so many bytes or ranges
	// were freed after them: DMA that comes late faults instead of hitting
	// what took the address over.
	quarantineBytes  = 1 << 30
	quarantineRanges = 1024
)

// IOVAAllocator hands out DMA addresses. It is safe for concurrent use.
type IOVAAllocator struct {
	page   uint64
	ranges []IOVARange // usable, for errors

	mu         sync.Mutex
	free       []IOVARange // ascending, not adjacent
	quarantine []IOVARange // oldest first
	held       uint64      // bytes in quarantine
}

// NewIOVAAllocator allocates from the given ranges in units of the smallest of
// the page sizes. addressBits is the width of the device's own addresses; 0
// means that all are in reach. The lowest 64 KiB are left out.
func NewIOVAAllocator(ranges []IOVARange, pageSizes uint64, addressBits int) (*IOVAAllocator, error) {
	fail := func(why string) (*IOVAAllocator, error) {
		return nil, &Error{Op: "allocate DMA addresses", Object: fmt.Sprintf("from %s, page sizes %#x, %d bits", rangesString(ranges), pageSizes, addressBits),
			Err: fmt.Errorf("%w: %s", ErrInvalid, why)}
	}
	if pageSizes == 0 || addressBits < 0 || addressBits > 64 {
		return fail("page sizes or width")
	}
	a := &IOVAAllocator{page: pageSizes & -pageSizes}
	limit := ^uint64(0)
	if addressBits > 0 && addressBits < 64 {
		limit = 1<<addressBits - 1
	}
	for _, r := range slices.SortedFunc(slices.Values(ranges), func(x, y IOVARange) int {
		if x.First < y.First {
			return -1
		}
		return 1
	}) {
		r.First, r.Last = max(r.First, 0x10000), min(r.Last, limit, ^uint64(0)-1)
		first := (r.First + a.page - 1) &^ (a.page - 1)
		end := (r.Last + 1) &^ (a.page - 1) // exclusive
		if first < r.First || first >= end {
			continue
		}
		if n := len(a.free); n > 0 && first <= a.free[n-1].Last {
			return fail("ranges overlap")
		}
		a.free = append(a.free, IOVARange{first, end - 1})
	}
	if len(a.free) == 0 {
		return fail("no address is left")
	}
	a.ranges = slices.Clone(a.free)
	return a, nil
}

func rangesString(r []IOVARange) string {
	s := make([]string, len(r))
	for i := range r {
		s[i] = r[i].String()
	}
	return "[" + strings.Join(s, " ") + "]"
}

// Page is the unit of allocation in bytes.
func (a *IOVAAllocator) Page() uint64 { return a.page }

func (a *IOVAAllocator) fail(op string, object string, err error) error {
	return &Error{Op: op, Object: object, Err: fmt.Errorf("%w in %s", err, rangesString(a.ranges))}
}

// Alloc takes n bytes, rounded up to whole pages; 2 MiB and more are aligned
// to 2 MiB. When nothing else is left, ranges in quarantine are used, the
// oldest first. No room is ErrExhausted.
func (a *IOVAAllocator) Alloc(n uint64) (uint64, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	size := (n + a.page - 1) &^ (a.page - 1)
	if n == 0 || size < n {
		return 0, a.fail("allocate DMA address", fmt.Sprintf("for %#x bytes", n), ErrInvalid)
	}
	align := a.page
	if size >= hugeAlign {
		align = max(align, hugeAlign)
	}
	for {
		for i, r := range a.free {
			first := (r.First + align - 1) &^ (align - 1)
			if first >= r.First && first <= r.Last && size-1 <= r.Last-first {
				a.cut(i, first, first+(size-1))
				return first, nil
			}
		}
		if len(a.quarantine) == 0 {
			return 0, a.fail("allocate DMA address", fmt.Sprintf("for %#x bytes", n), ErrExhausted)
		}
		a.release()
	}
}

// cut takes [first, last] out of free range i.
func (a *IOVAAllocator) cut(i int, first, last uint64) {
	r := a.free[i]
	var rest []IOVARange
	if r.First < first {
		rest = append(rest, IOVARange{r.First, first - 1})
	}
	if last < r.Last {
		rest = append(rest, IOVARange{last + 1, r.Last})
	}
	a.free = slices.Replace(a.free, i, i+1, rest...)
}

// Reserve takes the n bytes at a chosen address, both whole pages. An address
// that is in use is ErrExists, one that is not usable ErrExhausted; one in
// quarantine is taken out of it, since its user asks for it by name.
func (a *IOVAAllocator) Reserve(iova, n uint64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	obj := fmt.Sprintf("%#x+%#x", iova, n)
	if n == 0 || (iova|n)%a.page != 0 || iova+(n-1) < iova {
		return a.fail("reserve DMA address", obj, ErrInvalid)
	}
	last := iova + (n - 1)
	if !slices.ContainsFunc(a.ranges, func(r IOVARange) bool { return r.First <= iova && last <= r.Last }) {
		return a.fail("reserve DMA address", obj, ErrExhausted)
	}
	for {
		for i, r := range a.free {
			if r.First <= iova && last <= r.Last {
				a.cut(i, iova, last)
				return nil
			}
		}
		i := slices.IndexFunc(a.quarantine, func(r IOVARange) bool { return r.First <= last && iova <= r.Last })
		if i < 0 {
			return a.fail("reserve DMA address", obj, ErrExists)
		}
		a.releaseAt(i)
	}
}

// Free gives back what Alloc (rounded as it did) or Reserve took, into the
// quarantine. Giving back what is free already is a bug and panics.
func (a *IOVAAllocator) Free(iova, n uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	size := (n + a.page - 1) &^ (a.page - 1)
	r := IOVARange{iova, iova + (size - 1)}
	clash := func(f IOVARange) bool { return f.First <= r.Last && r.First <= f.Last }
	if size == 0 || r.Last < r.First || slices.ContainsFunc(a.free, clash) || slices.ContainsFunc(a.quarantine, clash) {
		panic("vfio: IOVAAllocator.Free of " + r.String() + ", which is not in use")
	}
	a.quarantine = append(a.quarantine, r)
	a.held += size
	for a.held > quarantineBytes || len(a.quarantine) > quarantineRanges {
		a.release()
	}
}

// Quarantined reports whether the n bytes at iova are in a range that was freed and
// is kept out of use.
func (a *IOVAAllocator) Quarantined(iova, n uint64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return n > 0 && slices.ContainsFunc(a.quarantine, func(r IOVARange) bool { return r.First <= iova && iova <= r.Last && n-1 <= r.Last-iova })
}

// release takes the oldest range out of quarantine.
func (a *IOVAAllocator) release() { a.releaseAt(0) }

func (a *IOVAAllocator) releaseAt(q int) {
	r := a.quarantine[q]
	a.quarantine = slices.Delete(a.quarantine, q, q+1)
	a.held -= r.Last - r.First + 1
	i, _ := slices.BinarySearchFunc(a.free, r.First, func(f IOVARange, first uint64) int {
		if f.First < first {
			return -1
		}
		return 1
	})
	a.free = slices.Insert(a.free, i, r)
	if i+1 < len(a.free) && a.free[i].Last+1 == a.free[i+1].First {
		a.free[i].Last = a.free[i+1].Last
		a.free = slices.Delete(a.free, i+1, i+2)
	}
	if i > 0 && a.free[i-1].Last+1 == a.free[i].First {
		a.free[i-1].Last = a.free[i].Last
		a.free = slices.Delete(a.free, i, i+1)
	}
}

// Largest is the size in bytes of the largest free range, quarantine aside.
func (a *IOVAAllocator) Largest() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	var n uint64
	for _, r := range a.free {
		n = max(n, r.Last-r.First+1)
	}
	return n
}
