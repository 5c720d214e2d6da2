package driver

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// PD is a protection domain: memory regions and queue pairs of one may use
// each other.
type PD struct {
	d *Device
	n uint32

	// Under d.mu.
	users  map[child]string
	closed bool
}

// AllocPD makes a protection domain.
func (d *Device) AllocPD(ctx context.Context) (*PD, error) {
	const op = "allocate PD"
	if err := ctx.Err(); err != nil {
		return nil, d.fail(op, "", err)
	}
	n, err := d.pdns.alloc()
	if err != nil {
		return nil, d.fail(op, "", err)
	}
	p := &PD{d: d, n: n, users: map[child]string{}}
	if err := d.add(p, func() { d.pds[n] = p }); err != nil {
		d.pdns.free(n)
		return nil, d.fail(op, "", err)
	}
	return p, nil
}

// Number is the protection domain's number on the card.
func (p *PD) Number() uint32 { return p.n }

// Device is the device that the protection domain is of.
func (p *PD) Device() *Device { return p.d }

func (p *PD) name() string { return fmt.Sprintf("PD %d", p.n) }

// use counts a user, whose name is for errors. The caller holds d.mu.
func (p *PD) use(c child, name string) error {
	if p.closed {
		return fmt.Errorf("%s: %w", p.name(), ErrClosed)
	}
	p.users[c] = name
	return nil
}

// Close gives the protection domain back. While regions or queue pairs are of
// it, it is ErrInUse and names them. It is idempotent.
func (p *PD) Close() error {
	d := p.d
	d.mu.Lock()
	if p.closed {
		d.mu.Unlock()
		return nil
	}
	if len(p.users) > 0 {
		err := inUse(p.users)
		d.mu.Unlock()
		return d.fail("close", p.name(), err)
	}
	p.closed = true
	d.mu.Unlock()
	d.remove(p, func() { delete(d.pds, p.n) })
	d.pdns.free(p.n)
	return nil
}

func (p *PD) forceClose(error) {
	p.d.mu.Lock()
	p.closed = true
	p.d.mu.Unlock()
}

// inUse is ErrInUse with the names of the users, the first few.
func inUse(users map[child]string) error {
	var names []string
	for _, n := range users {
		names = append(names, n)
	}
	slices.Sort(names)
	const show = 8
	s := strings.Join(names[:min(len(names), show)], ", ")
	if len(names) > show {
		s += fmt.Sprintf(" and %d more", len(names)-show)
	}
	return fmt.Errorf("%w by %s", ErrInUse, s)
}
