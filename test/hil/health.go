package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// lookTime bounds one look at a card: identity, counters, stairs.
const lookTime = 2 * time.Minute

// errIdentity is the cause where a card is not the one that the inventory names.
var errIdentity = errors.New("the card is not the one of the inventory")

// errIll is the cause where a card is not well.
var errIll = errors.New("the card is not well")

// cardInfo is what is read of `rnicctl info`.
type cardInfo struct {
	AnsweredBy string `json:"answered_by"`
	Holder     *struct {
		PID     int    `json:"pid"`
		Program string `json:"program"`
	} `json:"holder"`
	Contract  string `json:"contract"`
	Engine    string `json:"engine"`
	Bitstream string `json:"bitstream_sha256"`
	Port      struct {
		Link string `json:"link"`
	} `json:"port"`
}

// checkIdentity asks a card who it is and compares that with the inventory. Errors: errIdentity, *cannot.
func checkIdentity(ctx context.Context, t *tool, c *card) (*cardInfo, error) {
	a := t.run(ctx, lookTime, "info", "-d", c.Address)
	var said struct{ Error failure }
	if a.code == exitLacks && a.object("rnic.error.v1", &said) && said.Error.Code == "contract-version" {
		return nil, fmt.Errorf("%w: %s", errIdentity, said.Error.Message)
	}
	if err := a.problem(); err != nil {
		return nil, err
	}
	var info cardInfo
	if !a.object("rnic.info.v1", &info) {
		return nil, &cannot{exitFailed, fmt.Errorf("rnicctl info: no rnic.info.v1 in its output")}
	}
	if info.AnsweredBy != "card" {
		pid, program := 0, ""
		if info.Holder != nil {
			pid, program = info.Holder.PID, info.Holder.Program
		}
		return nil, &cannot{exitHeld, fmt.Errorf("%s is held by pid %d %s, which has no lease of it: end that process", c.Address, pid, program)}
	}
	bitstream := info.Bitstream
	if bitstream == "" {
		bitstream = "none"
	}
	var differ []string
	for _, v := range []struct{ what, has, want string }{
		{"bitstream", bitstream, c.Identity.Bitstream},
		{"engine", info.Engine, c.Identity.Engine},
		{"contract", info.Contract, c.Identity.Contract},
	} {
		if v.has != v.want {
			differ = append(differ, fmt.Sprintf("%s is %s, the inventory says %s", v.what, v.has, v.want))
		}
	}
	if differ != nil {
		return &info, fmt.Errorf("%w: %s", errIdentity, strings.Join(differ, "; "))
	}
	return &info, nil
}

// counters are of errors, by name. A card's own begin anew whenever somebody opens it: they are what it
// counted since, with nobody sending anything. Those of the kernel (PCIe AER) go on.
type counters map[string]uint64

// errorCounters are the counters of docs/card.md that say that something is wrong when there is no traffic.
var errorCounters = []string{"rx_drop_malformed", "rx_drop_icrc", "dma_faults", "cq_overflows", "events_lost"}

// function is where the kernel shows a PCI function.
func function(addr string) string { return filepath.Join(host.Sys, "bus/pci/devices", addr) }

// aer reads the kernel's counters of a function's PCIe errors (Documentation/ABI/testing/sysfs-bus-pci-devices-aer).
// Correctable ones are left out: a link has some. A function without the files has no AER.
func aer(addr string) (counters, error) {
	got := counters{}
	for _, kind := range []string{"nonfatal", "fatal"} {
		f, err := os.Open(filepath.Join(function(addr), "aer_dev_"+kind))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		defer f.Close()
		for s := bufio.NewScanner(f); s.Scan(); {
			name, value, ok := strings.Cut(strings.TrimSpace(s.Text()), " ")
			n, err := strconv.ParseUint(value, 10, 64)
			if !ok || err != nil || strings.HasPrefix(name, "TOTAL") {
				continue
			}
			got["aer_"+kind+"_"+name] = n
		}
	}
	return got, nil
}

// readCounters reads both kinds.
func readCounters(ctx context.Context, t *tool, c *card) (counters, error) {
	a := t.run(ctx, lookTime, "stats", "-d", c.Address)
	if err := a.problem(); err != nil {
		return nil, err
	}
	var stats struct{ Counters counters }
	if !a.object("rnic.stats.v1", &stats) {
		return nil, &cannot{exitFailed, errors.New("rnicctl stats: no rnic.stats.v1 in its output")}
	}
	got := counters{}
	if c.pci() {
		var err error
		if got, err = aer(c.Address); err != nil {
			return nil, err
		}
	}
	for _, name := range errorCounters {
		got[name] = stats.Counters[name]
	}
	return got, nil
}

// grown names the counters that are above what they were, sorted. One that was not there counts from 0.
func (now counters) grown(before counters) []string {
	var names []string
	for name, v := range now {
		if v > before[name] {
			names = append(names, fmt.Sprintf("%s grew from %d to %d", name, before[name], v))
		}
	}
	slices.Sort(names)
	return names
}

// stairs is what is read of `rnicctl selftest`.
type stairs struct {
	Passed bool
	Stages []struct {
		Stage, Result, Found, Why, Fix string
		Seconds                        float64
	}
}

// broken is the stage that failed, "" where none did.
func (s *stairs) broken() string {
	for _, g := range s.Stages {
		if g.Result == "fail" {
			return fmt.Sprintf("selftest: %s is broken: %s", g.Stage, g.Why)
		}
	}
	return ""
}

// checkHealth looks whether the card is well: the stairs of selftest, whose first find a function that
// answers with all ones; the link, where there is a peer; and the counters of errors, compared with an earlier look
// if there was one. Opening the card for it resets it. Errors: errIll, *cannot.
func checkHealth(ctx context.Context, t *tool, c *card, before counters) (counters, error) {
	args := []string{"selftest", "-d", c.Address}
	if p := c.peerAddress(); p != "" {
		args = append(args, "--peer", p)
	}
	a := t.run(ctx, lookTime, args...)
	if err := a.problem(); err != nil {
		return nil, err
	}
	var s stairs
	if !a.object("rnic.selftest.v1", &s) {
		return nil, &cannot{exitFailed, errors.New("rnicctl selftest: no rnic.selftest.v1 in its output")}
	}
	if why := s.broken(); why != "" || !s.Passed {
		return nil, fmt.Errorf("%w: %s", errIll, why)
	}
	info, err := checkIdentity(ctx, t, c)
	if err != nil {
		return nil, err
	}
	if c.Peer != "" && info.Port.Link != "active" {
		return nil, fmt.Errorf("%w: the link is %s", errIll, info.Port.Link)
	}
	now, err := readCounters(ctx, t, c)
	if err != nil {
		return nil, err
	}
	if grown := now.grown(before); grown != nil && before != nil {
		return now, fmt.Errorf("%w: %s", errIll, strings.Join(grown, "; "))
	}
	// The card's own were zero when it was opened for this.
	for _, name := range errorCounters {
		if now[name] != 0 {
			return now, fmt.Errorf("%w: %s is %d in a card that was reset and left alone", errIll, name, now[name])
		}
	}
	return now, nil
}
