package conformance

// writtenAfter tells whether a step behind the given one names a range of memory
// to be written to, so that the range may hold something else in the end.
func (x *expectation) writtenAfter(step int, m *MemoryRange) bool {
	at, _ := sideOf(m.Node)
	mr := x.nodes[at].region(m.MR)
	first := mr.Addr + m.Offset
	meets := func(addr, n uint64) bool { return addr < first+m.Len && first < addr+n }
	meetsAny := func(sges []SGE) bool {
		for _, g := range sges {
			if meets(g.Addr, uint64(g.Len)) {
				return true
			}
		}
		return false
	}
	for i := max(step+1, 0); i < len(x.Steps); i++ {
		s := &x.Steps[i]
		own := s.Node == m.Node
		if s.Action == actionPostRecv && own && meetsAny(s.SGEs) {
			return true
		}
		for j := range s.WRs {
			w := &s.WRs[j]
			switch w.Opcode {
			case opRead:
				if own && meetsAny(w.SGEs) {
					return true
				}
			case opCAS, opFADD:
				if own && meetsAny(w.SGEs) || !own && meets(w.RemoteAddr, 8) {
					return true
				}
			case opWrite, opWriteImm:
				if !own && meets(w.RemoteAddr, w.length()) {
					return true
				}
			}
		}
	}
	return false
}

// lost is the numbers of the frames of a sender that the wire lost, or changed
// so that they were lost.
func (x *expectation) lost(from side) map[int]bool {
	gone := map[int]bool{}
	n := 0
	for _, f := range x.capture {
		if f.from == from {
			if f.relay != relayPass {
				gone[n] = true
			}
			n++
		}
	}
	return gone
}
