package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"
)

// runFolder is where `rnicctl list` looks for functions that were put aside; a test has its own.
var runFolder = "/run/rnic"

// quarantine is why a card was put aside.
type quarantine struct {
	Reason string    `json:"reason"` // a sentence for people
	By     string    `json:"by"`
	Since  time.Time `json:"since"`
}

// quarantineFile is the file that puts a card aside: of a PCI function the one that rnicctl heeds, until the next boot;
// of another address one beside the leases.
func (inv *inventory) quarantineFile(addr string) string {
	if isPCI(addr) {
		return filepath.Join(runFolder, "quarantine", addr+".json")
	}
	return filepath.Join(inv.State, "quarantine", fileName(addr)+".json")
}

// quarantined gives why a card was put aside, nil where it was not. A file that cannot be read puts it
// aside all the same.
func (inv *inventory) quarantined(addr string) *quarantine {
	text, err := os.ReadFile(inv.quarantineFile(addr))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var q quarantine
	if err == nil {
		err = json.Unmarshal(text, &q)
	}
	if err != nil {
		q = quarantine{Reason: fmt.Sprintf("%s cannot be read: %v", inv.quarantineFile(addr), err)}
	}
	return &q
}

// quarantine puts a card aside.
func (inv *inventory) quarantine(addr, reason string, by process) error {
	file := inv.quarantineFile(addr)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return writeWhole(file, quarantine{Reason: reason, By: "hil, " + by.String(), Since: time.Now()})
}

// release lifts the quarantine of cards.
func release(inv *inventory, names []string, out io.Writer) error {
	if len(names) == 0 {
		return usagef("name the cards to release")
	}
	for _, n := range names {
		if inv.Cards[n] == nil {
			return usagef("there is no card %q in the inventory", n)
		}
	}
	for _, n := range names {
		q := inv.quarantined(inv.Cards[n].Address)
		if q == nil {
			fmt.Fprintf(out, "%s was not quarantined\n", n)
			continue
		}
		if err := os.Remove(inv.quarantineFile(inv.Cards[n].Address)); err != nil {
			return err
		}
		fmt.Fprintf(out, "%s was quarantined since %s: %s\n", n, q.Since.Format(time.RFC3339), q.Reason)
	}
	return nil
}

// printStatus prints what each card is doing.
func printStatus(inv *inventory, out io.Writer) error {
	self, err := thisProcess()
	if err != nil {
		return err
	}
	ls := inv.leases(self)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "CARD\tADDRESS\tSTATE\tLEASE\tLAST\tWHY")
	for _, name := range inv.names() {
		c := inv.Cards[name]
		state, holder, result, why := "free", "-", "-", ""
		if last := inv.last(name); last != nil {
			result, why = last.Result+" "+last.Ended.Format(time.RFC3339), last.Why
		}
		l, err := ls.look(c.Address)
		if err != nil {
			return err
		}
		if l != nil {
			free, stale := ls.free(l)
			holder = fmt.Sprintf("%s until %s", l.Holder, l.Until.Format(time.RFC3339))
			switch {
			case free:
				holder += ", expired"
			case stale:
				state, holder = "leased", holder+", expired and not given back"
			default:
				state = "leased"
			}
		}
		if q := inv.quarantined(c.Address); q != nil {
			state, why = "quarantined", q.Reason
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", name, c.Address, state, holder, result, short(why))
	}
	return w.Flush()
}
