// Command fuzz runs every fuzz target of the module for a while, one after another, and ends with 1
// if one found something. The input that failed is in the package's testdata/fuzz.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

func main() {
	each := flag.Duration("time", 10*time.Second, "how long each target runs")
	flag.Parse()
	targets, err := list()
	if err != nil {
		fmt.Fprintln(os.Stderr, "fuzz:", err)
		os.Exit(1)
	}
	failed := 0
	for _, t := range targets {
		began := time.Now()
		cmd := exec.Command("go", "test", "-run", "^$", "-fuzz", "^"+t.name+"$", "-fuzztime", each.String(), "-fuzzminimizetime", "10x", t.pkg) // else the time goes into making large inputs smaller
		log, err := cmd.CombinedOutput()
		result := "ok  "
		if err != nil {
			result = "FAIL"
			failed++
		}
		fmt.Printf("%s  %-40s %-24s %6.1f s\n", result, t.pkg, t.name, time.Since(began).Seconds())
		if err != nil {
			os.Stdout.Write(log)
		}
	}
	if failed > 0 {
		os.Exit(1)
	}
}

type target struct{ pkg, name string }

// list asks each package's test binary for its fuzz targets.
func list() ([]target, error) {
	out, err := exec.Command("go", "list", "-f", "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}", "./...").Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	var targets []target
	for _, pkg := range strings.Fields(string(out)) {
		names, err := exec.Command("go", "test", "-list", "^Fuzz", pkg).CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("%s: %w\n%s", pkg, err, names)
		}
		for line := range bytes.Lines(names) {
			if name := strings.TrimSpace(string(line)); strings.HasPrefix(name, "Fuzz") {
				targets = append(targets, target{pkg, name})
			}
		}
	}
	return targets, nil
}
