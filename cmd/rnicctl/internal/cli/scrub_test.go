package cli

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"rnic/driver"
	"rnic/driver/drivertest"
	"rnic/hw"
)

// TestScrubFinds: what --scrub says of a bit flipped in the card's key cache, or in its table with and
// without a line in the cache, asked of the holder: in text, in JSON that fits the schema, and by its exit.
func TestScrubFinds(t *testing.T) {
	sockets(t)
	p := hold(t, "soft:scrubbed")
	c, err := drivertest.On(p.dev)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(err)
	must(p.write(t.Context(), 7)) // the cache holds the keys now
	idle, err := p.pair[0].MR(t.Context(), 4096)
	must(err) // and not this one
	cached := func(mr *driver.MR, bit int) error { return c.FlipCached(t.Context(), mr.LKey(), uint16(bit)) }
	table := func(mr *driver.MR, bit int) error { return c.FlipKey(t.Context(), mr.LKey(), bit) }
	for _, f := range []struct {
		name         string
		mr           *driver.MR
		flip         func(*driver.MR, int) error
		bit          int // of KeyEntry in docs/card.md
		field, where string
		right, wrong uint64
	}{
		{"length in the cache", p.mr, cached, 64, "length", "cache", 8192, 8193},
		{"bound_qpn in the table", p.mr, table, 224, "bound_qpn", "table", 0, 1},
		{"a reserved bit in the table", p.mr, table, 480 - 1, "reserved_0x38", "table", 0, 1 << 31},
		{"a key that no line has", idle, table, 64, "length", "table or shadow", 4096, 4097},
	} {
		t.Run(f.name, func(t *testing.T) {
			must(f.flip(f.mr, f.bit))
			r := rnicctl(t, "keys", "--scrub", "-d", "soft:scrubbed", "--json")
			o := r.object(t, "scrub")
			list := o["mismatches"].([]any)
			if r.code != exitFound || len(list) != 1 || o["answered_by"] != "holder" {
				t.Fatalf("exit %d, %v", r.code, o)
			}
			m := list[0].(map[string]any)
			want := map[string]any{"index": float64(f.mr.LKey() >> 8), "field": f.field, "where": f.where, "shadow": hex64(f.right), "table": hex64(f.right), "cache": hex64(f.right)}
			switch f.where {
			case "cache":
				want["cache"] = hex64(f.wrong)
			case "table":
				want["table"] = hex64(f.wrong)
			default:
				want["table"], want["cache"] = hex64(f.wrong), nil
			}
			for name, v := range want {
				if m[name] != v {
					t.Errorf("%s is %v, want %v", name, m[name], v)
				}
			}
			if (m["cache_line"] == nil) != (f.mr == idle) {
				t.Errorf("cache_line %v", m["cache_line"])
			}
			r = rnicctl(t, "keys", "--scrub", "-d", "soft:scrubbed")
			if r.code != exitFound || r.err == "" || !strings.Contains(r.out, "1 fields differ") {
				t.Errorf("exit %d: %s%s", r.code, r.out, r.err)
			}
			for _, says := range []string{fmt.Sprintf("%#x", f.mr.LKey()>>8), f.field, f.where, hex64(f.right), hex64(f.wrong), m["why"].(string)} {
				if !strings.Contains(r.out, says) {
					t.Errorf("%q is not in\n%s", says, r.out)
				}
			}
			must(f.flip(f.mr, f.bit))
		})
	}
	if r := rnicctl(t, "keys", "--scrub", "-d", "soft:scrubbed").well(t); !strings.Contains(r.out, " 0 fields differ") {
		t.Errorf("flipped back: %s", r.out)
	}
}

// TestScrubOfAFreeCard: a card that nobody holds is opened, which resets it. Its tables are empty then, and the scrub
// says so; of one that kept a key through its reset the scrub finds the key, which no driver wrote.
func TestScrubOfAFreeCard(t *testing.T) {
	sockets(t)
	if r := rnicctl(t, "keys", "--scrub", "-d", "soft:free").well(t); !strings.HasPrefix(r.out, "0 keys, 0 of 256 lines of the key cache in use: 0 fields differ") ||
		!strings.Contains(r.err, "opened the card") {
		t.Errorf("%s%s", r.out, r.err)
	}
	r := rnicctl(t, "keys", "--scrub", "-d", "remembering:free", "--json")
	o := r.object(t, "scrub")
	found := map[string]any{}
	for _, m := range o["mismatches"].([]any) {
		m := m.(map[string]any)
		if m["index"] != float64(7) || m["where"] != driver.ScrubEither || m["shadow"] != "0x0" || m["cache_line"] != nil {
			t.Errorf("%v", m)
		}
		found[m["field"].(string)] = m["table"]
	}
	if want := map[string]any{"length": "0x1000", "tag": "0xa5", "state": hex64(uint64(hw.KeyStateValid))}; r.code != exitFound || o["answered_by"] != "card" || !cmp.Equal(found, want) {
		t.Errorf("exit %d, answered by %v, %v, want %v", r.code, o["answered_by"], found, want)
	}
	if r := rnicctl(t, "keys", "--scrub", "-d", "remembering:free"); r.code != exitFound || !strings.Contains(r.out, "table or shadow") || !strings.Contains(r.out, "3 fields differ") {
		t.Errorf("exit %d: %s%s", r.code, r.out, r.err)
	}
}
