package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

type verifyObject struct {
	Gather                        string
	Requests, Packets, Mismatches int
	Lost                          int `json:"lost_records"`
	Skipped                       int `json:"skipped_packets"`
	Mismatch                      *struct {
		Packet      int
		Response    bool
		Bundle      string
		Differences []struct{ What, Card, Driver string }
	}
}

// TestVerifyCommand: a card that walks right has no mismatch, whoever gathers.
func TestVerifyCommand(t *testing.T) {
	sockets(t)
	for _, gather := range []string{"card", "host"} {
		run := rnicctl(t, "verify", "--json", "--count", "300", "--seed", "7", "--gather", gather).well(t)
		run.objects(t, "verify")
		var o verifyObject
		if err := json.Unmarshal([]byte(run.out), &o); err != nil {
			t.Fatal(err)
		}
		if o.Requests != 300 || o.Packets < 300 || o.Mismatches != 0 || o.Lost != 0 || o.Skipped != 0 || o.Gather != gather || o.Mismatch != nil {
			t.Errorf("%s: %+v", gather, o)
		}
	}
	run := rnicctl(t, "verify", "--count", "20").well(t)
	if !strings.Contains(run.out, "MISMATCHES") {
		t.Error(run.out)
	}
}

// TestVerifyWithAPeer: the other end is the card that was named, wherever its wire is.
func TestVerifyWithAPeer(t *testing.T) {
	sockets(t)
	rnicctl(t, "verify", "-d", "soft:one?wire=joined", "--peer", "soft:two?wire=joined", "--count", "50").well(t)
	if run := rnicctl(t, "verify", "-d", "soft:one?wire=apart-1", "--peer", "soft:two?wire=apart-2", "--count", "5", "--timeout", "2s"); run.code == exitOK {
		t.Errorf("a peer on another wire was reached:\n%s", run.out)
	}
}

// TestVerifyFindsFaults: each defect is found, and the replay of its bundle, which
// needs no card, finds the same.
func TestVerifyFindsFaults(t *testing.T) {
	sockets(t)
	dir := t.TempDir()
	for _, fault := range walkFaultNames() {
		run := rnicctl(t, "verify", "--json", "--count", "200", "--fault", fault, "--bundles", dir)
		run.objects(t, "verify")
		var o verifyObject
		if err := json.Unmarshal([]byte(run.out), &o); err != nil || run.code != exitFound || o.Mismatches == 0 || o.Mismatch == nil {
			t.Errorf("%s: exit %d, %+v, %v", fault, run.code, o, err)
			continue
		}
		again := rnicctl(t, "verify", "--json", "--replay", o.Mismatch.Bundle)
		again.objects(t, "verify_replay")
		var r struct {
			AsRecorded  bool `json:"as_recorded"`
			Differences []struct{ What, Card, Driver string }
		}
		if err := json.Unmarshal([]byte(again.out), &r); err != nil || again.code != exitFound || !r.AsRecorded || fmt.Sprint(r.Differences) != fmt.Sprint(o.Mismatch.Differences) {
			t.Errorf("%s: replay: exit %d, %v\n%s\nfound was\n%v", fault, again.code, err, again.out, o.Mismatch.Differences)
		}
		text := rnicctl(t, "verify", "--replay", o.Mismatch.Bundle)
		if text.code != exitFound || !strings.Contains(text.out, o.Mismatch.Differences[0].What) || !strings.Contains(text.out, "as recorded") {
			t.Errorf("%s: exit %d\n%s", fault, text.code, text.out)
		}
	}
}

// TestVerifyFindsWrongArrivals: a card whose packets are right and that places them wrong is found too: the report names
// the request and the byte, in text and in JSON that fits the schema, and the exit is 1.
func TestVerifyFindsWrongArrivals(t *testing.T) {
	sockets(t)
	run := rnicctl(t, "verify", "--json", "--count", "200", "-d", "spoiling:json")
	run.objects(t, "verify")
	var o struct {
		verifyObject
		Arrival *struct {
			Opcode                  string
			Bytes, Segments, Offset int
			Differing               int `json:"differing_bytes"`
			Sent, Found             string
			WRID                    string `json:"wr_id"`
		}
	}
	if err := json.Unmarshal([]byte(run.out), &o); err != nil || run.code != exitFound || o.Mismatches != 0 || o.Mismatch != nil || o.Arrival == nil {
		t.Fatalf("exit %d, %v\n%s%s", run.code, err, run.out, run.err)
	}
	a := o.Arrival
	sent, err := strconv.ParseUint(a.Sent, 0, 8)
	found, err2 := strconv.ParseUint(a.Found, 0, 8)
	if err != nil || err2 != nil || sent^found != 0xff || a.Bytes < 1<<10 || a.Differing < 1 || a.Offset%1024 != 0 || a.WRID != hex64(uint64(o.Requests-1)) {
		t.Errorf("%+v, of %d requests", a, o.Requests)
	}
	text := rnicctl(t, "verify", "--count", "200", "-d", "spoiling:text")
	for _, says := range []string{"MISMATCHES", a.Opcode + " work request " + a.WRID, fmt.Sprintf("%d bytes in %d segments", a.Bytes, a.Segments), fmt.Sprintf("at offset %d: sent %s, found %s", a.Offset, a.Sent, a.Found)} {
		if text.code != exitFound || !strings.Contains(text.out, says) {
			t.Errorf("exit %d, no %q in\n%s%s", text.code, says, text.out, text.err)
		}
	}
}

// TestVerifyRefusals: bad usage and files end with 2.
func TestVerifyRefusals(t *testing.T) {
	sockets(t)
	file := filepath.Join(t.TempDir(), "bundle")
	if err := os.WriteFile(file, []byte(`{"schema":"other"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"--count 0": "--count", "--fault none": "--fault", "--gather nobody": "--gather", "--replay " + file: "schema", "--replay /absent": "/absent",
	} {
		if r := rnicctl(t, append([]string{"verify"}, strings.Fields(args)...)...); r.code != exitUsage || !strings.Contains(r.err, want) {
			t.Errorf("%s: exit %d\n%s", args, r.code, r.err)
		}
	}
}
