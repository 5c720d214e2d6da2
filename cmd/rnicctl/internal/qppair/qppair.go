// Package qppair connects two QPs, on two cards or on one, for the commands that send something.
package qppair

import (
	"context"
	"errors"
	"time"

	"rnic/driver"
)

// Options say what the QPs can do. Zero values take what the walk and the demo need.
type Options struct {
	MTU       driver.MTU // path MTU; 0: the largest of both
	MaxInline int        // bytes
}

// End is one of the QPs, with the PD and the CQ that it has alone.
type End struct {
	Dev *driver.Device
	PD  *driver.PD
	CQ  *driver.CQ
	QP  *driver.QP
	mrs []*driver.MR
}

// Pair is two connected QPs.
type Pair [2]*End

const depth = 16 // work requests of a queue

// Connect makes a QP on each device, which may be the same one, and connects them. The caller closes the pair.
func Connect(ctx context.Context, devs [2]*driver.Device, o Options) (p Pair, err error) {
	p = Pair{{Dev: devs[0]}, {Dev: devs[1]}}
	defer func() {
		if err != nil {
			p.CloseAfter(ctx, &err)
		}
	}()
	for _, e := range p {
		if err = e.create(ctx, o); err != nil {
			return p, err
		}
	}
	for i, e := range p {
		peer := p[1-i].QP.Endpoint()
		if o.MTU != 0 {
			peer.MTU = min(peer.MTU, o.MTU)
		}
		if err = e.QP.Connect(ctx, peer); err != nil {
			return p, err
		}
	}
	return p, nil
}

func (e *End) create(ctx context.Context, o Options) (err error) {
	if e.PD, err = e.Dev.AllocPD(ctx); err != nil {
		return err
	}
	if e.CQ, err = e.Dev.CreateCQ(ctx, 4*depth); err != nil {
		return err
	}
	e.QP, err = e.PD.CreateQP(ctx, driver.QPInit{
		Type: driver.RC, SendCQ: e.CQ, RecvCQ: e.CQ, MaxSendWR: depth, MaxRecvWR: depth,
		MaxSendSGE: e.Dev.Attr().MaxSendSGE, MaxRecvSGE: 1, MaxInline: o.MaxInline,
	})
	return err
}

// MR registers n bytes with every right that the verbs of the demo need. The pair's Close deregisters it.
func (e *End) MR(ctx context.Context, n int) (*driver.MR, error) {
	m, err := e.PD.AllocMR(ctx, n, driver.LocalWrite|driver.RemoteWrite|driver.RemoteRead|driver.RemoteAtomic)
	if err == nil {
		e.mrs = append(e.mrs, m)
	}
	return m, err
}

// Wait gives the end's next completion; one that failed is its error.
func (e *End) Wait(ctx context.Context) (driver.WC, error) {
	var wc [1]driver.WC
	if _, err := e.CQ.Wait(ctx, wc[:]); err != nil {
		return driver.WC{}, err
	}
	return wc[0], wc[0].Err()
}

// Close takes down what Connect and MR made; the devices stay open.
func (p Pair) Close(ctx context.Context) error {
	var errs []error
	for _, e := range p {
		if e.QP != nil {
			errs = append(errs, e.QP.Close())
		}
	}
	for _, e := range p {
		for _, m := range e.mrs {
			errs = append(errs, m.Dereg(ctx))
		}
		if e.CQ != nil {
			errs = append(errs, e.CQ.Close())
		}
		if e.PD != nil {
			errs = append(errs, e.PD.Close())
		}
	}
	return errors.Join(errs...)
}

// CloseAfter is for a defer: it closes the pair also where ctx is over, and puts what goes wrong with that into
// err, unless something went wrong before: the first cause wins.
func (p Pair) CloseAfter(ctx context.Context, err *error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
	defer cancel()
	if e := p.Close(ctx); *err == nil {
		*err = e
	}
}

const closeTime = 5 * time.Second
