package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"rnic/hw"
	"rnic/hw/softcard"
	"rnic/vfio"
	"rnic/vfio/vfiouser"
)

// idleCard is a soft card that can be stopped: then nobody reads the rings that the driver writes
// to, and this program writes the completions. It never sleeps. The driver's side is as ever: rings in shared memory,
// doorbells in a mapped page.
type idleCard struct {
	*softcard.Card
	step   sync.Mutex // held while the card is stepped, and while it is stopped
	host   vfiouser.Host
	served chan struct{}
	stop   chan struct{}
	ended  chan struct{}

	// Where the card reads WQEs and writes CQEs, while learn is set.
	learn    atomic.Bool
	wqe, cqe atomic.Uint64
}

// noting is the client's memory as the card reaches it, with an eye on where.
type noting struct {
	vfiouser.Host
	c *idleCard
}

func (n noting) Read(iova uint64, p []byte) error {
	if n.c.learn.Load() && len(p) == hw.WQEBlock {
		n.c.wqe.Store(iova)
	}
	return n.Host.Read(iova, p)
}

func (n noting) WriteOwned(iova uint64, p []byte) error {
	if n.c.learn.Load() && len(p) == hw.CQESize {
		n.c.cqe.Store(iova)
	}
	return n.Host.WriteOwned(iova, p)
}

// Attach is of vfiouser.Function.
func (c *idleCard) Attach(h vfiouser.Host) {
	c.host = h
	c.Card.Attach(noting{h, c})
}

var idle = struct {
	sync.Mutex
	cards  map[string]*idleCard
	number int
}{cards: map[string]*idleCard{}}

func init() {
	vfio.Register("idle", func(ctx context.Context, name string) (vfio.Device, error) {
		idle.Lock()
		c := idle.cards[name]
		idle.Unlock()
		if c == nil {
			return nil, &vfio.Error{Addr: "idle:" + name, Op: "open", Err: vfio.ErrNotFound}
		}
		client, server, err := vfiouser.Pair()
		if err != nil {
			return nil, err
		}
		c.served = make(chan struct{})
		go func() {
			defer close(c.served)
			_ = vfiouser.Serve(context.Background(), server, c) // the client sees its end
		}()
		return vfiouser.Client(ctx, client, "idle:"+name)
	})
}

// newIdleCard makes one on the wire, running, and gives the address to open it by.
func newIdleCard(w *softcard.Wire) (*idleCard, string, error) {
	idle.Lock()
	defer idle.Unlock()
	idle.number++
	name := fmt.Sprintf("bench%d", idle.number)
	card, err := softcard.New(softcard.Config{Name: name, Engine: hw.EngineGo})
	if err != nil {
		return nil, "", err
	}
	if err := w.Join(card); err != nil {
		return nil, "", errors.Join(err, card.Close())
	}
	c := &idleCard{Card: card, stop: make(chan struct{}), ended: make(chan struct{})}
	idle.cards[name] = c
	go c.run()
	return c, "idle:" + name, nil
}

func (c *idleCard) run() {
	defer close(c.ended)
	for start := time.Now(); ; {
		select {
		case <-c.stop:
			return
		default:
		}
		c.step.Lock()
		worked := c.Step(int64(time.Since(start)), 64)
		c.step.Unlock()
		if !worked {
			time.Sleep(50 * time.Microsecond)
		}
	}
}

// close ends a card that is running and whose client has gone.
func (c *idleCard) close() error {
	close(c.stop)
	<-c.ended
	if c.served != nil {
		<-c.served
	}
	return c.Card.Close()
}

// halt stops the card and opens the bracket of its memory; resume is the reverse.
func (c *idleCard) halt() {
	c.step.Lock()
	c.host.Enter()
}

func (c *idleCard) resume() {
	c.host.Exit()
	c.step.Unlock()
}

// memory is n bytes of the client's memory, while the card is stopped.
func (c *idleCard) memory(iova, n uint64) ([]byte, error) {
	b := c.host.Slice(iova, n, true)
	if b == nil {
		return nil, fmt.Errorf("%d bytes at %#x are not shared memory", n, iova)
	}
	return b, nil
}
