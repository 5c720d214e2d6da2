package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"rnic/vfio/pcidev"
)

// host is where functions that were put aside are known to rnicctl; a test has its own.
var host = pcidev.Host

// quarantineOf is where a card is put aside, and its name there: a PCI function for rnicctl as well and until the next
// boot, a card at another address beside the leases.
func (inv *inventory) quarantineOf(addr string) (pcidev.Tree, string) {
	if isPCI(addr) {
		return host, addr
	}
	return pcidev.Tree{Run: inv.State}, fileName(addr)
}

// quarantined gives why a card was put aside, nil where it was not.
func (inv *inventory) quarantined(addr string) *pcidev.Quarantine {
	tree, name := inv.quarantineOf(addr)
	return tree.Quarantine(name)
}

// quarantine puts a card aside.
func (inv *inventory) quarantine(addr, reason string, by process) error {
	tree, name := inv.quarantineOf(addr)
	return tree.SetQuarantine(name, &pcidev.Quarantine{Reason: reason, By: "hil, " + by.String(), Since: time.Now()})
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
		tree, name := inv.quarantineOf(inv.Cards[n].Address)
		if err := tree.SetQuarantine(name, nil); err != nil {
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
