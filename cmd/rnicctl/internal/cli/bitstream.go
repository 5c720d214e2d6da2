package cli

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"rnic/driver"
	"rnic/hw/image"
	"rnic/vfio/pcidev"
)

// slotJSON is a slot of a card's flash.
type slotJSON struct {
	Slot       int    `json:"slot"`
	State      string `json:"state"`
	Running    bool   `json:"running"`
	Generation uint32 `json:"generation"`
	Bytes      uint32 `json:"bytes"`
	SHA256     string `json:"sha256"`
	Part       string `json:"part"`
	Contract   string `json:"contract"`
}

// flashJSON is a card's flash window.
type flashJSON struct {
	Address string     `json:"address"`
	Part    string     `json:"part"`
	Room    int        `json:"room_bytes"` // for an image
	Slots   []slotJSON `json:"slots"`
}

// checkJSON is a thing that image, manifest and card have to agree in.
type checkJSON struct {
	Check  string `json:"check"`
	Result string `json:"result"`
	Value  string `json:"value"`
	Want   string `json:"want"`
}

func (a *app) bitstream() *cobra.Command {
	c := &cobra.Command{
		Use: "bitstream", Short: "Images of a card: what they are, and loading them",
		Long: `bitstream works on images of a card's gateware. An image has a manifest beside it, FILE.json
(docs/json/manifest.schema.json); without one that agrees with it, it is not loaded.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(a.bitstreamInfo(), a.bitstreamVerify(), a.bitstreamLoad())
	return c
}

func (a *app) bitstreamInfo() *cobra.Command {
	return &cobra.Command{
		Use: "info FILE", Short: "An image's manifest, and the slots of a card's flash", Args: cobra.ExactArgs(1),
		Long: `info shows what an image's manifest says, and with -d or $RNIC_DEVICE the images in the card's flash.
It opens the card's flash window, so nobody else may hold the card.`,
		RunE: func(c *cobra.Command, args []string) error {
			m, err := image.OpenManifest(args[0] + image.ManifestSuffix)
			if err != nil {
				return noManifest(err)
			}
			var f *flashJSON
			if addr := a.asked(); addr != "" {
				flash, err := a.openFlash(c.Context(), addr)
				if err != nil {
					return err
				}
				defer flash.Close()
				if f, err = describeFlash(flash); err != nil {
					return err
				}
			}
			return a.showImage(args[0], m, f)
		},
	}
}

func (a *app) openFlash(ctx context.Context, addr string) (*driver.Flash, error) {
	f, err := driver.OpenFlash(ctx, addr)
	if errors.Is(err, driver.ErrNotSupported) {
		return nil, &failure{exit: exitLacks, code: "not-supported", err: err, fix: "load a board without a flash window by JTAG: rnicctl bitstream load --jtag FILE"}
	}
	return f, err
}

func describeFlash(f *driver.Flash) (*flashJSON, error) {
	slots, err := image.ReadSlots(f, func(int) {})
	if err != nil {
		return nil, err
	}
	j := &flashJSON{Address: f.Addr(), Part: f.Identity().Part, Room: f.Geometry().Room(), Slots: []slotJSON{}}
	for _, s := range slots {
		l := slotJSON{Slot: s.Number, State: string(s.State), Running: uint32(s.Number) == f.Started()}
		if h := &s.Header; s.State == image.Whole {
			l.Generation, l.Bytes, l.SHA256, l.Part = h.Generation, h.Length, hex.EncodeToString(h.Digest[:]), image.Part(h)
			l.Contract = fmt.Sprintf("%d.%d", h.ContractMajor, h.ContractMinor)
		}
		j.Slots = append(j.Slots, l)
	}
	return j, nil
}

func (a *app) showImage(file string, m *image.Manifest, f *flashJSON) error {
	if a.json {
		return a.printJSON(struct {
			Schema   string          `json:"schema"`
			File     string          `json:"file"`
			Manifest *image.Manifest `json:"manifest"`
			Flash    *flashJSON      `json:"flash"`
		}{"rnic.bitstream_info.v1", file, m, f})
	}
	for _, r := range [][2]string{
		{"image", file}, {"name", m.Name}, {"bytes", fmt.Sprint(m.Bytes)}, {"sha256", m.SHA256}, {"part", m.Part}, {"contract", m.Contract},
		{"capabilities", strings.Join(m.Capabilities, " ")}, {"built", m.Build.Time}, {"tools", strings.Join(m.Build.Tools, ", ")},
		{"inputs", fmt.Sprintf("%d files", len(m.Build.Inputs))},
		{"timing", fmt.Sprintf("%.1f MHz reached, %.1f MHz wanted, slack %+.2f ns", m.Timing.FmaxMHz, m.Timing.TargetMHz, m.Timing.SlackNs)},
	} {
		if r[1] == "" {
			r[1] = "-"
		}
		if err := a.line("%-13s %s", r[0], printable(r[1])); err != nil {
			return err
		}
	}
	if f == nil {
		return nil
	}
	if err := a.line("\n%s: part %s, room for %d bytes a slot", f.Address, printable(f.Part), f.Room); err != nil {
		return err
	}
	t := newTable("SLOT", "STATE", "RUNS", "GENERATION", "BYTES", "SHA256", "PART", "CONTRACT")
	for _, s := range f.Slots {
		runs, generation, length := "", "", ""
		if s.Running {
			runs = "yes"
		}
		if s.State == string(image.Whole) {
			generation, length = fmt.Sprint(s.Generation), fmt.Sprint(s.Bytes)
		}
		t.row(s.Slot, s.State, runs, generation, length, s.SHA256, s.Part, s.Contract)
	}
	return t.write(a)
}

func noManifest(err error) error {
	if errors.Is(err, image.ErrManifest) {
		return usagef("put the manifest that was made with the image beside it, as FILE"+image.ManifestSuffix, "%w", err)
	}
	return err
}

func (a *app) bitstreamVerify() *cobra.Command {
	return &cobra.Command{
		Use: "verify FILE", Short: "Compare an image with its manifest, and with the card that runs it", Args: cobra.ExactArgs(1),
		Long: `verify compares an image with its manifest, and with -d or $RNIC_DEVICE the manifest with the card's
identity: is this the image that the card runs. It opens the card's flash window, so nobody else may hold the card.`,
		RunE: func(c *cobra.Command, args []string) error {
			im, err := image.Open(args[0])
			var differs *image.Mismatch
			if errors.As(err, &differs) {
				return a.showChecks(args[0], "", []checkJSON{check(differs.What, err)})
			}
			if err != nil {
				return noManifest(err)
			}
			checks, addr := []checkJSON{{"image", "ok", im.Manifest.SHA256, im.Manifest.SHA256}}, a.asked()
			checks = append(checks, check("contract", im.Manifest.For(im.Manifest.Part)))
			if addr != "" {
				f, err := a.openFlash(c.Context(), addr)
				if err != nil {
					return err
				}
				defer f.Close()
				id := f.Identity()
				checks = append(checks, check("part", im.Manifest.For(id.Part)), check("running", im.Manifest.Agrees(id)))
			}
			return a.showChecks(args[0], addr, checks)
		},
	}
}

// check is what came of a comparison.
func check(what string, err error) checkJSON {
	c := checkJSON{Check: what, Result: "ok"}
	if differs := (*image.Mismatch)(nil); errors.As(err, &differs) {
		c.Result, c.Value, c.Want = "fail", differs.What+" "+differs.Have, differs.Want
	} else if err != nil {
		c.Result, c.Value = "fail", err.Error()
	}
	return c
}

func (a *app) showChecks(file, addr string, checks []checkJSON) error {
	t, bad := newTable("CHECK", "RESULT", "VALUE", "WANT"), false
	for _, c := range checks {
		bad = bad || c.Result != "ok"
		t.row(c.Check, c.Result, c.Value, c.Want)
	}
	var err error
	if a.json {
		err = a.printJSON(struct {
			Schema  string      `json:"schema"`
			File    string      `json:"file"`
			Address string      `json:"address"`
			Well    bool        `json:"well"`
			Checks  []checkJSON `json:"checks"`
		}{"rnic.bitstream_verify.v1", file, addr, !bad, checks})
	} else {
		err = t.write(a)
	}
	if err == nil && bad {
		return errFound
	}
	return err
}

// loadJSON is what a load did.
type loadJSON struct {
	Schema     string     `json:"schema"`
	File       string     `json:"file"`
	Address    string     `json:"address"`
	SHA256     string     `json:"sha256"`
	By         string     `json:"by"` // flash, jtag
	Slot       *int       `json:"slot"`
	Generation uint32     `json:"generation"`
	DryRun     bool       `json:"dry_run"`
	Running    bool       `json:"running"` // the card says that it runs it
	Reset      []rungJSON `json:"reset"`
}

// loading is the options of load.
type loading struct {
	slot         int
	dryRun, yes  bool
	jtag         bool
	board, cable string
}

func (a *app) bitstreamLoad() *cobra.Command {
	var o loading
	c := &cobra.Command{
		Use: "load FILE", Short: "Write an image into a card's flash and start it", Args: cobra.ExactArgs(1),
		Long: `load writes an image into the card's flash, verifies it, and has the card start from it. The image must agree
with its manifest, and both with the card's part and this program's contract.

One slot is written while the one that the card runs stays: whenever power is lost or load is interrupted, the card
starts, on the old image or the new one. Afterwards a PCI function is reset by the ladder of rnicctl reset, and the
card is asked what it runs.

With --jtag the program openFPGALoader writes the flash of a board and verifies it. It has no slots, and does not ask
the board what it is: the part is the manifest's word and the board that is named.`,
		RunE: func(c *cobra.Command, args []string) error {
			im, err := image.Open(args[0])
			if err != nil {
				return noManifest(err)
			}
			if o.jtag {
				return a.loadJTAG(c.Context(), args[0], im, &o)
			}
			return a.loadFlash(c.Context(), args[0], im, &o)
		},
	}
	f := c.Flags()
	f.IntVar(&o.slot, "slot", image.AnySlot, "slot to write; by default one that the card does not run")
	f.BoolVar(&o.dryRun, "dry-run", false, "check everything, write nothing")
	f.BoolVar(&o.yes, "yes", false, "really write")
	f.BoolVar(&o.jtag, "jtag", false, "write by JTAG, with openFPGALoader")
	f.StringVar(&o.board, "board", "", "with --jtag, the board as openFPGALoader names it; by default the manifest's")
	f.StringVar(&o.cable, "cable", "", "with --jtag, the cable as openFPGALoader names it; by default the board's own")
	return c
}

// notAgreed is a load without --yes.
func notAgreed(what string) error {
	return usagef("add --yes to write; --dry-run only checks", "%s would be written, and is only with --yes", what)
}

func (a *app) loadFlash(ctx context.Context, file string, im *image.Image, o *loading) error {
	addr, err := a.lookAddress(ctx)
	if err != nil {
		return err
	}
	flash, err := a.openFlash(ctx, addr)
	if err != nil {
		return err
	}
	defer func() { flash.Close() }()
	plan, err := image.Prepare(flash, flash.Started(), o.slot, im, flash.Identity().Part)
	if errors.Is(err, image.ErrSlot) {
		return usagef("`rnicctl bitstream info` shows the slots", "%w", err)
	}
	if err != nil {
		return err
	}
	j := loadJSON{
		Schema: "rnic.bitstream_load.v1", File: file, Address: addr, SHA256: im.Manifest.SHA256, By: "flash", Slot: &plan.Slot,
		Generation: plan.Generation, DryRun: o.dryRun, Reset: []rungJSON{},
	}
	if o.dryRun {
		return a.showLoad(&j)
	}
	if !o.yes {
		return notAgreed(fmt.Sprintf("slot %d of %s, which is %s", plan.Slot, addr, plan.Slots[plan.Slot].State))
	}
	p := progress{a: a}
	err = plan.Load(ctx, flash, im, p.at)
	p.end()
	if err != nil {
		return err
	}
	if err := flash.Restart(); err != nil {
		return err
	}
	if err := flash.Close(); err != nil {
		return err
	}
	return a.restart(ctx, &j, im, plan, &flash)
}

// restart climbs the ladder until the card answers and says that it runs the new image.
func (a *app) restart(ctx context.Context, j *loadJSON, im *image.Image, plan *image.Plan, flash **driver.Flash) error {
	_, notPCI := pcidev.ParseAddress(j.Address)
	rungs := pcidev.Rungs
	if notPCI != nil {
		rungs = rungs[:1] // opened again, it is reset
	}
	var all []error
	for _, rung := range rungs {
		if notPCI == nil {
			within, cancel := context.WithTimeout(ctx, a.timeout*4)
			tries, err := a.pci.Reset(within, j.Address, rung, rung, false)
			cancel()
			for _, t := range tries {
				if t.Rung == rung {
					why := ""
					if t.Err != nil {
						why = t.Err.Error()
					}
					j.Reset = append(j.Reset, rungJSON{t.Rung, t.Outcome, t.How, t.Took.Seconds(), why})
				}
			}
			if err != nil {
				all = append(all, fmt.Errorf("reset by %s: %w", rung, err))
				continue
			}
		}
		again, err := driver.OpenFlash(ctx, j.Address)
		if err == nil {
			if err = errors.Join(plan.Running(again.Started()), im.Manifest.Agrees(again.Identity())); err == nil {
				*flash, j.Running = again, true
				return a.showLoad(j)
			}
			_ = again.Close()
		}
		all = append(all, err)
	}
	if err := a.showLoad(j); err != nil {
		return err
	}
	return &failure{
		exit: exitFound, code: "image-not-running", err: fmt.Errorf("the image is in slot %d and the card does not run it: %w", plan.Slot, errors.Join(all...)),
		fix: "power the machine off and on; `rnicctl bitstream verify FILE` says what the card runs then",
	}
}

func (a *app) showLoad(j *loadJSON) error {
	if a.json {
		return a.printJSON(j)
	}
	where := "by JTAG"
	if j.Slot != nil {
		where = fmt.Sprintf("slot %d, generation %d", *j.Slot, j.Generation)
	}
	what := "written and verified"
	switch {
	case j.DryRun:
		what = "would be written; nothing was"
	case j.Running:
		what = "written and verified; the card runs it"
	}
	if err := a.line("%s %s: %s, %s", j.File, j.SHA256[:16], where, what); err != nil {
		return err
	}
	for _, r := range j.Reset {
		if err := a.line("reset by %s: %s %s", r.Rung, r.Result, printable(r.Why)); err != nil {
			return err
		}
	}
	return nil
}
