package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"text/tabwriter"
)

const schema = "rnic.bench.v1"

// Results of a row.
const (
	aimMet   = "aim"
	floorMet = "floor"
	missed   = "missed"
	shown    = "shown"     // it has no floor
	notHere  = "elsewhere" // this program does not measure it
)

// row is a line of the table.
type row struct {
	Name     string     `json:"name"`
	Figure   string     `json:"figure"`
	Unit     string     `json:"unit"`
	Better   string     `json:"better"` // "less" or "more"
	Floor    *float64   `json:"floor"`
	Aim      *float64   `json:"aim"`
	Measured *float64   `json:"measured"`
	Result   string     `json:"result"`
	Absolute []absolute `json:"absolute"`
	Note     string     `json:"note"`
}

// absolute is a figure beside a row's.
type absolute struct {
	What  string  `json:"what"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
}

const (
	less = "less"
	more = "more"
	none = -1 // no floor, no aim
)

// add makes a row of a figure that was measured. floor and aim are none where there is none.
func (b *bench) add(name, figure, unit, better string, floor, aim, measured float64, note string, abs ...absolute) {
	r := row{Name: name, Figure: figure, Unit: unit, Better: better, Measured: &measured, Result: shown, Absolute: abs, Note: note}
	good := func(limit float64) bool {
		// To the digits that the table shows.
		m := round(measured)
		return better == less && m <= limit || better == more && m >= limit
	}
	if floor != none {
		r.Floor, r.Aim = &floor, &aim
		switch {
		case good(aim):
			r.Result = aimMet
		case good(floor):
			r.Result = floorMet
		default:
			r.Result = missed
		}
	}
	b.rows = append(b.rows, r)
}

// elsewhere are the rows of docs/performance.md that other programs measure.
func elsewhere(_ context.Context, b *bench) error {
	b.rows = append(b.rows,
		row{Name: "rtl", Figure: "gather engine in RTL, of the data path's width", Unit: "ratio", Better: more, Floor: at(0.98), Aim: at(1), Result: notHere,
			Note: "not measured here: cycles are counted in simulation, by TestRTL_Cycles of hw/rtl (`make rtl` builds what it needs)"})
	return nil
}

// report is all that a run found.
type report struct {
	Schema  string    `json:"schema"`
	Time    string    `json:"time"`
	Quick   bool      `json:"quick"`
	Machine machineOf `json:"machine"`
	Load    []float64 `json:"load"` // processes that wanted a CPU, over the last minute: before, after
	Rows    []row     `json:"rows"`
}

type machineOf struct {
	CPU      string `json:"cpu"`
	CPUs     int    `json:"cpus"`
	Platform string `json:"platform"`
	Go       string `json:"go"`
	GCC      string `json:"gcc"`
}

func (r *report) json(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// round keeps three significant digits, as the table shows them.
func round(v float64) float64 {
	s, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 3, 64), 64)
	if err != nil || math.IsInf(v, 0) {
		return v
	}
	return s
}

func number(v float64) string { return strconv.FormatFloat(round(v), 'f', -1, 64) }

// with is a figure with its unit.
func with(v float64, unit string) string {
	switch unit {
	case "ratio":
		return number(v) + "×"
	case "count":
		return number(v)
	}
	return number(v) + " " + unit
}

var words = map[string]string{aimMet: "aim met", floorMet: "floor met", missed: "MISSED", shown: "—", notHere: "not measured here"}

func (r *report) table(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ROW\tFIGURE\tFLOOR\tAIM\tMEASURED\tRESULT\tBESIDE")
	for _, x := range r.Rows {
		sign := "≤ "
		if x.Better == more {
			sign = "≥ "
		}
		limit := func(v *float64) string {
			switch {
			case v == nil:
				return "—"
			case x.Unit == "count":
				return with(*v, x.Unit)
			}
			return sign + with(*v, x.Unit)
		}
		got := "—"
		if x.Measured != nil {
			got = with(*x.Measured, x.Unit)
		}
		var beside []string
		for _, a := range x.Absolute {
			beside = append(beside, a.What+" "+with(a.Value, a.Unit))
		}
		if x.Note != "" {
			beside = append(beside, x.Note)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", x.Name, x.Figure, limit(x.Floor), limit(x.Aim), got, words[x.Result], strings.Join(beside, "; "))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	m := r.Machine
	_, err := fmt.Fprintf(out, "\n%s, %s, %d CPUs, %s, %s, %s; load %.2f before, %.2f after\n", r.Time[:10], m.CPU, m.CPUs, m.Platform, m.Go, m.GCC, r.Load[0], r.Load[1])
	if err == nil && r.Quick {
		_, err = fmt.Fprintln(out, "-quick: a few rounds of each; these are no figures")
	}
	return err
}

// machine says what the figures are of.
func machine(ctx context.Context) (m machineOf, err error) {
	m = machineOf{CPU: "unknown", CPUs: runtime.NumCPU(), Platform: runtime.GOOS + "/" + runtime.GOARCH, Go: runtime.Version()}
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return m, err
	}
	var model string
	for _, line := range strings.Split(string(info), "\n") {
		key, value, _ := strings.Cut(line, ":")
		switch strings.TrimSpace(key) {
		case "model name":
			m.CPU = strings.TrimSpace(value)
		case "model":
			model = strings.TrimSpace(value)
		}
		if line == "" {
			break
		}
	}
	if model != "" {
		m.CPU += " (model " + model + ")"
	}
	out, err := exec.CommandContext(ctx, "gcc", "--version").Output()
	if err != nil {
		return m, errors.Join(errNoGCC, err)
	}
	m.GCC, _, _ = strings.Cut(string(out), "\n")
	return m, nil
}

// load is the processes that wanted a CPU, on average over the last minute.
func load() float64 {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(b), " ")
	v, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return 0
	}
	return v
}
