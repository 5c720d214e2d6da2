package driver

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

// What Connect chooses for the attributes that an endpoint does not state.
const (
	connectTimeout     = 14 // local ACK timeout: 4.096 µs × 2^14 = 67 ms
	connectRetryCnt    = 7
	connectRNRRetry    = 6  // 7 would be without end
	connectMinRNRTimer = 12 // 0.64 ms (InfiniBand specification volume 1, table 45)
	connectRDAtomic    = 16
)

// sgid is the index of this port's GID to reach g from: the first of its
// kind, IPv4 or IPv6.
func (p *PortAttr) sgid(g GID) (int, bool) {
	for i, own := range p.GIDs {
		if !own.IsZero() && own.Addr().Is4() == g.Addr().Is4() {
			return i, true
		}
	}
	return 0, false
}

// Endpoint is what a peer needs to connect to this queue pair: the port's
// first IPv4 address, else its first address. Private is empty.
func (q *QP) Endpoint() Endpoint {
	p := q.pd.d.port.Load()
	e := Endpoint{MAC: p.MAC, QPN: q.n, PSN: q.psn, MTU: p.ActiveMTU}
	for _, g := range p.GIDs {
		if !g.IsZero() && (e.GID.IsZero() || g.Addr().Is4() && !e.GID.Addr().Is4()) {
			e.GID = g
		}
	}
	return e
}

// resolve gives the MAC of a peer: the one it states, this port's own for its
// own address, or the one that a link-local address is made from (RFC 4291,
// appendix A).
func (p *PortAttr) resolve(r *Endpoint) (MAC, error) {
	if !r.MAC.IsZero() {
		return r.MAC, nil
	}
	for _, g := range p.GIDs {
		if g == r.GID {
			return p.MAC, nil
		}
	}
	if g := r.GID; r.GID.Addr().IsLinkLocalUnicast() && !r.GID.Addr().Is4() && g[11] == 0xff && g[12] == 0xfe {
		return MAC{g[8] ^ 2, g[9], g[10], g[13], g[14], g[15]}, nil
	}
	return MAC{}, fmt.Errorf("endpoint %v has no MAC, and its address is not made from one; state it: %w", r.GID, ErrNoRoute)
}

// Connect brings the queue pair from INIT to RTS, connected to a peer, which
// connects to this one's Endpoint. The path MTU is the smaller of both sides'.
// errors.Is: ErrState when it is not in INIT, ErrNoRoute, ErrInvalid.
func (q *QP) Connect(ctx context.Context, r Endpoint) error {
	const op = "connect"
	ctx, cancel := bound(ctx)
	defer cancel()
	if err := r.check(); err != nil {
		return q.fail(op, err)
	}
	if err := q.ctl.lock(ctx); err != nil {
		return q.fail(op, err)
	}
	defer q.ctl.unlock()
	if q.state != StateInit && !q.closed {
		return q.fail(op, fmt.Errorf("it is in %v: %w", q.state, ErrState))
	}
	d := q.pd.d
	p := d.port.Load()
	sgid, ok := p.sgid(r.GID)
	if !ok {
		return q.fail(op, fmt.Errorf("this port has no address of the kind of %v: %w", r.GID, ErrNoRoute))
	}
	mac, err := p.resolve(&r)
	if err != nil {
		return q.fail(op, err)
	}
	rd := uint8(min(connectRDAtomic, d.attr.MaxRDAtomic))
	a := QPAttr{
		State: StateRTR, PathMTU: min(r.MTU, p.ActiveMTU), DestQPN: r.QPN, RQPSN: r.PSN, MinRNRTimer: connectMinRNRTimer, MaxDestRDAtomic: rd,
		AV: AddressVector{DGID: r.GID, DMAC: mac, SGIDIndex: uint8(sgid)},
	}
	if err := q.modify(ctx, &a, AttrState|AttrAV|AttrPathMTU|AttrDestQPN|AttrRQPSN|AttrMaxDestRDAtomic|AttrMinRNRTimer); err != nil {
		return q.fail(op, err)
	}
	a = QPAttr{State: StateRTS, SQPSN: q.psn, Timeout: connectTimeout, RetryCnt: connectRetryCnt, RNRRetry: connectRNRRetry, MaxRDAtomic: rd}
	return q.fail(op, q.modify(ctx, &a, AttrState|AttrSQPSN|AttrTimeout|AttrRetryCnt|AttrRNRRetry|AttrMaxRDAtomic))
}

// The exchange of ConnectVia: each side sends its endpoint behind its length
// (32 bits, big-endian), connects, and sends one byte: that it is ready, or
// that it failed.
const (
	exchangeReady  = 'R'
	exchangeFailed = 'F'
)

// ConnectVia exchanges endpoints with a peer over c, connects, and waits until
// the peer is ready too, so that either side may send at once. It gives the
// peer's endpoint with its private data (at most MaxPrivate bytes each way).
// The context, or 5 s, bounds it, and so does the device's end; c's deadline is cleared at the end. The
// other bytes on c are the caller's: nothing is read beyond the exchange.
func (q *QP) ConnectVia(ctx context.Context, c net.Conn, private []byte) (Endpoint, error) {
	const op = "connect"
	ctx, cancel := bound(ctx)
	defer cancel()
	own := q.Endpoint()
	own.Private = private
	b, err := own.MarshalBinary()
	if err != nil {
		return Endpoint{}, q.fail(op, err)
	}
	deadline, _ := ctx.Deadline()
	if err := c.SetDeadline(deadline); err != nil {
		return Endpoint{}, q.fail(op, err)
	}
	d := q.pd.d
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-ctx.Done():
		case <-d.gone:
		case <-d.stop:
		case <-done:
			return
		}
		_ = c.SetDeadline(time.Unix(1, 0))
	}()
	peer, err := q.exchange(ctx, c, b)
	close(done)
	<-ended
	switch gone := d.alive(); {
	case gone != nil:
		err = gone
	case ctx.Err() != nil:
		err = errors.Join(err, &DeadlineError{Waited: "the peer", Cause: context.Cause(ctx)})
	case errors.Is(err, os.ErrDeadlineExceeded): // c's clock was first
		err = errors.Join(err, &DeadlineError{Waited: "the peer", Cause: context.DeadlineExceeded})
	}
	_ = c.SetDeadline(time.Time{}) // a peer that is ready may have closed c already
	if err != nil {
		return Endpoint{}, q.fail(op, err)
	}
	return peer, nil
}

// send writes b while the caller reads: both sides write first, and the
// connection may hold nothing in between.
func send(c net.Conn, b []byte) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := c.Write(b)
		done <- err
	}()
	return done
}

func (q *QP) exchange(ctx context.Context, c net.Conn, own []byte) (peer Endpoint, err error) {
	sent := send(c, append(binary.BigEndian.AppendUint32(nil, uint32(len(own))), own...))
	var head [4]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return peer, fmt.Errorf("peer's endpoint: %w", err)
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > endpointFixed+MaxPrivate {
		return peer, fmt.Errorf("peer's endpoint of %d bytes: %w", n, ErrInvalid)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(c, b); err != nil {
		return peer, fmt.Errorf("peer's endpoint: %w", err)
	}
	if err := <-sent; err != nil {
		return peer, fmt.Errorf("endpoint: %w", err)
	}
	if err = peer.UnmarshalBinary(b); err == nil {
		err = q.Connect(ctx, peer)
	}
	if err != nil {
		<-send(c, []byte{exchangeFailed}) // the peer would find out by its deadline
		return peer, err
	}
	sent = send(c, []byte{exchangeReady})
	if _, err := io.ReadFull(c, head[:1]); err != nil {
		return peer, fmt.Errorf("peer's readiness: %w", err)
	}
	if err := <-sent; err != nil {
		return peer, fmt.Errorf("readiness: %w", err)
	}
	if head[0] != exchangeReady {
		return peer, fmt.Errorf("the peer could not connect (it said %#x): %w", head[0], ErrInvalid)
	}
	return peer, nil
}
