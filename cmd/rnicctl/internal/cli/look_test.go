package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rnic/driver"
	"rnic/vfio/pcidev"
)

// TestTables: each table, asked of the holder and of a card that nobody holds, fits its schema and has the
// columns that docs/rnicctl.md names.
func TestTables(t *testing.T) {
	sockets(t)
	p := hold(t, "soft:tables")
	if err := p.write(t.Context(), 7); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ args, schema, head string }{
		{"info", "info", "address "},
		{"regs", "regs", "NAME OFFSET VALUE FIELDS"},
		{"regs IDENT.*", "regs", "NAME OFFSET VALUE FIELDS"},
		{"qp", "qp", "QPN TYPE STATE PD MTU DEST_QPN DEST_GID SQ RQ TX_PACKETS TX_BYTES RX_PACKETS LOOKUPS RETRANSMITS ERROR"},
		{"keys", "keys", "INDEX KEY STATE TYPE PD ACCESS BASE LENGTH IOVA"},
		{"keys --scrub", "scrub", "2 keys"},
		{"stats", "stats", "COUNTER VALUE"},
	} {
		for _, addr := range []string{"soft:tables", "soft:nobody"} {
			args := append(strings.Fields(c.args), "-d", addr)
			r := rnicctl(t, append(args, "--json")...).well(t)
			o := r.object(t, c.schema)
			by, says := "holder", fmt.Sprintf("asked its holder, pid %d", os.Getpid())
			if addr == "soft:nobody" {
				by, says = "card", "opened the card"
			}
			if o["address"] != addr || o["answered_by"] != by || (o["holder"] == nil) != (by == "card") {
				t.Errorf("%s: address %v, answered by %v, holder %v", args, o["address"], o["answered_by"], o["holder"])
			}
			r = rnicctl(t, args...).well(t)
			first, _, _ := strings.Cut(r.out, "\n")
			if head := strings.Join(strings.Fields(first), " "); by == "holder" && !strings.HasPrefix(head+" ", c.head) {
				t.Errorf("%s: first line %q, want %q", args, head, c.head)
			}
			if !strings.Contains(r.err, says) {
				t.Errorf("%s: stderr %q does not say %q", args, r.err, says)
			}
		}
	}
}

// TestQPAndKeys: the tables show what the program made.
func TestQPAndKeys(t *testing.T) {
	sockets(t)
	p := hold(t, "soft:shown")
	if err := p.write(t.Context(), 7); err != nil {
		t.Fatal(err)
	}
	t.Setenv(deviceVariable, "soft:shown") // stands for -d
	a, b := p.pair[0].QP.Number(), p.pair[1].QP.Number()
	qps := map[float64]map[string]any{}
	for _, q := range rnicctl(t, "qp", "--json").well(t).object(t, "qp")["qps"].([]any) {
		q := q.(map[string]any)
		qps[q["qpn"].(float64)] = q
	}
	from := qps[float64(a)]
	if len(qps) != 2 || from == nil || qps[float64(b)] == nil {
		t.Fatalf("QPs %v, want %d and %d", qps, a, b)
	}
	stats := from["stats"].(map[string]any)
	// 5,000 bytes at a path MTU of 4,096: two packets, the first of one segment, the other of two: lookups of
	// segments 0 and 0, 1 (rule G9). The receiver answers once.
	if from["state"] != "RTS" || from["dest_qpn"] != float64(b) || from["mtu_bytes"] != 4096.0 ||
		stats["tx_packets"] != 2.0 || stats["lookups"] != 3.0 || stats["rx_packets"] != 1.0 || stats["messages"] != 1.0 || stats["gathers_multi"] != 1.0 {
		t.Errorf("QP %v", from)
	}
	only := rnicctl(t, "qp", "--json", "--qp", fmt.Sprint(b)).well(t).object(t, "qp")["qps"].([]any)
	if len(only) != 1 || only[0].(map[string]any)["qpn"] != float64(b) {
		t.Errorf("--qp: %v", only)
	}
	if none := rnicctl(t, "qp", "--json", "--grep", "^UD$").well(t).object(t, "qp")["qps"].([]any); len(none) != 0 {
		t.Errorf("--grep: %v", none)
	}

	keys := rnicctl(t, "keys", "--json", "--qp", fmt.Sprint(a)).well(t).object(t, "keys")["keys"].([]any)
	if len(keys) != 1 {
		t.Fatalf("keys of the QP's domain: %v", keys)
	}
	k := keys[0].(map[string]any)
	if k["key"] != fmt.Sprintf("0x%08x", p.mr.LKey()) || k["state"] != "valid" || k["length_bytes"] != 8192.0 || k["base"] != fmt.Sprintf("%#x", p.mr.Addr()) {
		t.Errorf("key %v", k)
	}
	if all := rnicctl(t, "keys", "--json").well(t).object(t, "keys")["keys"].([]any); len(all) != 2 {
		t.Errorf("%d keys, want 2", len(all))
	}

	counters := func(args ...string) map[string]any {
		return rnicctl(t, append([]string{"stats", "--json"}, args...)...).well(t).object(t, "stats")["counters"].(map[string]any)
	}
	before := counters()
	if err := p.write(t.Context(), 8); err != nil {
		t.Fatal(err)
	}
	after := counters()
	// The card talks to itself: two packets there, an ACK back.
	if d := after["tx_frames"].(float64) - before["tx_frames"].(float64); d != 3 {
		t.Errorf("tx_frames rose by %v, want 3", d)
	}
	if c := counters("--qp", fmt.Sprint(a), "--grep", "^lookups$"); len(c) != 1 || c["lookups"] != 6.0 {
		t.Errorf("the QP's lookups: %v", c)
	}
	page := rnicctl(t, "stats", "--prometheus", "--grep", "^wqes$").well(t).out
	if page != "# TYPE rnic_wqes_total counter\nrnic_wqes_total{address=\"soft:shown\"} 2\n" {
		t.Errorf("Prometheus: %q", page)
	}
	page = rnicctl(t, "qp", "--prometheus").well(t).out
	if !strings.Contains(page, fmt.Sprintf("rnic_qp_lookups_total{address=\"soft:shown\",qpn=\"%d\"} 6\n", a)) {
		t.Errorf("Prometheus: %q", page)
	}
	if page = rnicctl(t, "keys", "--prometheus").well(t).out; !strings.Contains(page, `state="valid"} 2`) {
		t.Errorf("Prometheus: %q", page)
	}
}

// TestStatsOfVerification: what a holder verified stands among the card's counters, and
// nothing of it where nobody verifies.
func TestStatsOfVerification(t *testing.T) {
	sockets(t)
	p := hold(t, "soft:verified", driver.WithVerify(driver.Always), driver.WithVerifyDir(t.TempDir()))
	hold(t, "soft:unverified")
	if err := p.write(t.Context(), 8); err != nil {
		t.Fatal(err)
	}
	counters := func(addr string) map[string]any {
		return rnicctl(t, "stats", "--json", "-d", addr, "--grep", "^verify_").well(t).object(t, "stats")["counters"].(map[string]any)
	}
	if c := counters("soft:verified"); len(c) != 4 || c["verify_packets"] != 2.0 || c["verify_mismatches"] != 0.0 || c["verify_lost"] != 0.0 || c["verify_skipped"] != 0.0 {
		t.Errorf("%v", c)
	}
	if c := counters("soft:unverified"); len(c) != 0 {
		t.Errorf("%v", c)
	}
}

// TestWatch: a stream of objects, one a line, with counters that rise.
func TestWatch(t *testing.T) {
	sockets(t)
	p := hold(t, "soft:watched")
	stop := p.traffic(t.Context())
	ctx := interrupted(t, 500*time.Millisecond)
	r := rnicctlOn(ctx, none(t), "stats", "-d", "soft:watched", "--watch", "50ms", "--grep", "^tx_frames$", "--json")
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	out, last := r.out, strings.LastIndex(strings.TrimSpace(r.out), "\n")
	if r.code != exitInterrupted || last < 0 {
		t.Fatalf("exit %d: %s", r.code, out)
	}
	r.out = out[:last+1] // then the interruption
	var before float64
	for i, o := range r.lines(t, "stats") {
		now := o["counters"].(map[string]any)["tx_frames"].(float64)
		if i > 0 && now <= before {
			t.Errorf("tx_frames %v after %v", now, before)
		}
		before = now
	}
}

// TestRegisters: values decoded, by enum and by field, and what cannot be read has none.
func TestRegisters(t *testing.T) {
	sockets(t)
	got := map[string]string{}
	o := rnicctl(t, "regs", "-d", "soft:regs", "--json", "MAGIC", "IDENT.VERSION", "ENGINE", "CONTROL.STATUS", "RUN_MODE", "KICK.*", "CARD_NAME[0]").well(t).object(t, "regs")
	for _, r := range o["registers"].([]any) {
		r := r.(map[string]any)
		text := fmt.Sprint(r["value"], " ", r["text"])
		for _, f := range r["fields"].([]any) {
			f := f.(map[string]any)
			text += fmt.Sprint(" ", f["name"], "=", f["value"])
		}
		got[r["name"].(string)] = strings.TrimSpace(text)
	}
	for name, want := range map[string]string{
		"IDENT.MAGIC":        "0x43494e52",
		"IDENT.VERSION":      "0x00010000  MINOR=0 MAJOR=1",
		"IDENT.ENGINE":       "0x00000001 GO",
		"IDENT.CARD_NAME[0]": "0x73676572", // "regs", first byte lowest
		"CONTROL.STATUS":     "0x00000007  READY=1 BUS_MASTER=1 COMMAND_ENABLED=1 FATAL=0",
		"DEBUG.RUN_MODE":     "0x00000000 FREE",
		"KICK.KICK":          "<nil>",
	} {
		if got[name] != want {
			t.Errorf("%s: %q, want %q", name, got[name], want)
		}
	}
	if len(got) != 7 {
		t.Errorf("registers %v", got)
	}
}

// TestSetRegister: --set writes what it says, by number, name and field, and shows what was there.
func TestSetRegister(t *testing.T) {
	sockets(t)
	o := rnicctl(t, "regs", "-d", "soft:set", "--json", "--yes",
		"--set", "SCRATCH=0xcafe", "--set", "CLOCK_MODE=stepped", "--set", "PORT_CORRUPT=XOR=0xff,OFFSET=3", "--set", "KICK=1").well(t).object(t, "regs_set")
	want := [][]any{
		{"CONTROL.SCRATCH", "0x00000000", "0xcafe", "0x0000cafe"},
		{"DEBUG.CLOCK_MODE", "0x00000000", "0x1", "0x00000001"},
		{"DEBUG.PORT_CORRUPT", "0x00000000", "0xff0003", "0x00ff0003"},
		{"KICK.KICK", nil, "0x1", nil}, // write only
	}
	for i, c := range o["changes"].([]any) {
		c := c.(map[string]any)
		if got := []any{c["name"], c["before"], c["wrote"], c["after"]}; fmt.Sprint(got) != fmt.Sprint(want[i]) {
			t.Errorf("change %v, want %v", got, want[i])
		}
	}
	r := rnicctl(t, "regs", "-d", "soft:set", "--set", "SCRATCH=5")
	if r.code != exitUsage || !strings.Contains(r.out, "0x5") || !strings.Contains(r.err, "--yes") {
		t.Errorf("without --yes: exit %d, %s%s", r.code, r.out, r.err)
	}
}

// TestGrepWithoutMatch: no row is no failure and no heading; people are told.
func TestGrepWithoutMatch(t *testing.T) {
	sockets(t)
	hold(t, "soft:grepped")
	for _, table := range []string{"qp", "keys", "stats"} {
		r := rnicctl(t, table, "-d", "soft:grepped", "--grep", "^zz+$").well(t)
		if r.out != "" || !strings.Contains(r.err, `no row matches --grep "^zz+$"`) {
			t.Errorf("%s: %q, %q", table, r.out, r.err)
		}
		rnicctl(t, table, "-d", "soft:grepped", "--grep", "^zz+$", "--json").well(t).object(t, table)
	}
}

// TestList: PCI functions with the contract's IDs, every one with --all, and the cards that processes hold.
func TestList(t *testing.T) {
	sockets(t)
	sys := t.TempDir()
	for addr, device := range map[string]string{"fffe:03:00.0": "0x7264", "0000:00:1f.0": "0x2918"} {
		dir := filepath.Join(sys, "bus/pci/devices", addr)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{
			"vendor": "0x10ee", "device": device, "class": "0x020000", "irq": "0", "config": "\xee\x10\x64\x72",
			"resource": "0x0000000000001000 0x0000000000001fff 0x0000000000040200", "numa_node": "-1",
		} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	tree := pcidev.Tree{Sys: sys, Proc: "/proc"}
	list := func(args ...string) map[string]map[string]any {
		m := map[string]map[string]any{}
		for _, c := range rnicctlOn(t.Context(), tree, append([]string{"list", "--json"}, args...)...).well(t).object(t, "list")["cards"].([]any) {
			c := c.(map[string]any)
			m[c["address"].(string)] = c
		}
		return m
	}
	got := list()
	if c := got["fffe:03:00.0"]; len(got) != 1 || c["state"] != "unbound" || c["numa_node"] != nil || c["id"] != "10ee:7264" || c["holder"] != nil {
		t.Errorf("list %v", got)
	}
	// The only card present is the default of a command that looks. This machine has none there.
	if r := rnicctlOn(t.Context(), tree, "info", "--json"); r.code != exitNoCard || !strings.Contains(r.out, "fffe:03:00.0") {
		t.Errorf("exit %d: %s", r.code, r.out)
	}
	hold(t, "soft:listed")
	got = list()
	c := got["soft:listed"]
	if len(got) != 2 || c == nil {
		t.Fatalf("list %v", got)
	}
	if h := c["holder"].(map[string]any); c["state"] != "held" || c["name"] != "listed" || h["pid"] != float64(os.Getpid()) || h["program"] == "" || !strings.HasPrefix(c["link"].(string), "active") {
		t.Errorf("card %v", c)
	}
	if got = list("--all"); len(got) != 3 || got["0000:00:1f.0"] == nil {
		t.Errorf("--all: %v", got)
	}
	if r := rnicctlOn(t.Context(), tree, "info", "--json"); r.code != exitUsage || !strings.Contains(r.out, "2 cards are present") {
		t.Errorf("with two cards: exit %d: %s", r.code, r.out)
	}
	text := rnicctlOn(t.Context(), tree, "list").well(t).out
	if head := strings.Join(strings.Fields(text[:strings.Index(text, "\n")]), " "); head != "ADDRESS ID NAME DRIVER GROUP NUMA LINK STATE HOLDER" {
		t.Errorf("heading %q", head)
	}
}

// TestHolderGone: the socket that a dead holder left is passed over.
func TestHolderGone(t *testing.T) {
	dir := sockets(t)
	dev, err := driver.Open(t.Context(), "soft:gone")
	if err != nil {
		t.Fatal(err)
	}
	path := dev.StatusPath()
	if err := dev.Close(); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(path, dir) {
		t.Fatalf("status socket at %s", path)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil { // nobody listens there
		t.Fatal(err)
	}
	if o := rnicctl(t, "info", "-d", "soft:gone", "--json").well(t).object(t, "info"); o["answered_by"] != "card" {
		t.Errorf("answered by %v", o["answered_by"])
	}
	if o := rnicctl(t, "list", "--json").well(t).object(t, "list"); len(o["cards"].([]any)) != 0 {
		t.Errorf("list %v", o)
	}
}
