package driver

import "sync/atomic"

// cqTable finds a CQ by its number without a lock, for the events. It has room where CQs are, not
// for as many as the card states: their numbers are given out in order.
type cqTable []atomic.Pointer[cqPage]

// cqPage is the table's part for the CQs of neighbouring numbers.
type cqPage [1024]atomic.Pointer[CQ]

// newCQTable makes a table of n numbers, at most 1<<24.
func newCQTable(n int) cqTable { return make(cqTable, (n+len(cqPage{})-1)/len(cqPage{})) }

// get gives CQ n, or nil.
func (t cqTable) get(n uint32) *CQ {
	i, k := n/uint32(len(cqPage{})), n%uint32(len(cqPage{}))
	if i >= uint32(len(t)) {
		return nil
	}
	p := t[i].Load()
	if p == nil {
		return nil
	}
	return p[k].Load()
}

// set makes c the CQ n; nil: there is none. The caller keeps others from it meanwhile.
func (t cqTable) set(n uint32, c *CQ) {
	i, k := n/uint32(len(cqPage{})), n%uint32(len(cqPage{}))
	p := t[i].Load()
	if p == nil {
		p = new(cqPage)
		t[i].Store(p)
	}
	p[k].Store(c)
}

// on gives the CQs that report to a vector.
func (t cqTable) on(vector int) (on []*CQ) {
	for i := range t {
		p := t[i].Load()
		if p == nil {
			continue
		}
		for k := range p {
			if c := p[k].Load(); c != nil && c.vector.n == vector {
				on = append(on, c)
			}
		}
	}
	return on
}
