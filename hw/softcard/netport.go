package softcard

import (
	"hash/fnv"
	"math/bits"
	"net/netip"

	"rnic/hw"
	"rnic/hw/roce"
)

const (
	numGIDs   = 16 // GID table of PortContext
	numPKeys  = 16
	portSpeed = 100_000 // Mbit/s, what the port says
)

// portState is the port as the commands see it.
type portState struct {
	ctx  hw.PortContext
	link hw.LinkState // as last told by an event
}

// deriveAddresses gives the port addresses that it was not given: from its name.
func (cfg *Config) deriveAddresses() {
	h := fnv.New64a()
	_, _ = h.Write([]byte(cfg.Name))
	n := h.Sum64() ^ cfg.Seed*0x9e3779b97f4a7c15
	if cfg.MAC == ([6]byte{}) {
		cfg.MAC = [6]byte{0x02, byte(n >> 32), byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)} // locally administered
	}
	if len(cfg.IPs) == 0 {
		// 198.18.0.0/15 is for benchmarks of network devices (RFC 2544).
		a := netip.AddrFrom4([4]byte{198, 18 + byte(n>>16&1), byte(n >> 8), byte(n)})
		cfg.IPs = []netip.Prefix{netip.PrefixFrom(a, 15)}
	}
}

// reset gives the port its addresses from the configuration.
func (s *portState) reset(cfg *Config) {
	x := hw.PortContext{MAC: cfg.MAC, ActiveMTU: cfg.Limits.MaxMTU, PKeyCount: 1}
	x.PKey[0] = 0xffff
	for i, p := range cfg.IPs {
		a := p.Addr().As16() // an IPv4 address as ::ffff:a.b.c.d
		copy(x.GID[16*i:], a[:])
		x.GIDValid |= 1 << i
	}
	s.ctx = x
	s.link = 0
}

// gid is entry i of the GID table.
func (s *portState) gid(i int) (g [16]byte, valid bool) {
	if i >= numGIDs || s.ctx.GIDValid>>i&1 == 0 {
		return g, false
	}
	return [16]byte(s.ctx.GID[16*i:]), true
}

// addressed says whether a frame is sent to an address of the port.
func (s *portState) addressed(p *roce.Packet) bool {
	for left := s.ctx.GIDValid; left != 0; left &= left - 1 {
		if p.SentTo((*[16]byte)(s.ctx.GID[16*bits.TrailingZeros16(left):])) {
			return true
		}
	}
	return false
}

// publishPort shows the port in block PORT and on the wire.
func (r *regs) publishPort(c *Card) {
	x := &c.net.ctx
	c.port.mac.Store(macNumber(x.MAC))
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.word
	w[hw.RegPortMACLow/4] = le.Uint32(x.MAC[:4])
	w[hw.RegPortMACHigh/4] = uint32(le.Uint16(x.MAC[4:]))
	w[hw.RegPortActiveMTU/4] = uint32(x.ActiveMTU.Bytes())
	w[hw.RegPortSpeed/4] = portSpeed
	for i := range hw.RegPortGID0Count {
		w[hw.RegPortGID0/4+i] = le.Uint32(x.GID[4*i:])
	}
}

// pollLink tells a change of the link.
func (c *Card) pollLink() (worked bool) {
	now := hw.LinkState(c.port.link.Load())
	if now == c.net.link {
		return false
	}
	first := c.net.link == 0
	c.net.link = now
	switch {
	case first:
	case now == hw.LinkStateActive:
		c.event(hw.EventTypePortActive, 0, 1, 0)
	default:
		c.event(hw.EventTypePortErr, 0, 1, 0)
	}
	return true
}

func (c *Card) modifyPort(cmd *command) result {
	var x hw.PortContext
	if r := c.mailbox(cmd, x.AsBytes()); r != ok {
		return r
	}
	switch {
	case cmd.Object != 1:
		return bad(hw.CommandStatusBadObject, hw.CommandSyndromeNone)
	case !x.ReservedZero():
		return result{status: hw.CommandStatusReservedNotZero}
	case !x.ActiveMTU.Valid() || x.ActiveMTU > c.lim.MaxMTU:
		return param(hw.CommandSyndromeMTU)
	case x.MAC == [6]byte{} || x.MAC[0]&1 != 0: // none, or a group's
		return param(hw.CommandSyndromeNone)
	case x.PKeyCount == 0 || x.PKeyCount > numPKeys:
		return param(hw.CommandSyndromePKey)
	}
	for i := range numGIDs {
		if x.GIDValid>>i&1 == 0 {
			clear(x.GID[16*i : 16*i+16])
		} else if [16]byte(x.GID[16*i:]) == [16]byte{} {
			return param(hw.CommandSyndromeGID)
		}
	}
	changed := x.GID != c.net.ctx.GID || x.GIDValid != c.net.ctx.GIDValid
	x.Link, x.Speed, x.MaxMTU = 0, 0, 0
	c.net.ctx = x
	c.regs.publishPort(c)
	if changed {
		c.event(hw.EventTypeGIDChange, 0, 1, 0)
	}
	return ok
}

func (c *Card) queryPort(cmd *command) result {
	if cmd.Object != 1 {
		return bad(hw.CommandStatusBadObject, hw.CommandSyndromeNone)
	}
	x := c.net.ctx
	x.Link, x.Speed, x.MaxMTU = hw.LinkState(c.port.link.Load()), portSpeed, c.lim.MaxMTU
	return c.answer(cmd, x.AsBytes())
}
