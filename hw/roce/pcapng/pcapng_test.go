package pcapng_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"rnic/hw/roce"
	"rnic/hw/roce/pcapng"
)

const goldenDir = "../../../test/golden"

var start = time.Unix(1_700_000_000, 123_456_789).UTC()

// write writes frames of two interfaces to a file in memory.
func write(t testing.TB, frames []pcapng.Frame) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := pcapng.NewWriter(&b, "rnic test", "A")
	if err != nil {
		t.Fatal(err)
	}
	if n, err := w.AddInterface("B"); err != nil || n != 1 {
		t.Fatal(n, err)
	}
	for i := range frames {
		if err := w.Write(&frames[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func frames() []pcapng.Frame {
	var fs []pcapng.Frame
	for i := range 9 {
		fs = append(fs, pcapng.Frame{
			Time: start.Add(time.Duration(i)), Interface: i & 1, Direction: pcapng.Direction(i % 3),
			Dropped: uint64(i / 8 * 7), Data: bytes.Repeat([]byte{byte(i)}, 60+i),
		})
	}
	return fs
}

func TestRoundTrip(t *testing.T) {
	want := frames()
	file := write(t, want)
	got, err := pcapng.ReadAll(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-written +read):\n%s", d)
	}
	// Two sections, as of two files put together: interfaces count on.
	got, err = pcapng.ReadAll(bytes.NewReader(append(bytes.Clone(file), file...)))
	if err != nil || len(got) != 2*len(want) {
		t.Fatalf("%d frames, %v", len(got), err)
	}
	for i := range want {
		want[i].Interface += 2
	}
	if d := cmp.Diff(want, got[len(want):]); d != "" {
		t.Errorf("second section (-written +read):\n%s", d)
	}
}

// TestGoldenCaptures reads every recorded pcap, against the lengths and times
// in the recording's own decode, and gets it back through pcapng.
func TestGoldenCaptures(t *testing.T) {
	dirs, err := filepath.Glob(filepath.Join(goldenDir, "*", "scenario.json"))
	if err != nil || len(dirs) == 0 {
		t.Fatal("no recorded scenarios", err)
	}
	for _, file := range dirs {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var s struct {
			Frames []struct {
				Len int     `json:"len"`
				T   float64 `json:"t"`
			} `json:"frames"`
		}
		if err := json.Unmarshal(b, &s); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(filepath.Join(filepath.Dir(file), "capture.pcap"))
		if err != nil {
			t.Fatal(err)
		}
		got, err := pcapng.ReadAll(f)
		f.Close()
		if err != nil || len(got) != len(s.Frames) {
			t.Fatalf("%s: %d frames of %d, %v", file, len(got), len(s.Frames), err)
		}
		for i, g := range got {
			at := g.Time.Sub(got[0].Time) - time.Duration(s.Frames[i].T*1e6+0.5)*time.Microsecond
			if len(g.Data) != s.Frames[i].Len || at.Abs() > time.Microsecond {
				t.Fatalf("%s frame %d: %d bytes at %v, recorded %+v", file, i, len(g.Data), g.Time, s.Frames[i])
			}
		}
		back, err := pcapng.ReadAll(bytes.NewReader(write(t, got)))
		if err != nil || !cmp.Equal(got, back) {
			t.Fatalf("%s through pcapng: %v\n%s", file, err, cmp.Diff(got, back))
		}
	}
}

// TestDamaged: a file cut anywhere gives the frames before the cut and then,
// unless it was cut between two of them, an error that says so.
func TestDamaged(t *testing.T) {
	file := write(t, frames())
	whole := map[int]int{} // length of file: frames
	for n := range len(frames()) + 1 {
		whole[len(write(t, frames()[:n]))] = n
	}
	last := 0
	for n := range file {
		got, err := pcapng.ReadAll(bytes.NewReader(file[:n]))
		frames, sound := whole[n]
		if sound {
			last = frames
		}
		if len(got) < last-1 || len(got) > last {
			t.Fatalf("cut at %d: %d frames, want %d", n, len(got), last)
		}
		if sound && (err != nil || len(got) != frames) {
			t.Fatalf("cut at %d, between frames: %d, %v", n, len(got), err)
		}
		if err != nil && (!errors.Is(err, pcapng.ErrFormat) || errors.Is(err, io.EOF)) {
			t.Fatalf("cut at %d: %v", n, err)
		}
		if !sound && err == nil && last > 0 {
			t.Fatalf("cut at %d, inside frame %d: no error", n, last)
		}
	}
}

func TestRefused(t *testing.T) {
	var b bytes.Buffer
	w, err := pcapng.NewWriter(&b, "rnic test", "A")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write(&pcapng.Frame{Interface: 1, Data: make([]byte, 60)}); err == nil {
		t.Error("a frame of an interface that was not described is taken")
	}
	pcap, err := os.ReadFile(filepath.Join(goldenDir, "a_walk", "capture.pcap"))
	if err != nil {
		t.Fatal(err)
	}
	raw := bytes.Clone(pcap)
	raw[20] = 101 // LINKTYPE_RAW
	cut := bytes.Clone(pcap)
	cut[24+12]++ // one frame says that it was longer
	for name, file := range map[string][]byte{
		"empty": nil, "text": []byte("scenario: a_walk\n"), "link type": raw, "header only in part": pcap[:20], "cut frame": cut,
	} {
		if _, err := pcapng.ReadAll(bytes.NewReader(file)); !errors.Is(err, pcapng.ErrFormat) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestTshark lets Wireshark's dissectors read a file of ours that holds every
// opcode: it must see RoCEv2 with our fields, time, interface and direction,
// and nothing malformed.
func TestTshark(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		t.Skip("tshark is not installed (Debian package tshark): its dissectors are not compared with ours")
	}
	var fs []pcapng.Frame
	var want []string
	for i := range 256 {
		op := roce.Opcode(i)
		if !op.Valid() || op == roce.CNP { // tshark 4.0 has no dissector for CNP
			continue
		}
		n := 0
		if op.HasPayload() {
			n = 20 + i%4
		}
		h := roce.Header{
			IPv6: i&1 == 0, Src: roce.V4Mapped([4]byte{10, 0, 0, 1}), Dst: roce.V4Mapped([4]byte{10, 0, 0, 2}),
			SrcMAC: [6]byte{2, 0, 0, 0, 0, 1}, DstMAC: [6]byte{2, 0, 0, 0, 0, 2},
			VLAN: roce.VLANTag{Valid: i&2 != 0, VID: 5}, HopLimit: 64, IPID: uint16(i), UDPSrcPort: 0xC000,
			Opcode: op, PKey: 0xFFFF, DestQP: 0x010203, PSN: 0x0A0B00 + uint32(i), AckReq: i&4 != 0, SE: i&8 != 0,
			DETH:   roce.DETHFields{QKey: 0x11111111, SrcQP: 0x040506},
			RETH:   roce.RETHFields{VA: 0x1122334455667788, RKey: 0x99AABBCC, DMALen: 20},
			Atomic: roce.AtomicETHFields{VA: 0x1122334455667788, RKey: 0x99AABBCC, SwapAdd: 3, Compare: 4},
			AETH:   roce.AETHFields{Syndrome: roce.SyndromeACK(roce.CreditInvalid), MSN: 0x0C0D0E},
			Imm:    0xCAFE0001, InvRKey: 0x80001, AtomicAck: 77,
		}
		dir := pcapng.Inbound + pcapng.Direction(i&1)
		fs = append(fs, pcapng.Frame{
			Time: start.Add(time.Duration(i)), Interface: i & 1, Direction: dir, Data: h.Append(nil, make([]byte, n)),
		})
		field := func(ext roce.Ext, format string, a ...any) string {
			if !op.Has(ext) {
				return ""
			}
			return fmt.Sprintf(format, a...)
		}
		key := field(roce.ExtRETH|roce.ExtAtomicETH, "")
		for _, x := range []roce.Ext{roce.ExtRETH, roce.ExtAtomicETH} {
			key += field(x, "0x1122334455667788|0x99aabbcc")
		}
		if key == "" {
			key = "|"
		}
		dmalen := field(roce.ExtRETH, "20")
		atomic := field(roce.ExtAtomicETH, "3|4")
		if atomic == "" {
			atomic = "|"
		}
		aeth := field(roce.ExtAETH, "31|%d", 0x0C0D0E)
		if aeth == "" {
			aeth = "|"
		}
		want = append(want, strings.Join([]string{
			fmt.Sprintf("%d.%09d", start.Unix(), start.Nanosecond()+i), string(rune('A' + i&1)),
			fmt.Sprintf("0x%08x", uint32(dir)), fmt.Sprint(i), fmt.Sprintf("0x%06x", h.DestQP), fmt.Sprint(h.PSN),
			boolField(h.AckReq), boolField(h.SE), fmt.Sprint(-n & 3), key, dmalen, atomic, aeth,
			field(roce.ExtAtomicAckETH, "77"),
		}, "|"))
	}
	file := filepath.Join(t.TempDir(), "all.pcapng")
	if err := os.WriteFile(file, write(t, fs), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"-n", "-r", file, "-T", "fields", "-E", "separator=|", "-E", "occurrence=f"}
	for _, f := range []string{
		"frame.time_epoch", "frame.interface_name", "frame.packet_flags",
		"infiniband.bth.opcode", "infiniband.bth.destqp", "infiniband.bth.psn", "infiniband.bth.a",
		"infiniband.bth.se", "infiniband.bth.padcnt", "infiniband.reth.va|infiniband.reth.r_key",
		"infiniband.reth.dmalen", "infiniband.atomiceth.swapdt|infiniband.atomiceth.cmpdt",
		"infiniband.aeth.syndrome|infiniband.aeth.msn", "infiniband.atomicacketh.origremdt",
	} {
		for _, f := range strings.Split(f, "|") {
			args = append(args, "-e", f)
		}
	}
	out, err := exec.Command(tshark, args...).Output()
	if err != nil {
		t.Fatalf("tshark: %v\n%s", err, stderr(err))
	}
	if d := cmp.Diff(want, strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")); d != "" {
		t.Errorf("(-built +tshark):\n%s", d)
	}
	// Expert errors count over IPv4 only: over IPv6 Wireshark calls each zero UDP
	// checksum one, which RoCEv2 senders use all the same, Linux among them.
	const bad = "_ws.malformed || !infiniband || (ip && _ws.expert.severity == error)"
	out, err = exec.Command(tshark, "-n", "-r", file, "-Y", bad).Output()
	if err != nil || len(out) != 0 {
		t.Errorf("tshark calls malformed, %v:\n%s", err, out)
	}
}

func boolField(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

func stderr(err error) []byte {
	var e *exec.ExitError
	if errors.As(err, &e) {
		return e.Stderr
	}
	return nil
}

func FuzzReader(f *testing.F) {
	f.Add(write(f, frames()))
	for _, name := range []string{"a_walk", "f_fetch_add"} {
		b, err := os.ReadFile(filepath.Join(goldenDir, name, "capture.pcap"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		got, err := pcapng.ReadAll(bytes.NewReader(file))
		if err != nil && !errors.Is(err, pcapng.ErrFormat) {
			t.Fatalf("untyped error: %v", err)
		}
		size := 0
		for _, g := range got {
			size += len(g.Data)
		}
		if file != nil && size > 1032*len(file) { // gzip can expand so much and no more
			t.Fatalf("%d bytes of frames from a file of %d", size, len(file))
		}
	})
}
