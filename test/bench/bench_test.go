package main

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// TestP01_TwinWritesTheSame: the WQEs of the twin are those of the driver and of the bare queue, byte for
// byte. (That its completions are the same, each run sees by their WR IDs.)
func TestP01_TwinWritesTheSame(t *testing.T) {
	b := &bench{quick: true, log: t.Output()}
	defer func() {
		if b.twin != nil {
			if err := b.twin.close(); err != nil {
				t.Error(err)
			}
		}
	}()
	if err := b.alone(t.Context(), func() error {
		for _, shape := range []string{"1", "3", "63", "inline"} {
			want, err := b.twin.ask("wqe %s", shape)
			if err != nil {
				return err
			}
			r, err := newVerbsRig(t.Context(), shape, batchOf)
			if err != nil {
				return err
			}
			r.wr.WRID = 7
			err = r.qp.PostSend(&r.wr)
			got := hex.EncodeToString(r.wqes)
			if err = errors.Join(err, r.close()); err != nil {
				return err
			}
			if got != want {
				t.Errorf("shape %s: the driver wrote\n%s\nthe twin\n%s", shape, got, want)
			}
			q, err := newQueueRig(shape, batchOf)
			if err != nil {
				return err
			}
			barePost(q.sq, q.sges, q.inline)
			got = hex.EncodeToString(q.memory[0].Bytes()[:len(want)/2])
			if err := q.close(); err != nil {
				return err
			}
			if got != want {
				t.Errorf("shape %s: the bare queue wrote\n%s\nthe twin\n%s", shape, got, want)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// TestP03_Quick runs all of it, a few rounds each: every row is there, as the schema has it, and nothing on
// the data path allocates. How long anything took is not looked at.
func TestP03_Quick(t *testing.T) {
	var out bytes.Buffer
	if code := run(t.Context(), []string{"-quick", "-json"}, &out, t.Output()); code != 0 {
		t.Fatalf("exit code %d\n%s", code, out.Bytes())
	}
	form, err := jsonschema.NewCompiler().Compile("../../docs/json/bench.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(out.Bytes()))
	if err == nil {
		err = form.Validate(v)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out.Bytes())
	}
	var r report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	var want, got []string
	for _, p := range parts() {
		want = append(want, p.rows...)
	}
	for _, x := range r.Rows {
		got = append(got, x.Name)
		switch {
		case x.Result == notHere:
		case x.Measured == nil || *x.Measured < 0 || *x.Measured == 0 && x.Unit != "count":
			t.Errorf("%s: measured %v", x.Name, x.Measured)
		case (x.Name == "alloc" || x.Name == "verify-off") && *x.Measured != 0:
			t.Errorf("%s: %v, expected none", x.Figure, *x.Measured)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("rows %q, expected %q", got, want)
	}
}

// TestResults: what counts as met, and that a floor that is missed is said in words and ends with 1
// where -check is given.
func TestResults(t *testing.T) {
	b := &bench{}
	b.add("a", "A", "ratio", less, 1.2, 1.1, 1.1001, "")
	b.add("b", "B", "ratio", less, 1.2, 1.1, 1.15, "")
	b.add("c", "C", "GB/s", more, 3, 5, 2.9, "", absolute{"beside", 7.123, "ns"})
	b.add("d", "D", "GB/s", more, 3, 5, 5, "")
	b.add("e", "E", "ratio", less, none, none, 9, "")
	b.add("f", "F", "count", less, 0, 0, 1, "")
	var results []string
	for _, r := range b.rows {
		results = append(results, r.Result)
	}
	if want := []string{aimMet, floorMet, missed, aimMet, shown, missed}; !slices.Equal(results, want) {
		t.Errorf("results %q, expected %q", results, want)
	}
	var out strings.Builder
	r := report{Time: "2026-01-02T03:04:05Z", Load: []float64{0, 0}, Rows: b.rows}
	if err := r.table(&out); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"ROW  FIGURE  FLOOR     AIM       MEASURED  RESULT     BESIDE",
		"a    A       ≤ 1.2×    ≤ 1.1×    1.1×      aim met    ",
		"b    B       ≤ 1.2×    ≤ 1.1×    1.15×     floor met  ",
		"c    C       ≥ 3 GB/s  ≥ 5 GB/s  2.9 GB/s  MISSED     beside 7.12 ns",
		"f    F       0         0         1         MISSED     ",
	} {
		if !strings.Contains(out.String(), line+"\n") {
			t.Errorf("no line %q in\n%s", line, out.String())
		}
	}
	for args, want := range map[string]int{"-only rtl": 0, "-only rtl -check": 0, "-only nothing": 2, "-bogus": 2, "rest": 2} {
		if got := run(t.Context(), strings.Fields(args), &out, t.Output()); got != want {
			t.Errorf("bench %s: exit code %d, expected %d", args, got, want)
		}
	}
}

// TestRXE: the figure is read from what perftest prints (ib_write_bw 4.5+0.17 with --report_gbits, in a guest).
func TestRXE(t *testing.T) {
	const printed = ` #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      1000             1.41               1.36   		   0.002594
---------------------------------------------------------------------------------------
`
	if v, err := bandwidth(printed); err != nil || v != 0.17 {
		t.Errorf("%v GB/s, %v; want 1.36 Gb/s, which are 0.17", v, err)
	}
	for _, other := range []string{"", "Couldn't connect to 127.0.0.1:18515\n", " 65536 5000 1 2 3\n", " 65536 1000 1.41 none 0.1\n"} {
		if v, err := bandwidth(other); err == nil {
			t.Errorf("%q is read as %v", other, v)
		}
	}
}
