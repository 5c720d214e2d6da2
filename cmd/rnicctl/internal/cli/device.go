package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"rnic/driver"
	"rnic/driver/status"
	"rnic/hw"
	"rnic/vfio/pcidev"
)

// Where a card's address came from, for the errors.
const deviceVariable = "RNIC_DEVICE"

// asked is the address that the user named, "" where none was.
func (a *app) asked() string {
	if a.device != "" {
		return a.device
	}
	return os.Getenv(deviceVariable)
}

// lookAddress is the card of a command that looks: -d, else $RNIC_DEVICE, else the only card present, those
// that other processes hold among them.
func (a *app) lookAddress(ctx context.Context) (string, error) {
	if addr := a.asked(); addr != "" {
		return addr, nil
	}
	cards, err := a.cards(ctx, false)
	if err != nil {
		return "", err
	}
	return only(cards)
}

// useAddress is the card of a command that opens one: -d, else $RNIC_DEVICE, else the only PCI function that is
// a card, else soft, which is an address too.
func (a *app) useAddress(ctx context.Context, soft string) (string, error) {
	if addr := a.asked(); addr != "" {
		return addr, nil
	}
	functions, err := a.functions(false)
	if err != nil {
		return "", err
	}
	if len(functions) == 0 {
		return soft, nil
	}
	var cards []cardInfo
	for _, f := range functions {
		cards = append(cards, cardInfo{Address: f.Address})
	}
	return only(cards)
}

func only(cards []cardInfo) (string, error) {
	switch len(cards) {
	case 0:
		return "", fmt.Errorf("no card is present and none was named: %w", driver.ErrNotFound)
	case 1:
		return cards[0].Address, nil
	}
	var names []string
	for _, c := range cards {
		names = append(names, c.Address)
	}
	return "", usagef("name one with -d or in $"+deviceVariable, "%d cards are present: %s", len(cards), strings.Join(names, ", "))
}

// cardIDs are the IDs of cards: the contract's, and those that the machine's file adds.
func (a *app) cardIDs() ([]pcidev.ID, error) {
	own, err := a.pci.IDs()
	if err != nil {
		return nil, usagef("correct the file, or name another in $"+pcidev.IDsVariable+"; `rnicctl list --help` has its form", "%w", err)
	}
	return append([]pcidev.ID{{Vendor: hw.PCIVendorID, Device: hw.PCIDeviceID}}, own...), nil
}

// functions are the PCI functions that are cards, or all of them.
func (a *app) functions(all bool) ([]pcidev.Function, error) {
	ids, err := a.cardIDs()
	if err != nil {
		return nil, err
	}
	known := func(vendor, device uint16) int {
		return slices.IndexFunc(ids, func(id pcidev.ID) bool { return id.Vendor == vendor && id.Device == device })
	}
	list, err := a.pci.Functions(func(v, d uint16) bool { return all || known(v, d) >= 0 })
	for i := range list {
		if k := known(list[i].Vendor, list[i].Device); k >= 0 && ids[k].Name != "" {
			list[i].Name = ids[k].Name
		}
	}
	return list, err
}

// source is what answers about a card: the process that holds it, or the card that this process opened.
type source struct {
	driver.Inspector
	addr   string
	holder *holderJSON // nil where this process opened the card
	close  func() error
}

// answeredBy is "holder" or "card".
func (s *source) answeredBy() string {
	if s.holder == nil {
		return "card"
	}
	return "holder"
}

// inspect asks the card's holder if there is one, opens the card only if there is none, and says which it did.
func (a *app) inspect(ctx context.Context) (*source, error) {
	addr, err := a.lookAddress(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	client, err := status.Find(ctx, addr)
	switch {
	case err == nil:
		h := client.Holder()
		s := &source{Inspector: client, addr: addr, holder: &holderJSON{h.PID, a.pci.Program(h.PID)}, close: func() error { return nil }}
		a.notef("%s: asked its holder, pid %d %s", addr, s.holder.PID, s.holder.Program)
		return s, nil
	case !errors.Is(err, driver.ErrNotFound):
		return nil, err
	}
	dev, err := a.open(ctx, addr)
	if errors.Is(err, driver.ErrBusy) {
		return nil, &failure{
			exit: exitHeld, code: "held", err: fmt.Errorf("%w; no status socket in %s answers for it", err, driver.StatusDir()),
			fix: "start the process that holds the card again with $XDG_RUNTIME_DIR set to a folder that it may write, and set the same here",
		}
	}
	if err != nil {
		return nil, err
	}
	a.notef("%s: nobody holds it, opened the card", addr)
	return &source{Inspector: dev, addr: addr, close: dev.Close}, nil
}

// open opens a card for this command alone.
func (a *app) open(ctx context.Context, addr string, o ...driver.Option) (*driver.Device, error) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	return driver.Open(ctx, addr, append([]driver.Option{driver.WithLogger(a.logger())}, o...)...)
}

// notef tells people on stderr what is being done; JSON says it in its fields.
func (a *app) notef(format string, args ...any) {
	if !a.json {
		fmt.Fprintln(a.err, printable("# "+fmt.Sprintf(format, args...)))
	}
}

// holderJSON is the process that holds a card.
type holderJSON struct {
	PID     int    `json:"pid"`
	Program string `json:"program"`
}
