package selftest

import (
	"context"
	"errors"
	"fmt"

	"rnic/cmd/rnicctl/internal/qppair"
	"rnic/driver"
	"rnic/hw"
)

// pair is the card with its driver, and a peer where there is one.
type pair struct {
	dev      *driver.Device
	peerAddr string
	peer     *driver.Device
}

func openPair(ctx context.Context, addr, peer string) (*pair, error) {
	dev, err := driver.Open(ctx, addr, driver.WithStatusSocket(""))
	if err != nil {
		return nil, err
	}
	return &pair{dev: dev, peerAddr: peer}, nil
}

func (p *pair) close() {
	_ = p.dev.Close()
	if p.peer != nil {
		_ = p.peer.Close()
	}
}

// keyTable registers a region and reads its entry back from the card, and sees that deregistering
// takes it away.
func (p *pair) keyTable(ctx context.Context) (found string, err error) {
	pd, err := p.dev.AllocPD(ctx)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, pd.Close()) }()
	mr, err := pd.AllocMR(ctx, 3*4096, driver.LocalWrite|driver.RemoteRead)
	if err != nil {
		return "", err
	}
	err = p.agree(ctx, 1)
	if err = errors.Join(err, mr.Dereg(ctx)); err != nil { // the fence is part of it
		return "", err
	}
	if err := p.agree(ctx, 0); err != nil {
		return "", fmt.Errorf("after the region was deregistered: %w", err)
	}
	return fmt.Sprintf("key %#x written, read back, fenced and taken away", mr.RKey()), nil
}

// agree reads the card's table and cache and holds them to what was registered: so many keys.
func (p *pair) agree(ctx context.Context, keys int) error {
	r, err := p.dev.Scrub(ctx)
	if err != nil {
		return err
	}
	if r.Keys != keys {
		return fmt.Errorf("%d keys are registered, not %d", r.Keys, keys)
	}
	for _, m := range r.Mismatches {
		err = errors.Join(err, fmt.Errorf("key index %#x, %s: shadow %#x, table %#x, cache %#x (line %d): wrong is: %s: %s", m.Index, m.Field, m.Shadow, m.Table, m.Cache, m.Line, m.Where, m.Why))
	}
	return err
}

// doorbell posts a SEND under a key that does not exist: the card sees the doorbell, fetches the WQE,
// looks the key up and completes with the reason. Nothing of it needs the port.
func (p *pair) doorbell(ctx context.Context) (found string, err error) {
	l, err := qppair.Connect(ctx, [2]*driver.Device{p.dev, p.dev}, qppair.Options{})
	if err != nil {
		return "", err
	}
	defer l.CloseAfter(ctx, &err)
	mr, err := l[0].MR(ctx, 4096)
	if err != nil {
		return "", err
	}
	sge := mr.SGE(0, 64)
	sge.LKey ^= 0x80 // another tag: a stale key
	if err := l[0].QP.PostSend(&driver.SendWR{WRID: 1, Opcode: driver.Send, SGEs: []driver.SGE{sge}}); err != nil {
		return "", err
	}
	wc, err := l[0].Wait(ctx)
	var failed *driver.CompletionError
	switch {
	case err == nil:
		return "", fmt.Errorf("a SEND under stale key %#x completed with %v", sge.LKey, wc.Status)
	case !errors.As(err, &failed):
		return "", fmt.Errorf("no completion of the work request: %w", err)
	case failed.WRID != 1 || failed.Status != driver.StatusLocProtErr || failed.Reason != driver.ReasonKeyTag || failed.Segment != 0 || failed.Key != sge.LKey:
		return "", fmt.Errorf("a SEND under stale key %#x should end with %v, %v: %w", sge.LKey, driver.StatusLocProtErr, driver.ReasonKeyTag, failed)
	}
	return "doorbell seen, WQE fetched, key looked up, completion written", nil
}

// loopback sends from the card to itself.
func (p *pair) loopback(ctx context.Context) (string, error) {
	return exchange(ctx, [2]*driver.Device{p.dev, p.dev})
}

// wire sends to the peer and back.
func (p *pair) wire(ctx context.Context) (string, error) {
	if p.peerAddr == "" {
		return "", skipped("no peer: name a second card on the same wire with --peer")
	}
	if p.peer == nil {
		peer, err := driver.Open(ctx, p.peerAddr, driver.WithStatusSocket(""))
		if err != nil {
			return "", err
		}
		p.peer = peer
	}
	if l := p.dev.Port().Link; l != hw.LinkStateActive {
		return "", fmt.Errorf("the port's link is %v", l)
	}
	return exchange(ctx, [2]*driver.Device{p.dev, p.peer})
}

// exchange sends a message of three segments each way and compares what arrived.
func exchange(ctx context.Context, devs [2]*driver.Device) (found string, err error) {
	l, err := qppair.Connect(ctx, devs, qppair.Options{})
	if err != nil {
		return "", err
	}
	defer l.CloseAfter(ctx, &err)
	const size, half = 64 << 10, 32 << 10
	var mrs [2]*driver.MR
	for i := range l {
		if mrs[i], err = l[i].MR(ctx, size); err != nil {
			return "", err
		}
	}
	pieces := [][2]int{{0, 1024}, {8192, 6144}, {1024, 512}}
	const total = 1024 + 6144 + 512
	for from := range l {
		to := 1 - from
		pattern(mrs[from].Bytes()[:half], uint32(from)*977)
		clear(mrs[to].Bytes()[half:])
		if err := l[to].QP.PostRecv(&driver.RecvWR{WRID: 2, SGEs: []driver.SGE{mrs[to].SGE(half, total)}}); err != nil {
			return "", err
		}
		wr := driver.SendWR{WRID: 1, Opcode: driver.Send, Flags: driver.Signaled}
		var want []byte
		for _, s := range pieces {
			wr.SGEs = append(wr.SGEs, mrs[from].SGE(s[0], s[1]))
			want = append(want, mrs[from].Bytes()[s[0]:s[0]+s[1]]...)
		}
		if err := l[from].QP.PostSend(&wr); err != nil {
			return "", err
		}
		if _, err := l[from].Wait(ctx); err != nil {
			return "", fmt.Errorf("at the sender: %w", err)
		}
		if _, err := l[to].Wait(ctx); err != nil {
			return "", fmt.Errorf("at the receiver: %w", err)
		}
		got := mrs[to].Bytes()[half:][:total]
		if i := firstDifference(got, want); i >= 0 {
			return "", fmt.Errorf("byte %d of %d is %#02x where it arrived, %#02x where it was sent", i, total, got[i], want[i])
		}
	}
	return fmt.Sprintf("%d bytes of three segments each way, compared", total), nil
}
