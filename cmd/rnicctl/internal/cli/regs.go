package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"rnic/cmd/rnicctl/internal/regs"
	"rnic/driver"
)

// registerJSON is a register with its value.
type registerJSON struct {
	Name      string      `json:"name"`
	BAR       int         `json:"bar"`
	Offset    string      `json:"offset"`
	WidthBits int         `json:"width_bits"`
	Access    string      `json:"access"`
	Value     *string     `json:"value"` // null where the register cannot be read
	Text      string      `json:"text"`
	Fields    []fieldJSON `json:"fields"`
}

type fieldJSON struct {
	Name  string `json:"name"`
	Value uint64 `json:"value"`
	Text  string `json:"text"`
}

func (a *app) regs() *cobra.Command {
	var set []string
	var yes bool
	c := &cobra.Command{
		Use: "regs [NAME…]", Short: "Registers by name, decoded",
		Long: `regs shows every register of the contract, or those that the names mean: BLOCK.NAME, NAME, BLOCK, an element
ARRAY[2], or any of these with * and ?. docs/card.md describes each.

--set NAME=VALUE writes a register: a number, an enum's value by name, or fields as FIELD=NUMBER,… over what is
there. It shows before → after, and writes only with --yes. A card that another process holds is not
written.`,
		RunE: func(c *cobra.Command, args []string) error {
			if len(set) > 0 {
				if len(args) > 0 {
					return usagef("leave out one of them", "names to show and --set at once")
				}
				return a.setRegisters(c.Context(), set, yes)
			}
			want, err := regs.Find(args...)
			if err != nil {
				return usagef("`rnicctl regs` shows all names", "%w", err)
			}
			s, err := a.inspect(c.Context())
			if err != nil {
				return err
			}
			defer s.close()
			return a.showRegisters(c.Context(), s, want)
		},
	}
	c.Flags().StringArrayVar(&set, "set", nil, "NAME=VALUE to write (repeatable)")
	c.Flags().BoolVar(&yes, "yes", false, "really write")
	return c
}

func (a *app) showRegisters(ctx context.Context, s *source, want []regs.Element) error {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	names := map[string]bool{}
	for _, e := range want {
		names[e.Name()] = true
	}
	values, err := s.Registers(ctx)
	if err != nil {
		return err
	}
	values = slices.DeleteFunc(values, func(v driver.RegisterValue) bool { return !names[v.Name] })
	list := []registerJSON{}
	t := newTable("NAME", "OFFSET", "VALUE", "FIELDS")
	for i := range values {
		r := describeRegister(&values[i])
		list = append(list, r)
		value := "(write only)"
		if r.Value != nil {
			value = *r.Value
		}
		t.row(r.Name, r.Offset, value, meaning(&values[i]))
	}
	if a.json {
		return a.printJSON(struct {
			origin
			Registers []registerJSON `json:"registers"`
		}{s.origin("rnic.regs.v1"), list})
	}
	return t.write(a)
}

func describeRegister(v *driver.RegisterValue) registerJSON {
	r := registerJSON{Name: v.Name, BAR: v.BAR, Offset: hex64(v.Offset), WidthBits: v.Width, Access: v.Access, Text: v.Text, Fields: []fieldJSON{}}
	if v.Access != "wo" {
		text := value(v)
		r.Value = &text
	}
	for _, f := range v.Fields {
		r.Fields = append(r.Fields, fieldJSON{f.Name, f.Value, f.Text})
	}
	return r
}

func value(v *driver.RegisterValue) string { return fmt.Sprintf("0x%0*x", v.Width/4, v.Value) }

// meaning is a value in words: its enum's name, or its fields.
func meaning(v *driver.RegisterValue) string {
	if v.Text != "" || v.Access == "wo" {
		return v.Text
	}
	var parts []string
	for _, f := range v.Fields {
		if f.Text != "" {
			parts = append(parts, f.Name+"="+f.Text)
		} else {
			parts = append(parts, fmt.Sprintf("%s=%d", f.Name, f.Value))
		}
	}
	return strings.Join(parts, " ")
}

// changeJSON is a register that was written, or would be.
type changeJSON struct {
	Name   string  `json:"name"`
	Before *string `json:"before"` // null where the register cannot be read
	Wrote  string  `json:"wrote"`
	After  *string `json:"after"` // null where the register cannot be read
}

func (a *app) setRegisters(ctx context.Context, set []string, yes bool) error {
	type change struct {
		e    regs.Element
		text string
	}
	var changes []change
	for _, s := range set {
		name, text, ok := strings.Cut(s, "=")
		if !ok {
			return usagef("write --set NAME=VALUE", "--set %q has no value", s)
		}
		e, err := regs.One(name)
		if err != nil {
			return usagef("`rnicctl regs` shows all names", "--set %w", err)
		}
		if !e.Writable() {
			return usagef("choose a register with access rw, wo or w1c", "--set %s: the register is read only", e.Name())
		}
		if _, err := e.Parse(text, 0); err != nil {
			return usagef("docs/card.md has the register's values", "--set %w", err)
		}
		changes = append(changes, change{e, text})
	}
	addr, err := a.lookAddress(ctx)
	if err != nil {
		return err
	}
	dev, err := a.open(ctx, addr)
	if err != nil {
		return err
	}
	defer dev.Close()
	var list []changeJSON
	for _, c := range changes {
		before, err := dev.ReadRegister(c.e.Name())
		if err != nil {
			return err
		}
		v, err := c.e.Parse(c.text, before.Value)
		if err != nil {
			return usagef("docs/card.md has the register's values", "--set %w", err)
		}
		j := changeJSON{Name: c.e.Name(), Wrote: hex64(v)}
		if c.e.Readable() {
			text := value(&before)
			j.Before = &text
		}
		if yes {
			if err := dev.WriteRegister(c.e.Name(), v); err != nil {
				return err
			}
			after, err := dev.ReadRegister(c.e.Name())
			if err != nil {
				return err
			}
			if c.e.Readable() {
				text := value(&after)
				j.After = &text
			}
		}
		list = append(list, j)
	}
	switch {
	case !a.json:
		t := newTable("NAME", "BEFORE", "WRITE", "AFTER")
		for _, c := range list {
			t.row(c.Name, orDash(c.Before), c.Wrote, orDash(c.After))
		}
		err = t.write(a)
	case yes:
		err = a.printJSON(struct {
			Schema  string       `json:"schema"`
			Address string       `json:"address"`
			Changes []changeJSON `json:"changes"`
		}{"rnic.regs_set.v1", addr, list})
	}
	if err == nil && !yes {
		err = usagef("add --yes to write", "--set writes only with --yes")
	}
	return err
}

func orDash(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
