package roce

import "encoding/binary"

// layout is where the parts of a frame are.
type layout struct {
	ip  int  // IP header
	bth int  // BTH, behind UDP
	end int  // end of the IP packet, behind the ICRC
	v6  bool // IPv6
}

// locate finds IP, UDP, BTH and ICRC of a frame, and checks that the lengths of
// IP and UDP agree, that they hold at least BTH and ICRC, and that the frame is
// that long. It checks no checksum.
func locate(f []byte) (l layout, e ParseError) {
	if len(f) < EthernetLen {
		return l, ErrTruncated
	}
	etherType := Ethernet(f).EtherType()
	l.ip = EthernetLen
	if etherType == EtherTypeVLAN {
		if len(f) < EthernetLen+VLANLen {
			return l, ErrTruncated
		}
		etherType = VLAN(f[EthernetLen:]).EtherType()
		l.ip += VLANLen
	}
	ip := f[l.ip:]
	var n, udp int // the IP packet's length; where in it UDP starts
	switch etherType {
	case EtherTypeIPv4:
		if len(ip) < IPv4Len {
			return l, ErrTruncated
		}
		h := IPv4(ip)
		if h.Version() != 4 || h.IHL() != IPv4Len/4 {
			return l, ErrIPHeader
		}
		if h.Protocol() != ProtocolUDP {
			return l, ErrNotRoCE
		}
		if h.FlagsOffset()&^(IPv4DontFragment|0x8000) != 0 {
			return l, ErrFragment
		}
		n, udp = int(h.TotalLength()), IPv4Len
	case EtherTypeIPv6:
		if len(ip) < IPv6Len {
			return l, ErrTruncated
		}
		h := IPv6(ip)
		if h.Version() != 6 {
			return l, ErrIPHeader
		}
		if h.NextHeader() != ProtocolUDP {
			return l, ErrNotRoCE
		}
		n, udp = IPv6Len+int(h.PayloadLength()), IPv6Len
		l.v6 = true
	default:
		return l, ErrNotRoCE
	}
	if len(ip) < udp+UDPLen {
		return l, ErrTruncated
	}
	u := UDP(ip[udp:])
	if u.DstPort() != UDPPort {
		return l, ErrNotRoCE
	}
	if int(u.Length()) != n-udp || n < udp+UDPLen+BTHLen+ICRCLen {
		return l, ErrLength
	}
	if len(ip) < n {
		return l, ErrTruncated
	}
	l.bth = l.ip + udp + UDPLen
	l.end = l.ip + n
	return l, 0
}

// icrcOK reports whether the stored ICRC of the frame is right.
func (l *layout) icrcOK(f []byte) bool {
	at := l.end - ICRCLen
	return binary.LittleEndian.Uint32(f[at:]) == icrc(f[l.ip:at], l.v6)
}

// Packet is a frame that was parsed: views of its headers and payload. They are
// slices of the frame itself, good for as long as the caller leaves it alone;
// a header that the frame lacks is nil. The zero Packet has no frame and only
// its Frame method may be called. A Packet may be used again for another frame.
type Packet struct {
	frame []byte
	layout
	payload int // where the payload starts, behind the extended headers
	pad     int
}

// Parse checks a whole frame and lets p describe it. The frame starts at the
// Ethernet header and has no FCS; bytes behind the IP packet are let be. It is
// not copied. The error is a ParseError.
//
// Checked are all lengths, the IPv4 checksum, a UDP checksum that is not zero,
// the ICRC, the transport version, that the opcode is known, and that pad and
// payload fit it. Not checked, being the receiver's business: addresses, P_Key,
// the queue pair, PSN, and payload against the path MTU.
//
// After an error p is not to be used. A frame with a wrong ICRC gives ErrICRC
// whatever else is wrong with its transport headers.
func Parse(frame []byte, p *Packet) error {
	e := p.decode(frame)
	if p.end != 0 && !p.icrcOK(frame) {
		return ErrICRC // first: with it, nothing of the transport can be believed
	}
	if e != 0 {
		return e
	}
	return nil
}

// Decode is Parse without the look at the ICRC, for tools that show frames
// which a card would not take.
func Decode(frame []byte, p *Packet) error {
	if e := p.decode(frame); e != 0 {
		return e
	}
	return nil
}

// decode is Decode; p.end is 0 unless IP and UDP were found right.
func (p *Packet) decode(f []byte) (e ParseError) {
	p.frame = f
	if p.layout, e = locate(f); e == 0 {
		e = p.checkSums()
	}
	if e != 0 {
		p.layout = layout{}
		return e
	}
	bth := p.BTH()
	p.payload = p.bth + BTHLen
	p.pad = 0
	if bth.TVer() != 0 {
		return ErrTVer
	}
	op := &opcodes[bth.Opcode()]
	if !op.valid {
		return ErrOpcode
	}
	room := p.end - ICRCLen - p.payload - int(op.extLen) // payload and pad
	pad := int(bth.PadCount())
	switch {
	case room < pad, room&3 != 0,
		!op.payload && room != 0,
		op.op == OpCNP && (room != CNPPayload || pad != 0):
		return ErrLength
	}
	p.payload += int(op.extLen)
	p.pad = pad
	return 0
}

// checkSums checks the checksums of IPv4 and UDP.
func (p *Packet) checkSums() ParseError {
	addrs := p.frame[p.ip+8 : p.ip+IPv6Len]
	if !p.v6 {
		if !IPv4(p.frame[p.ip:]).ChecksumOK() {
			return ErrIPChecksum
		}
		addrs = p.frame[p.ip+12 : p.ip+IPv4Len]
	}
	udp := p.frame[p.bth-UDPLen : p.end]
	if UDP(udp).Checksum() != 0 && !udpChecksumOK(addrs, udp) {
		return ErrUDPChecksum
	}
	return 0
}

// Frame is the frame as it was given to Parse, trailer included.
func (p *Packet) Frame() []byte { return p.frame }

// Ethernet is the Ethernet header.
func (p *Packet) Ethernet() Ethernet { return Ethernet(p.frame[:EthernetLen:EthernetLen]) }

// VLAN is the 802.1Q tag, nil if the frame has none.
func (p *Packet) VLAN() VLAN {
	if p.ip == EthernetLen {
		return nil
	}
	return VLAN(p.frame[EthernetLen:p.ip:p.ip])
}

// IsIPv6 reports whether the IP header is IPv6.
func (p *Packet) IsIPv6() bool { return p.v6 }

// IPv4 is the IPv4 header, nil if the frame is IPv6.
func (p *Packet) IPv4() IPv4 {
	if p.v6 {
		return nil
	}
	return IPv4(p.frame[p.ip : p.ip+IPv4Len : p.ip+IPv4Len])
}

// IPv6 is the IPv6 header, nil if the frame is IPv4.
func (p *Packet) IPv6() IPv6 {
	if !p.v6 {
		return nil
	}
	return IPv6(p.frame[p.ip : p.ip+IPv6Len : p.ip+IPv6Len])
}

// SrcGID is the source address, an IPv4 one as IPv4-mapped.
func (p *Packet) SrcGID() [16]byte {
	if p.v6 {
		return p.IPv6().Src()
	}
	return V4Mapped(p.IPv4().Src())
}

// DstGID is the destination address, an IPv4 one as IPv4-mapped.
func (p *Packet) DstGID() [16]byte {
	if p.v6 {
		return p.IPv6().Dst()
	}
	return V4Mapped(p.IPv4().Dst())
}

// SentTo reports whether DstGID is g.
func (p *Packet) SentTo(g *[16]byte) bool {
	if p.v6 {
		return [16]byte(p.frame[p.ip+24:]) == *g
	}
	return be.Uint32(p.frame[p.ip+16:]) == be.Uint32(g[12:]) && [12]byte(g[:]) == [12]byte{10: 0xFF, 11: 0xFF}
}

// UDP is the UDP header.
func (p *Packet) UDP() UDP { return UDP(p.frame[p.bth-UDPLen : p.bth : p.bth]) }

// BTH is the Base Transport Header.
func (p *Packet) BTH() BTH { return BTH(p.frame[p.bth : p.bth+BTHLen : p.bth+BTHLen]) }

// Opcode is the BTH's opcode.
func (p *Packet) Opcode() Opcode { return Opcode(p.frame[p.bth]) }

// ext is the extended header x of n bytes, off bytes behind the BTH.
func (p *Packet) ext(x Ext, off, n int) []byte {
	if !p.Opcode().Has(x) {
		return nil
	}
	i := p.bth + BTHLen + off
	return p.frame[i : i+n : i+n]
}

// RETH is the RDMA extended header, or nil.
func (p *Packet) RETH() RETH { return p.ext(ExtRETH, 0, RETHLen) }

// AtomicETH is the atomic extended header, or nil.
func (p *Packet) AtomicETH() AtomicETH { return p.ext(ExtAtomicETH, 0, AtomicETHLen) }

// AETH is the ACK extended header, or nil.
func (p *Packet) AETH() AETH { return p.ext(ExtAETH, 0, AETHLen) }

// AtomicAckETH is the atomic ACK extended header, or nil.
func (p *Packet) AtomicAckETH() AtomicAckETH {
	return p.ext(ExtAtomicAckETH, AETHLen, AtomicAckETHLen)
}

// DETH is the datagram extended header, or nil.
func (p *Packet) DETH() DETH { return p.ext(ExtDETH, 0, DETHLen) }

// ImmDt is the immediate data, or nil. It is the last of the extended headers.
func (p *Packet) ImmDt() ImmDt { return p.ext(ExtImmDt, p.Opcode().ExtLen()-ImmDtLen, ImmDtLen) }

// IETH is the invalidate extended header, or nil. It stands alone.
func (p *Packet) IETH() IETH { return p.ext(ExtIETH, 0, IETHLen) }

// Payload is the payload without its pad; empty if there is none.
func (p *Packet) Payload() []byte {
	end := p.end - ICRCLen - p.pad
	return p.frame[p.payload:end:end]
}

// PayloadOffset is where in the frame the payload starts, or would.
func (p *Packet) PayloadOffset() int { return p.payload }

// Pad is the pad bytes, 0 to 3. Their content means nothing.
func (p *Packet) Pad() []byte {
	end := p.end - ICRCLen
	return p.frame[end-p.pad : end : end]
}

// ICRC is the invariant CRC as stored.
func (p *Packet) ICRC() uint32 { return binary.LittleEndian.Uint32(p.frame[p.end-ICRCLen:]) }

// ICRCOK reports whether the ICRC as stored is right.
func (p *Packet) ICRCOK() bool { return p.icrcOK(p.frame) }

// Trailer is what stands behind the IP packet.
func (p *Packet) Trailer() []byte { return p.frame[p.end:] }

// Header fills h from the frame. A frame that Put could have written is built
// again by Put and Finish, byte for byte.
func (p *Packet) Header(h *Header) {
	eth, udp, bth := p.Ethernet(), p.UDP(), p.BTH()
	*h = Header{
		DstMAC: eth.Dst(), SrcMAC: eth.Src(),
		IPv6: p.v6, Src: p.SrcGID(), Dst: p.DstGID(),
		UDPSrcPort: udp.SrcPort(),
		Opcode:     bth.Opcode(),
		SE:         bth.SE(), MigReq: bth.MigReq(), FECN: bth.FECN(), BECN: bth.BECN(), AckReq: bth.AckReq(),
		PKey: bth.PKey(), DestQP: bth.DestQP(), PSN: bth.PSN(),
	}
	if t := p.VLAN(); t != nil {
		h.VLAN = t.Tag()
	}
	if ip := p.IPv6(); ip != nil {
		h.TrafficClass, h.HopLimit, h.FlowLabel = ip.TrafficClass(), ip.HopLimit(), ip.FlowLabel()
	} else {
		ip := p.IPv4()
		h.TrafficClass, h.HopLimit, h.IPID = ip.TOS(), ip.TTL(), ip.ID()
	}
	if x := p.DETH(); x != nil {
		h.DETH = x.Fields()
	}
	if x := p.RETH(); x != nil {
		h.RETH = x.Fields()
	}
	if x := p.AtomicETH(); x != nil {
		h.Atomic = x.Fields()
	}
	if x := p.AETH(); x != nil {
		h.AETH = x.Fields()
	}
	if x := p.AtomicAckETH(); x != nil {
		h.AtomicAck = x.OrigRemoteData()
	}
	if x := p.ImmDt(); x != nil {
		h.Imm = x.Imm()
	}
	if x := p.IETH(); x != nil {
		h.InvRKey = x.RKey()
	}
}
