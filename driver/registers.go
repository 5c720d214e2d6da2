package driver

import (
	"fmt"
	"strings"

	"rnic/hw"
)

// FieldValue is a bit field of a register.
type FieldValue struct {
	Name   string
	Hi, Lo int
	Value  uint64
	Text   string // the name of an enum's value, else ""
}

// RegisterValue is a register of the contract with the value it had.
type RegisterValue struct {
	Name   string // BLOCK.NAME, an array's element BLOCK.NAME[i]
	BAR    int
	Offset uint64
	Width  int    // bits
	Access string // ro, rw, wo, w1c
	Value  uint64 // 0 for wo
	Text   string // the name of an enum's value, else ""
	Fields []FieldValue
	Doc    string
}

// String gives name, value and fields.
func (r RegisterValue) String() string {
	s := fmt.Sprintf("%s=0x%0*x", r.Name, r.Width/4, r.Value)
	switch {
	case r.Text != "":
		s += " " + r.Text
	case len(r.Fields) > 0:
		f := make([]string, len(r.Fields))
		for i, v := range r.Fields {
			f[i] = fmt.Sprintf("%s=%d", v.Name, v.Value)
			if v.Text != "" {
				f[i] = v.Name + "=" + v.Text
			}
		}
		s += " {" + strings.Join(f, " ") + "}"
	}
	return s
}

// decode makes the RegisterValue of element i of g.
func decodeRegister(g *hw.Register, i int, v uint64) RegisterValue {
	r := RegisterValue{
		Name: g.FullName(), BAR: g.BAR, Offset: g.Offset + uint64(i)*g.Stride, Width: g.Width, Access: g.Access.String(), Value: v, Doc: g.Doc,
	}
	if g.Count > 0 {
		r.Name += fmt.Sprintf("[%d]", i)
	}
	if g.Text != nil {
		r.Text = g.Text(v)
	}
	for j := range g.Fields {
		f := &g.Fields[j]
		fv := FieldValue{Name: f.Name, Hi: f.Hi, Lo: f.Lo, Value: f.Get(v)}
		if f.Text != nil {
			fv.Text = f.Text(fv.Value)
		}
		r.Fields = append(r.Fields, fv)
	}
	return r
}

// findRegister looks a register up by BLOCK.NAME, or NAME alone where one
// block has it, with [i] behind an array's.
func findRegister(name string) (*hw.Register, int, error) {
	base, index := name, 0
	array := false
	if i := strings.IndexByte(name, '['); i >= 0 {
		if _, err := fmt.Sscanf(name[i:], "[%d]", &index); err != nil || name[i:] != fmt.Sprintf("[%d]", index) {
			return nil, 0, fmt.Errorf("register %q: %w", name, ErrNotFound)
		}
		base, array = name[:i], true
	}
	var found *hw.Register
	for i := range hw.Registers {
		g := &hw.Registers[i]
		if strings.EqualFold(g.FullName(), base) {
			found = g
			break
		}
		if strings.EqualFold(g.Name, base) {
			if found != nil {
				return nil, 0, fmt.Errorf("register %q is in blocks %s and %s; write BLOCK.NAME: %w", name, found.Block, g.Block, ErrInvalid)
			}
			found = g
		}
	}
	switch {
	case found == nil:
		return nil, 0, fmt.Errorf("register %q: %w", name, ErrNotFound)
	case array != (found.Count > 0) || index < 0 || index >= max(found.Count, 1):
		return nil, 0, fmt.Errorf("register %q: %s has %d elements: %w", name, found.FullName(), found.Count, ErrNotFound)
	}
	return found, index, nil
}

func (d *Device) loadRegister(g *hw.Register, i int) (uint64, error) {
	if g.Access == hw.WO {
		return 0, nil
	}
	if g.BAR != hw.BARCtrl {
		return 0, fmt.Errorf("register %s is in BAR %d: %w", g.FullName(), g.BAR, ErrNotSupported)
	}
	off := g.Offset + uint64(i)*g.Stride
	if g.Width == 64 {
		return d.ctrl.Read64(off)
	}
	v, err := d.ctrl.Read32(off)
	return uint64(v), err
}

// ReadRegister reads a register by name: BLOCK.NAME as in docs/card.md, or
// NAME where one block has it; [i] behind it names an array's element. Letter
// case does not matter.
func (d *Device) ReadRegister(name string) (RegisterValue, error) {
	const op = "read register"
	g, i, err := findRegister(name)
	if err != nil {
		return RegisterValue{}, d.fail(op, name, err)
	}
	v, err := d.loadRegister(g, i)
	if err != nil {
		return RegisterValue{}, d.fail(op, name, err)
	}
	return decodeRegister(g, i, v), nil
}

// WriteRegister writes a register by name. It is for bring-up and tests: the
// driver does not learn what was changed behind its back.
func (d *Device) WriteRegister(name string, v uint64) error {
	const op = "write register"
	g, i, err := findRegister(name)
	switch {
	case err != nil:
	case g.Access == hw.RO:
		err = fmt.Errorf("it is read-only: %w", ErrInvalid)
	case g.Width == 32 && v>>32 != 0:
		err = fmt.Errorf("%#x has more than 32 bits: %w", v, ErrInvalid)
	case g.BAR != hw.BARCtrl:
		err = fmt.Errorf("it is in BAR %d: %w", g.BAR, ErrNotSupported)
	case g.Width == 64:
		err = d.ctrl.Write64(g.Offset+uint64(i)*g.Stride, v)
	default:
		err = d.ctrl.Write32(g.Offset+uint64(i)*g.Stride, uint32(v))
	}
	return d.fail(op, name, err)
}
