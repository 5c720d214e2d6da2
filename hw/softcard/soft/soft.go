// Package soft registers the address scheme "soft" with package vfio: a soft
// card in this process, behind the vfio-user protocol over a socket pair.
// Programs import it for its effect:
//
//	import _ "rnic/hw/softcard/soft"
//
//	soft:[NAME][?wire=W&mac=02:00:00:00:00:01&ip=10.0.0.1/24&engine=go|rtl|none&seed=N&slots=N&flash=FILE]
//
// A card lives from Open to Close. Cards of one wire (default "soft") are joined
// and stepped by one worker. What is not given is derived from NAME and seed; a
// card without NAME gets one of its own. ip can be repeated: GID 0 is the first.
// slots is the room of each of the wire's directions in frames, for the card that
// opens the wire. flash is the file of the card's flash, which is made where there is none.
package soft

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"

	"rnic/hw"
	"rnic/hw/rtl"
	"rnic/hw/softcard"
	"rnic/vfio"
	"rnic/vfio/vfiouser"
)

func init() { vfio.Register("soft", Open) }

// wire is a wire with its worker and the cards on it.
type wire struct {
	wire   *softcard.Wire
	runner *softcard.Runner
	slots  int // as asked for
	cards  int
}

var registry = struct {
	sync.Mutex
	names  map[string]bool // of open cards
	wires  map[string]*wire
	number int // of cards without a name so far
}{names: map[string]bool{}, wires: map[string]*wire{}}

const defaultWire = "soft"

// address is what follows "soft:".
type address struct {
	config softcard.Config
	wire   string
	slots  int
	flash  string // file, "" for a card without a flash
}

// parse reads an address.
func parse(rest string) (a address, err error) {
	name, query, _ := strings.Cut(rest, "?")
	if a.config.Name, err = url.PathUnescape(name); err != nil {
		return a, fmt.Errorf("name %q: %w", name, err)
	}
	if strings.ContainsAny(a.config.Name, "/\x00") {
		return a, fmt.Errorf("name %q: no slash and no zero byte", a.config.Name)
	}
	a.wire = defaultWire
	a.config.Engine = hw.EngineGo
	values, err := url.ParseQuery(query)
	if err != nil {
		return a, err
	}
	for key, list := range values {
		if key != "ip" && len(list) > 1 {
			return a, fmt.Errorf("%s is given %d times", key, len(list))
		}
		v := list[0]
		switch key {
		case "wire":
			a.wire = v
		case "mac":
			var mac net.HardwareAddr
			if mac, err = net.ParseMAC(v); err == nil && (len(mac) != 6 || mac[0]&1 != 0) {
				err = errors.New("want six bytes of a single station's address")
			}
			copy(a.config.MAC[:], mac)
		case "ip":
			for _, s := range list {
				p, e := netip.ParsePrefix(s)
				if e != nil {
					var ip netip.Addr
					if ip, e = netip.ParseAddr(s); e == nil {
						p = netip.PrefixFrom(ip, ip.BitLen())
					}
				}
				if e != nil {
					return a, fmt.Errorf("ip=%s: want an address with its prefix length, as 10.0.0.1/24", s)
				}
				a.config.IPs = append(a.config.IPs, p)
			}
		case "engine":
			switch v {
			case "go":
			case "none":
				a.config.Engine = hw.EngineNone
			case "rtl":
				if !rtl.Built {
					return a, fmt.Errorf("engine=rtl: %w: no simulation of the gateware is built in: %w", vfio.ErrNotSupported, rtl.ErrNotBuilt)
				}
				a.config.Engine = hw.EngineRTL
			default:
				err = errors.New("want go, rtl or none")
			}
		case "seed":
			a.config.Seed, err = strconv.ParseUint(v, 0, 64)
		case "slots":
			a.slots, err = strconv.Atoi(v)
		case "flash":
			if a.flash = v; v == "" {
				err = errors.New("want a file")
			}
		default:
			return a, fmt.Errorf("no parameter %q: there are wire, mac, ip, engine, seed, slots, flash", key)
		}
		if err != nil {
			return a, fmt.Errorf("%s=%s: %w", key, v, err)
		}
	}
	return a, nil
}

// Config reads a card's description, in the form of an address without "soft:".
// wire and slots are not the card's and must not be in it. flash is the file that
// the card's flash is to be in, for softcard.OpenFlash, or "".
func Config(rest string) (cfg softcard.Config, flash string, err error) {
	a, err := parse(rest)
	if err == nil && (a.slots != 0 || a.wire != defaultWire) {
		err = errors.New("wire and slots are not a card's")
	}
	if err != nil {
		return softcard.Config{}, "", err
	}
	return a.config, a.flash, nil
}

// Open makes the card at "soft:"+rest and opens it.
func Open(ctx context.Context, rest string) (vfio.Device, error) {
	addr := "soft:" + rest
	fail := func(err error) (vfio.Device, error) { return nil, &vfio.Error{Addr: addr, Op: "open", Err: err} }
	a, err := parse(rest)
	if err != nil {
		if !errors.Is(err, vfio.ErrNotSupported) {
			err = fmt.Errorf("%w: %w", vfio.ErrInvalid, err)
		}
		return fail(err)
	}
	s, err := newSession(&a)
	if err != nil {
		return fail(err)
	}
	client, server, err := vfiouser.Pair()
	if err != nil {
		s.end()
		return fail(err)
	}
	s.served = make(chan struct{})
	go func() {
		defer close(s.served)
		// What ends it is the client's to report: it sees the same socket.
		_ = vfiouser.Serve(context.Background(), server, s.card)
	}()
	d, err := vfiouser.Client(ctx, client, addr)
	if err != nil {
		_ = client.Close()
		s.end()
		return nil, err
	}
	return &device{Device: d, session: s}, nil
}

// session is an open card.
type session struct {
	card   *softcard.Card
	name   string
	wire   string
	served chan struct{} // closed when the server has ended; nil: not begun
}

// newSession makes a card and joins it.
func newSession(a *address) (*session, error) {
	g := &registry
	g.Lock()
	defer g.Unlock()
	if a.config.Name == "" {
		for a.config.Name == "" || g.names[a.config.Name] {
			a.config.Name = fmt.Sprintf("soft%d", g.number)
			g.number++
		}
	}
	if g.names[a.config.Name] {
		return nil, &vfio.BusyError{PID: os.Getpid()}
	}
	w := g.wires[a.wire]
	if w == nil {
		sw, err := softcard.NewWire(a.slots)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", vfio.ErrInvalid, err)
		}
		w = &wire{wire: sw, slots: a.slots}
	} else if a.slots != 0 && a.slots != w.slots {
		return nil, fmt.Errorf("%w: wire %q has slots=%d", vfio.ErrInvalid, a.wire, w.slots)
	}
	c, err := newCard(a)
	if err != nil {
		return nil, err
	}
	if err := w.wire.Join(c); err != nil {
		_ = closeCard(c)
		return nil, err
	}
	if w.runner == nil {
		w.runner = softcard.NewRunner()
		g.wires[a.wire] = w
	}
	w.cards++
	w.runner.Add(c)
	g.names[a.config.Name] = true
	return &session{card: c, name: a.config.Name, wire: a.wire}, nil
}

// newCard makes a card, with the flash in its file.
func newCard(a *address) (c *softcard.Card, err error) {
	if a.flash != "" {
		if a.config.Flash, err = softcard.OpenFlash(a.flash); err != nil {
			return nil, err
		}
	}
	if c, err = softcard.New(a.config); err != nil {
		if a.config.Flash != nil {
			_ = a.config.Flash.Close()
		}
		return nil, fmt.Errorf("%w: %w", vfio.ErrInvalid, err)
	}
	return c, nil
}

func closeCard(c *softcard.Card) error {
	err := c.Close()
	if f := c.Config().Flash; f != nil {
		err = errors.Join(err, f.Close())
	}
	return err
}

// end takes the card off its wire and frees it, once its server has ended.
func (s *session) end() {
	if s.served != nil {
		<-s.served
	}
	g := &registry
	g.Lock()
	defer g.Unlock()
	w := g.wires[s.wire]
	w.runner.Remove(s.card)
	_ = closeCard(s.card)
	delete(g.names, s.name)
	if w.cards--; w.cards == 0 {
		w.runner.Close()
		delete(g.wires, s.wire)
	}
}

// device is the card's client. Closing it ends the card as well.
type device struct {
	*vfiouser.Device
	session *session
	once    sync.Once
}

// Close closes the device and ends the card.
func (d *device) Close() error {
	err := d.Device.Close()
	d.once.Do(d.session.end)
	return err
}
