package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
)

// schema names the form of the JSON objects (docs/json/sim.schema.json).
const schema = "rnic.sim.v1"

// event is a line of output.
type event struct {
	Schema    string     `json:"schema"`
	Event     string     `json:"event"` // ready, attached, detached, stopped
	WireSlots int        `json:"wire_slots,omitempty"`
	Cards     []cardLine `json:"cards,omitempty"` // of ready
	Card      string     `json:"card,omitempty"`
	Error     string     `json:"error,omitempty"`
}

type cardLine struct {
	Name    string   `json:"name"`
	Address string   `json:"address"`
	Engine  string   `json:"engine"`
	MAC     string   `json:"mac"`
	IPs     []string `json:"ips"`
}

// printer writes events, one a line.
type printer struct {
	mu   sync.Mutex
	w    io.Writer
	json bool
}

func (p *printer) ready(cards []*served, slots int) {
	e := event{Event: "ready", WireSlots: slots}
	for _, s := range cards {
		cfg := s.Config()
		line := cardLine{Name: cfg.Name, Address: "vfio-user:" + s.path, Engine: engineName(cfg.Engine), MAC: net.HardwareAddr(cfg.MAC[:]).String()}
		for _, ip := range cfg.IPs {
			line.IPs = append(line.IPs, ip.String())
		}
		e.Cards = append(e.Cards, line)
	}
	p.event(e)
}

func (p *printer) event(e event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.json {
		e.Schema = schema
		_ = json.NewEncoder(p.w).Encode(e) // nobody listens any more: no reason to stop the cards
		return
	}
	switch e.Event {
	case "ready":
		fmt.Fprintf(p.w, "cards: %d, joined by a wire of %d slots; end with Ctrl-C or SIGTERM\n", len(e.Cards), e.WireSlots)
		for _, c := range e.Cards {
			fmt.Fprintf(p.w, "%-8s %s  engine %s  mac %s  ip %s\n", c.Name, c.Address, c.Engine, c.MAC, strings.Join(c.IPs, " "))
		}
	case "stopped":
		fmt.Fprintln(p.w, "stopped")
	default:
		fmt.Fprintf(p.w, "%-8s %s", e.Card, e.Event)
		if e.Error != "" {
			fmt.Fprintf(p.w, ": %s", e.Error)
		}
		fmt.Fprintln(p.w)
	}
}
