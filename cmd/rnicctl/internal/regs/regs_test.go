package regs

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// contract is what the witness, hw/card.yaml itself, says of the registers.
type contract struct {
	Registers []struct {
		Block  string
		Offset uint64
		Regs   []struct {
			Name          string
			Offset        uint64
			Width         int
			Access        string
			Count, Stride uint64
			Bits          []struct {
				Name   string
				Hi, Lo int
			}
		}
	}
}

func load(t *testing.T) contract {
	t.Helper()
	b, err := os.ReadFile("../../../../hw/card.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var c contract
	if err := yaml.Unmarshal(b, &c); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestEveryRegister: each register of card.yaml is there once, at its offset.
func TestEveryRegister(t *testing.T) {
	at := map[string]uint64{}
	for _, e := range All() {
		if _, twice := at[e.Name()]; twice {
			t.Errorf("%s twice", e.Name())
		}
		at[e.Name()] = e.At()
	}
	n := 0
	for _, b := range load(t).Registers {
		for _, r := range b.Regs {
			if r.Count == 0 {
				n++
				if off, ok := at[b.Block+"."+r.Name]; !ok || off != b.Offset+r.Offset {
					t.Errorf("%s.%s: at %#x, %v; card.yaml says %#x", b.Block, r.Name, off, ok, b.Offset+r.Offset)
				}
				continue
			}
			for k := range r.Count {
				n++
				name := fmt.Sprintf("%s.%s[%d]", b.Block, r.Name, k)
				if off, ok := at[name]; !ok || off != b.Offset+r.Offset+k*r.Stride {
					t.Errorf("%s: at %#x, %v", name, off, ok)
				}
			}
		}
	}
	if n != len(at) || n < 100 {
		t.Errorf("%d registers, card.yaml has %d", len(at), n)
	}
}

func TestFind(t *testing.T) {
	for _, c := range []struct {
		pattern string
		first   string
		n       int
	}{
		{"MAGIC", "IDENT.MAGIC", 1},
		{"ident.magic", "IDENT.MAGIC", 1},
		{"KICK", "KICK.KICK", 1},
		{"PORT", "PORT.MAC_LOW", 9}, // the block, GID0 element by element
		{"DEBUG.PORT_*", "DEBUG.PORT_MODE", 4},
		{"CARD_NAME", "IDENT.CARD_NAME[0]", 8},
		{"IDENT.CARD_NAME[3]", "IDENT.CARD_NAME[3]", 1},
		{"card_name[7]", "IDENT.CARD_NAME[7]", 1},
	} {
		got, err := Find(c.pattern)
		if err != nil || len(got) != c.n || got[0].Name() != c.first {
			t.Errorf("%s: %d registers, %v; want %d from %s", c.pattern, len(got), err, c.n, c.first)
		}
	}
	for _, bad := range []string{"NOPE", "IDENT.MAGICAL", "CARD_NAME[8]", "MAGIC[0]", "IDENT[0]", "IDENT.[", "COUNTERS.TX_FRAM"} {
		if got, err := Find(bad); err == nil {
			t.Errorf("%s: found %d registers", bad, len(got))
		}
	}
	if _, err := Find("COUNTERS.TX_FRAM"); !strings.Contains(err.Error(), "COUNTERS.TX_FRAMES") {
		t.Errorf("error %q does not name what is near", err)
	}
	if _, err := One("CARD_NAME"); err == nil {
		t.Error("One took an array of 8")
	}
}

func TestParse(t *testing.T) {
	for _, c := range []struct {
		name, text string
		now, want  uint64
		bad        bool
	}{
		{"SCRATCH", "0xdeadbeef", 0, 0xdeadbeef, false},
		{"SCRATCH", "10", 0, 10, false},
		{"SCRATCH", "0x100000000", 0, 0, true},
		{"SCRATCH_WIDE", "0x100000000", 0, 0x100000000, false},
		{"SCRATCH", "STEPPED", 0, 0, true},
		{"CLOCK_MODE", "stepped", 0, 1, false},
		{"CLOCK_MODE", "sideways", 0, 0, true},
		{"PORT_CORRUPT", "XOR=0xff", 0x12, 0x00ff0012, false},
		{"PORT_CORRUPT", "xor=1,offset=2", 0xffffffff, 0xff010002, false},
		{"PORT_CORRUPT", "XOR=256", 0, 0, true},
		{"PORT_CORRUPT", "NOPE=1", 0, 0, true},
		{"PORT_CORRUPT", "XOR", 0, 0, true},
	} {
		e, err := One(c.name)
		if err != nil {
			t.Fatal(err)
		}
		got, err := e.Parse(c.text, c.now)
		if (err != nil) != c.bad || got != c.want {
			t.Errorf("%s=%s: %#x, %v; want %#x, error %v", c.name, c.text, got, err, c.want, c.bad)
		}
	}
}
