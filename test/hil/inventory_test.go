package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const good = `
state: /tmp/hil
lease_time: 20s
cards:
  left:
    address: 0000:03:00.0
    identity:
      bitstream: 6a09e667f3bcc908bb67ae8584caa73b3c6ef372fe94f82ba54ff53a5f1d36f1
      engine: fpga
      contract: 1.0
    peer: right
    restore: xdma
    suites: [selftest, verify]
    timeouts: {wait: 1h, suite: 2m, answer: 10s}
  right:
    address: vfio-user:/run/cards/b.sock
    identity: {bitstream: none, engine: go, contract: "1.0"}
    peer: 0000:03:00.0
  alone:
    address: soft:x?engine=none
    identity: {bitstream: none, engine: none, contract: "1.10"}
`

func TestHIL_Inventory(t *testing.T) {
	inv, err := parseInventory([]byte(good))
	if err != nil {
		t.Fatal(err)
	}
	left, right, alone := inv.Cards["left"], inv.Cards["right"], inv.Cards["alone"]
	if inv.State != "/tmp/hil" || inv.TTL != 20*time.Second || len(inv.Cards) != 3 {
		t.Errorf("%+v", inv)
	}
	if left.Timeouts != (timeouts{time.Hour, 2 * time.Minute, 10 * time.Second}) || left.Restore != "xdma" || len(left.Suites) != 2 || !left.pci() {
		t.Errorf("left: %+v", left)
	}
	// A number in YAML is text here: 1.10 is not 1.1.
	if left.Identity.Contract != "1.0" || alone.Identity.Contract != "1.10" {
		t.Errorf("contracts %q, %q", left.Identity.Contract, alone.Identity.Contract)
	}
	if left.peer != right || right.peer != left || alone.peer != nil || left.peerAddress() != right.Address || alone.peerAddress() != "" {
		t.Error("peers are not found, by name and by address")
	}
	if alone.Timeouts != (timeouts{defaultWait, defaultSuite, defaultAnswer}) || len(alone.Suites) != len(suites) {
		t.Errorf("alone has not what is not said: %+v", alone)
	}
}

func TestHIL_InventoryRefuses(t *testing.T) {
	for _, c := range []struct{ what, text, want string }{
		{"empty", "", "it is empty"},
		{"no YAML", "cards: [", "did not find expected node content"},
		{"not a mapping", "- 1", "cannot unmarshal"},
		{"two documents", good + "---\nstate: /x\n", "more than one document"},
		{"anchor", "state: &a /tmp\ncards: {}", "line 1: anchors and aliases are not wanted here"},
		{"aliases that grow", "a: &a [1]\nb: [*a, *a]", "line 1: anchors and aliases are not wanted here"},
		{"merge key", "cards:\n  x: &x {address: 'soft:'}\n  y: {<<: *x}", "line 2: anchors and aliases are not wanted here"},
		{"unknown key", "states: /tmp\ncards: {}", "line 1: field states"},
		{"unknown key of a card", with("restore: xdma", "restores: xdma"), "line 12: field restores"},
		{"key twice", with("restore: xdma", "peer: x"), `"peer" already defined at line 11`},
		{"no card", "state: /tmp", "there is no card under cards"},
		{"card without anything", "cards: {x: }", "line 1: cards.x: there is nothing in it"},
		{"relative state", with("state: /tmp/hil", "state: tmp"), `line 2: state: "tmp" is not an absolute path`},
		{"time without unit", with("lease_time: 20s", "lease_time: 20"), "line 3: cannot unmarshal !!int `20` into a time such as 30s"},
		{"no time", with("lease_time: 20s", "lease_time: soon"), "line 3: cannot unmarshal !!str `soon` into a time such as 30s"},
		{"negative time", with("suite: 2m", "suite: -2m"), "line 14: cards.left.timeouts.suite: -2m0s is not between"},
		{"endless time", with("wait: 1h", "wait: 99999h"), "cards.left.timeouts.wait"},
		{"name that is a path", with("  alone:", "  ../x:"), "cards.../x: a name has up to 63 letters"},
		{"long name", with("  alone:", "  "+strings.Repeat("x", 64)+":"), "a name has up to 63 letters"},
		{"no address", with("address: soft:x?engine=none", "suites: []"), `line 19: cards.alone.address: "" is no address`},
		{"option for an address", with("soft:x?engine=none", "--help"), `"--help" is no address`},
		{"control character in an address", with("soft:x?engine=none", `"soft:\e[31m"`), "is no address"},
		{"address twice", with("soft:x?engine=none", "0000:03:00.0"), "cards.left.address: alone has it too"},
		{"digest too short", with("6a09e667", "6a"), "line 8: cards.left.identity.bitstream"},
		{"no digest", with("bitstream: none, engine: go", "engine: go"), `"" is no SHA-256`},
		{"unknown engine", with("engine: fpga", "engine: asic"), `line 9: cards.left.identity.engine: "asic" is not one of`},
		{"no contract", with("contract: 1.0", "contract: v1"), `"v1" is no MAJOR.MINOR`},
		{"unknown peer", with("peer: right", "peer: middle"), `line 11: cards.left.peer: "middle" is neither`},
		{"itself as peer", with("peer: right", "peer: left"), "a card is not its own peer"},
		{"itself as peer, by address", with("peer: right", "peer: 0000:03:00.0"), "a card is not its own peer"},
		{"driver that is a path", with("restore: xdma", "restore: ../../x"), "is no name of a driver"},
		{"driver of what has none", with("address: soft:x?engine=none", "address: soft:x\n    restore: xdma"), "only a PCI function has a kernel driver"},
		{"unknown suite", with("[selftest, verify]", "[selftest, soak]"), `there is no suite "soak"; there are selftest,`},
		{"suite twice", with("[selftest, verify]", "[verify, verify]"), "verify is there twice"},
		{"too long", strings.Repeat("#", maxInventory+1), "longer than"},
		{"too deep", strings.Repeat("[", 200000), "exceeded max depth"},
	} {
		_, err := parseInventory([]byte(c.text))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.what, err, c.want)
		}
		if err != nil && (strings.Contains(err.Error(), "main.") || strings.Contains(err.Error(), "yaml.")) {
			t.Errorf("%s: names Go's types: %v", c.what, err)
		}
	}
}

// with is good with a change.
func with(old, new string) string {
	if !strings.Contains(good, old) {
		panic(old)
	}
	return strings.Replace(good, old, new, 1)
}

func TestHIL_InventoryFileIsNamed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cards.yaml")
	if err := os.WriteFile(file, []byte("cards: {}"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := readInventory(file); err == nil || !strings.Contains(err.Error(), file+": ") {
		t.Errorf("%v does not name the file", err)
	}
}

// FuzzInventory: whatever the file says, it ends in an inventory that keeps its promises or in an error.
func FuzzInventory(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte("cards: {x: {address: 'soft:', peer: y}}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		inv, err := parseInventory(text)
		if err != nil {
			return
		}
		for name, c := range inv.Cards {
			if c.Name != name || strings.ContainsAny(name, "/ \n") || c.Address == "" || strings.ContainsAny(c.Address, "\n\x00") || c.peer == c ||
				c.Timeouts.Wait <= 0 || c.Timeouts.Suite <= 0 || c.Timeouts.Answer <= 0 || inv.TTL <= 0 || !filepath.IsAbs(inv.State) {
				t.Errorf("accepted: %+v", c)
			}
		}
	})
}
