package driver

import (
	"context"
	"errors"
	"fmt"

	"go.uber.org/zap"
)

// signal sets one of the signals of asking. The goroutine that takes events does, which must not wait
// for a command.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// asking asks the card what events make necessary to know, until the device ends.
func (d *Device) asking() {
	defer d.wg.Done()
	for {
		select {
		case <-d.portAsk:
			d.askPort()
		case <-d.lostAsk:
			d.askPort()
			d.askAll()
		case <-d.gone:
			return
		case <-d.stop:
			return
		}
	}
}

func (d *Device) askPort() {
	ctx, cancel := bound(context.Background())
	defer cancel()
	d.unanswered("port", d.queryPort(ctx))
}

// unanswered says what could not be asked, but not of what is about to end.
func (d *Device) unanswered(object string, err error) {
	if err != nil && !isGone(err) && !errors.Is(err, ErrClosed) {
		d.log.Warn("query", zap.String("object", object), zap.Error(err))
	}
}

// askAll asks about every queue, when the card's event queue had no room for some events: that a
// completion queue overflowed and that a send ring cannot be read are said by one event each,
// and by every query.
func (d *Device) askAll() {
	d.mu.Lock()
	cqs, qps := d.children()
	d.mu.Unlock()
	for _, c := range cqs {
		d.unanswered(fmt.Sprintf("CQ %#x", c.n), c.askOverrun())
	}
	for _, q := range qps {
		d.unanswered(fmt.Sprintf("QP %#x", q.n), q.askRing())
	}
}

// askOverrun asks the card whether the queue overflowed.
func (c *CQ) askOverrun() error {
	ctx, cancel := bound(context.Background())
	defer cancel()
	if err := c.ctl.lock(ctx); err != nil {
		return err
	}
	defer c.ctl.unlock()
	if c.destroyed {
		return ErrClosed
	}
	i, err := c.info(ctx)
	if err == nil && i.Overflowed {
		c.overrun()
	}
	return err
}

// askRing asks the card whether it can read the send ring.
func (q *QP) askRing() error {
	ctx, cancel := bound(context.Background())
	defer cancel()
	if err := q.ctl.lock(ctx); err != nil { // no reset comes between question and answer
		return err
	}
	defer q.ctl.unlock()
	if q.closed {
		return ErrClosed
	}
	c, _, err := q.query(ctx)
	if err == nil && c.SQUnread != 0 {
		q.ringLost(c.SQUnreadFrom, 0)
	}
	return err
}
