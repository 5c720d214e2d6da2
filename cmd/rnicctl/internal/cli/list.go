package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"rnic/driver/status"
	"rnic/hw"
	"rnic/vfio/pcidev"
)

// cardInfo is a line of `list`.
type cardInfo struct {
	Address  string       `json:"address"`
	ID       string       `json:"id"` // vendor:device
	Name     string       `json:"name"`
	Driver   string       `json:"driver"`
	Group    *int         `json:"group"`     // IOMMU group
	NUMANode *int         `json:"numa_node"` // null where the platform does not say
	Link     string       `json:"link"`
	State    pcidev.State `json:"state"`
	Holder   *holderJSON  `json:"holder"`
}

// list shows the cards of this machine.
func (a *app) list() *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use: "list", Short: "Cards of this machine, and who holds them", Args: cobra.NoArgs,
		Long: `list shows the PCI functions that are cards, and the cards that processes on this machine hold
and answer for at a status socket, soft cards among them.

STATE: unbound (no driver has it), kernel (another driver than vfio-pci has it), ready (free for a program),
held (a process has it), broken (it does not answer), quarantined (put aside: /run/rnic/quarantine says why).

Cards are the functions with the contract's ID, and those whose IDs are in /etc/rnic/pci.ids, or in the file that
$RNIC_PCI_IDS names: a line each, VVVV:DDDD NAME.`,
		RunE: func(c *cobra.Command, _ []string) error {
			cards, err := a.cards(c.Context(), all)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(struct {
					Schema string     `json:"schema"`
					Cards  []cardInfo `json:"cards"`
				}{"rnic.list.v1", cards})
			}
			t := newTable("ADDRESS", "ID", "NAME", "DRIVER", "GROUP", "NUMA", "LINK", "STATE", "HOLDER")
			for _, c := range cards {
				holder := ""
				if c.Holder != nil {
					holder = strings.TrimSpace(fmt.Sprintf("%d %s", c.Holder.PID, c.Holder.Program))
				}
				t.row(c.Address, c.ID, c.Name, c.Driver, optional(c.Group), optional(c.NUMANode), c.Link, c.State, holder)
			}
			return t.write(a)
		},
	}
	c.Flags().BoolVar(&all, "all", false, "every PCI function, not the cards alone")
	return c
}

func optional(n *int) string {
	if n == nil {
		return ""
	}
	return strconv.Itoa(*n)
}

func known(n int) *int {
	if n < 0 {
		return nil
	}
	return &n
}

// cards lists the machine's cards: PCI functions first, then those that only a status socket tells of.
func (a *app) cards(ctx context.Context, all bool) ([]cardInfo, error) {
	functions, err := a.functions(all)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	holders, err := status.List(ctx)
	if err != nil {
		return nil, err
	}
	cards := []cardInfo{}
	at := map[string]int{}
	for _, f := range functions {
		c := cardInfo{
			Address: f.Address, ID: fmt.Sprintf("%04x:%04x", f.Vendor, f.Device), Name: f.Name, Driver: f.Driver,
			Group: known(f.Group), NUMANode: known(f.NUMANode), Link: f.Link.String(), State: f.State,
		}
		if f.PID != 0 {
			c.Holder = &holderJSON{f.PID, a.pci.Program(f.PID)}
		}
		at[f.Address] = len(cards)
		cards = append(cards, c)
	}
	for _, client := range holders {
		h := client.Holder()
		i, ok := at[h.Addr]
		if !ok {
			i = len(cards)
			// Whatever it is, it answered to the contract: the IDs are those of its function.
			cards = append(cards, cardInfo{Address: h.Addr, ID: fmt.Sprintf("%04x:%04x", hw.PCIVendorID, hw.PCIDeviceID)})
		}
		c := &cards[i]
		c.Name, c.State, c.Holder = h.Attr.Name, pcidev.Held, &holderJSON{h.PID, a.pci.Program(h.PID)}
		if snap, err := client.Snapshot(ctx); err == nil && c.Link == "" {
			c.Link = fmt.Sprintf("%s %d Gb/s", strings.ToLower(snap.Port.Link.String()), snap.Port.SpeedMbps/1000)
		}
	}
	return cards, nil
}
