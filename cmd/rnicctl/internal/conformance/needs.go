package conformance

import "rnic/hw/roce"

// need is something that a scenario asks of a card and that a card may lack.
type need int

const (
	needUC need = iota
	needUD
	needMW
	needRetransmit
)

// String is what the report says.
func (n need) String() string {
	return [...]string{"UC", "UD", "memory windows or invalidation", "retransmission"}[n]
}

// feature is the name of it in driver.DeviceAttr.NotSupported.
func (n need) feature() string {
	return [...]string{"UC", "UD", "memory windows", "retransmission"}[n]
}

// needs is what the scenario asks of the cards.
func (r *Recording) needs() []need {
	var list []need
	switch r.Transport {
	case "UC":
		list = append(list, needUC)
	case "UD":
		list = append(list, needUD)
	}
	if r.usesWindows() {
		list = append(list, needMW)
	}
	if r.retransmits() {
		list = append(list, needRetransmit)
	}
	return list
}

func (r *Recording) usesWindows() bool {
	for i := range r.Steps {
		for _, w := range r.Steps[i].WRs {
			if w.Opcode == opBindMW || w.Opcode == opSendInv || w.Opcode == opLocalInv {
				return true
			}
		}
	}
	return false
}

// retransmits tells whether an RC requester sent a packet again for another
// reason than an RNR NAK: the wire had lost, changed or swapped frames.
func (r *Recording) retransmits() bool {
	if r.Transport != "RC" {
		return false
	}
	next := [2]uint32{r.nodes[sideA].SQPSN, r.nodes[sideB].SQPSN} // PSN that was not used yet
	again, rnr := false, false
	for _, f := range r.capture {
		var p roce.Packet
		if roce.Decode(f.data, &p) != nil {
			continue
		}
		if a := p.AETH(); a != nil && a.Syndrome().Kind() == roce.RNRNAK {
			rnr = true
		}
		if p.Opcode().Operation().Request() {
			psn, n := p.BTH().PSN(), uint32(1)
			if h := p.RETH(); h != nil && p.Opcode().Operation() == roce.OpReadRequest {
				mtu := uint32(r.Path.MTU)
				n = max(1, h.Fields().DMALen/mtu+min(h.Fields().DMALen%mtu, 1))
			}
			if roce.PSNLess(psn, next[f.from]) {
				again = true
			} else {
				next[f.from] = roce.PSNAdd(psn, int32(n))
			}
		}
	}
	return again && (r.changed() || !rnr)
}
