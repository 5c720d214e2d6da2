package conformance

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"runtime"
	"time"

	"rnic/driver"
	"rnic/hw"
)

// device is a side of a replay on a card: objects with the recorded numbers, and
// the card's debug page.
type device struct {
	dev  *driver.Device
	node *Node

	debug *driver.Debug

	pd             *driver.PD
	sendCQ, recvCQ *driver.CQ
	qp             *driver.QP
	mrs            map[string]*driver.MR
	capture        driver.Stream[driver.CaptureFrame]
	peer           *device // at whose port the frames arrive

	waiting int // frames at the port

	txBase uint64 // TX_FRAMES at the beginning
	sent   uint64 // frames given to the player
}

// setUp makes what the scenario has on one side. The card is fresh from reset.
func setUp(ctx context.Context, dev *driver.Device, x *expectation, at side) (d *device, err error) {
	d = &device{dev: dev, node: &x.nodes[at], mrs: map[string]*driver.MR{}}
	defer func() {
		if err != nil {
			err = fmt.Errorf("node %s: %w", at, err)
		}
	}()
	if err := d.startDebug(ctx, x); err != nil {
		return d, err
	}
	if d.pd, err = dev.AllocPD(ctx); err != nil {
		return d, err
	}
	for i := range d.node.MRs {
		if err := d.addMR(ctx, &d.node.MRs[i]); err != nil {
			return d, err
		}
	}
	return d, d.addQP(ctx, x, at)
}

// startDebug gives the card the recorded addresses, and takes its time, its run
// and its port in hand.
func (d *device) startDebug(ctx context.Context, x *expectation) (err error) {
	if d.debug, err = d.dev.Debug(); err != nil {
		return err
	}
	mac, err := net.ParseMAC(d.node.MAC)
	if err != nil {
		return err
	}
	ip, err := netip.ParseAddr(d.node.IP)
	if err != nil {
		return err
	}
	port := driver.PortConfig{GIDs: []driver.GID{driver.GIDFromIP(ip)}, PKeys: []uint16{x.Path.PKey}}
	copy(port.MAC[:], mac)
	if err := d.dev.ModifyPort(ctx, port); err != nil {
		return err
	}
	// Room for all frames at once, each sent and received, however they come.
	entries := min(4*len(x.frames)+64, 1<<14)
	if d.capture, err = d.dev.Capture(ctx, driver.CaptureOptions{Entries: entries}); err != nil {
		return err
	}
	if d.txBase, err = d.txFrames(); err != nil {
		return err
	}
	return errors.Join(
		d.debug.SetAckReqInterval(ackReqInterval),
		d.debug.SetAckCoalesce(false),
		d.debug.SetClockMode(hw.ClockModeStepped),
		d.debug.SetRunMode(hw.RunModeStepped),
		d.debug.HoldPort(true),
	)
}

// ackReqInterval is soft-RoCE's: every so many packets of a long message ask for
// an acknowledgement.
const ackReqInterval = 66

func (d *device) addMR(ctx context.Context, m *MR) error {
	if m.LKey != m.RKey {
		return fmt.Errorf("region %q has keys 0x%x and 0x%x: a card has one key for both", m.Name, m.LKey, m.RKey)
	}
	access := driver.Access(m.Access)
	if d.dev.Attr().Capabilities&hw.CapabilityMW == 0 {
		access &^= driver.MWBind // no scenario that binds comes here
	}
	mr, err := d.pd.AllocMR(ctx, int(m.Len), access, driver.WithIOVA(m.Addr), driver.WithKey(m.LKey))
	if err != nil {
		return fmt.Errorf("region %q: %w", m.Name, err)
	}
	d.mrs[m.Name] = mr
	b := mr.Bytes()
	for i := range b {
		b[i] = m.Fill.Byte(uint64(i))
	}
	return nil
}

// addQP creates the QP and takes it to RTS with the recorded attributes.
func (d *device) addQP(ctx context.Context, x *expectation, at side) (err error) {
	sends, receives := 1, 1
	for i := range x.Steps {
		if s := &x.Steps[i]; s.Node == at.String() {
			sends += len(s.WRs)
			receives++
		}
	}
	if d.sendCQ, err = d.dev.CreateCQ(ctx, max(sends, 16)); err != nil {
		return err
	}
	if d.recvCQ, err = d.dev.CreateCQ(ctx, max(receives, 16)); err != nil {
		return err
	}
	c := &d.node.Caps
	kind := map[string]driver.QPType{"RC": driver.RC, "UC": driver.UC, "UD": driver.UD}[x.Transport]
	if d.qp, err = d.pd.CreateQP(ctx, driver.QPInit{
		Type: kind, SendCQ: d.sendCQ, RecvCQ: d.recvCQ, SignalAll: x.QPAttr.SignalAll != 0,
		MaxSendWR: c.MaxSendWR, MaxRecvWR: c.MaxRecvWR, MaxSendSGE: c.MaxSendSGE, MaxRecvSGE: c.MaxRecvSGE, MaxInline: c.MaxInline,
	}, driver.WithQPN(d.node.QPN), driver.WithPSN(d.node.SQPSN)); err != nil {
		return err
	}
	peer := &x.nodes[at.peer()]
	q := &x.QPAttr
	a := driver.QPAttr{
		State: driver.StateRTR, PathMTU: driver.MTU(mtuCode(x.Path.MTU)), Access: driver.Access(q.Access),
		DestQPN: peer.QPN, RQPSN: d.node.RQPSN, MaxDestRDAtomic: q.MaxDestRDAtomic, MinRNRTimer: q.MinRNRTimer,
	}
	if a.AV, err = way(x, at); err != nil {
		return err
	}
	if err := d.qp.Modify(ctx, a, driver.AttrState|driver.AttrAccess|driver.AttrAV|driver.AttrPathMTU|driver.AttrDestQPN|
		driver.AttrRQPSN|driver.AttrMaxDestRDAtomic|driver.AttrMinRNRTimer); err != nil {
		return err
	}
	return d.qp.Modify(ctx, driver.QPAttr{
		State: driver.StateRTS, SQPSN: d.node.SQPSN, Timeout: q.Timeout, RetryCnt: q.RetryCnt, RNRRetry: q.RNRRetry, MaxRDAtomic: q.MaxRDAtomic,
	}, driver.AttrState|driver.AttrSQPSN|driver.AttrTimeout|driver.AttrRetryCnt|driver.AttrRNRRetry|driver.AttrMaxRDAtomic)
}

// way is the way to the peer. On the wire soft-RoCE's hop limit is 64 and its flow
// label 0, whatever was asked for; the label only selects the UDP source port,
// which is taken from the recording.
func way(x *expectation, at side) (v driver.AddressVector, err error) {
	peer := &x.nodes[at.peer()]
	ip, err := netip.ParseAddr(peer.IP)
	if err != nil {
		return v, err
	}
	mac, err := net.ParseMAC(peer.MAC)
	if err != nil {
		return v, err
	}
	v = driver.AddressVector{DGID: driver.GIDFromIP(ip), HopLimit: 64, TrafficClass: x.Path.TrafficClass}
	copy(v.DMAC[:], mac)
	if ports := x.nodes[at].SourcePorts; len(ports) == 1 {
		v.UDPSourcePort = ports[0]
	}
	return v, nil
}

// opcodes are those of work requests that a replay posts.
var opcodes = map[string]driver.Opcode{
	opSend: driver.Send, opSendImm: driver.SendImm, opSendInv: driver.SendInv, opWrite: driver.Write, opWriteImm: driver.WriteImm,
	opRead: driver.Read, opCAS: driver.CompareSwap, opFADD: driver.FetchAdd, opBindMW: driver.BindMW, opLocalInv: driver.LocalInv,
}

func (d *device) PostSend(wrs []WR) (int, error) {
	list := make([]driver.SendWR, len(wrs))
	for i := range wrs {
		w := &wrs[i]
		op, ok := opcodes[w.Opcode]
		if !ok {
			return 0, fmt.Errorf("opcode %q is not known", w.Opcode)
		}
		list[i] = driver.SendWR{
			WRID: w.WRID, Opcode: op, Imm: w.Imm, InvalidateRKey: w.InvRKey, CompareAdd: w.CompareAdd, Swap: w.Swap,
			Remote: driver.RemoteMR{Addr: w.RemoteAddr, RKey: w.RKey}, RemoteQPN: w.RemoteQPN, RemoteQKey: w.RemoteQKey,
		}
		for _, f := range []struct {
			bit  int
			flag driver.SendFlags
		}{{flagFence, driver.Fence}, {flagSignaled, driver.Signaled}, {flagSolicited, driver.Solicited}} {
			if w.Flags&f.bit != 0 {
				list[i].Flags |= f.flag
			}
		}
		if w.Flags&flagInline == 0 {
			list[i].SGEs = sges(w.SGEs)
			continue
		}
		for j := range w.SGEs {
			b, err := d.local(&w.SGEs[j])
			if err != nil {
				return 0, err
			}
			list[i].Inline = append(list[i].Inline, b)
		}
	}
	return d.qp.PostSendBatch(list)
}

func sges(list []SGE) []driver.SGE {
	out := make([]driver.SGE, len(list))
	for i, g := range list {
		out[i] = driver.SGE{Addr: g.Addr, Length: g.Len, LKey: g.LKey}
	}
	return out
}

// local is the memory that an inline SGE names. Its key is not looked at (rule G3).
func (d *device) local(g *SGE) ([]byte, error) {
	for i := range d.node.MRs {
		m := &d.node.MRs[i]
		if off := g.Addr - m.Addr; g.Addr >= m.Addr && off <= m.Len && uint64(g.Len) <= m.Len-off {
			return d.mrs[m.Name].Bytes()[off : off+uint64(g.Len)], nil
		}
	}
	return nil, fmt.Errorf("inline payload of %d bytes at 0x%x is in no region", g.Len, g.Addr)
}

func (d *device) PostRecv(s *Step) error {
	return d.qp.PostRecv(&driver.RecvWR{WRID: s.WRID, SGEs: sges(s.SGEs)})
}

func (d *device) Poll(send bool) ([]Completion, error) {
	cq := d.recvCQ
	if send {
		cq = d.sendCQ
	}
	var all []Completion
	var wc [16]driver.WC
	for {
		n, err := cq.Poll(wc[:])
		if err != nil || n == 0 {
			return all, err
		}
		for _, w := range wc[:n] {
			all = append(all, completion(&w))
		}
	}
}

// completion is a completion as ibv_wc has it.
func completion(w *driver.WC) Completion {
	c := Completion{WRID: w.WRID, Status: int(w.Status), ByteLen: w.ByteLen, Imm: w.Imm, QPN: w.QPN}
	switch w.Opcode {
	case driver.Recv:
		c.Opcode = wcRecv
	case driver.RecvWriteImm:
		c.Opcode = wcRecvImm
	default:
		for name, op := range opcodes {
			if op == w.Opcode {
				c.Opcode = wcOpcode(name)
			}
		}
	}
	if w.Flags&driver.WCImm != 0 {
		c.Flags |= wcFlagImm
	}
	if w.Flags&driver.WCInv != 0 {
		c.Flags |= wcFlagInv
	}
	return c
}

func (d *device) Query(ctx context.Context) (QPState, error) {
	a, err := d.qp.Query(ctx)
	return QPState{State: int(a.State), SQPSN: a.SQPSN}, err
}

func (d *device) Modify(ctx context.Context, state string) error {
	for i, name := range stateNames {
		if name == state {
			return d.qp.Modify(ctx, driver.QPAttr{State: driver.QPState(i)}, driver.AttrState)
		}
	}
	return fmt.Errorf("state %q is not known", state)
}

func (d *device) Memory(mr string) []byte { return d.mrs[mr].Bytes() }

func (d *device) txFrames() (uint64, error) {
	v, err := d.dev.ReadRegister("COUNTERS.TX_FRAMES")
	return v.Value, err
}

func (d *device) Receive(ctx context.Context) error { return d.debug.Run(ctx, true, false) }

func (d *device) Transmit(ctx context.Context) ([][]byte, error) {
	if err := d.debug.Run(ctx, false, true); err != nil {
		return nil, err
	}
	tx, err := d.txFrames()
	if err != nil || tx-d.txBase == d.sent {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, arrivalTime, errors.New("what was sent does not show"))
	defer cancel()
	if err := d.peer.await(ctx, d.peer.waiting+int(tx-d.txBase-d.sent)); err != nil {
		return nil, err
	}
	var frames [][]byte
	for d.sent < tx-d.txBase {
		f, err := d.capture.Next(ctx)
		if err != nil {
			return nil, fmt.Errorf("card %s: frame %d of %d: %w", d.dev.Addr(), d.sent, tx-d.txBase, errors.Join(err, context.Cause(ctx)))
		}
		if f.Lost != 0 {
			return nil, fmt.Errorf("card %s: the capture ring lost %d frames", d.dev.Addr(), f.Lost)
		}
		if f.Direction != hw.DirectionTX {
			continue
		}
		frames = append(frames, f.Data)
		d.sent++
	}
	return frames, nil
}

// arrivalTime bounds the wait for frames that were sent: in the capture ring, and
// at the peer's port.
const arrivalTime = 10 * time.Second

// await waits until so many frames wait at the port.
func (d *device) await(ctx context.Context, frames int) error {
	for looks := 0; ; looks++ {
		n, err := d.debug.PortWaiting()
		if err != nil {
			return err
		}
		if n == frames {
			d.waiting = n
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("card %s: %d frames wait at the port, %d should: %w", d.dev.Addr(), n, frames, context.Cause(ctx))
		}
		if looks < 100 {
			runtime.Gosched()
		} else {
			time.Sleep(100 * time.Microsecond)
		}
	}
}

func (d *device) Take(_ context.Context, index int, deliver, remove bool, c *corruption) error {
	if index > math.MaxUint16 {
		return fmt.Errorf("%d frames wait at the port of card %s: more than can be named", index, d.dev.Addr())
	}
	if c != nil {
		if err := d.debug.SetCorrupt(uint16(c.offset), c.xor); err != nil {
			return err
		}
	}
	if remove {
		d.waiting--
	}
	return d.debug.TakeFrame(index, deliver, remove, c != nil)
}

func (d *device) NextTimer(context.Context) (time.Duration, bool, error) {
	ns, ok, err := d.debug.NextTimer()
	return time.Duration(min(ns, uint64(maxVirtual)+1)), ok, err
}

func (d *device) Advance(_ context.Context, by time.Duration) error {
	return d.debug.StepClock(uint64(by))
}
