// Command cardgen turns the card's contract, hw/card.yaml, into the Go overlay structures and
// constants, the SystemVerilog package and the documentation. It refuses a contract that
// contradicts itself, naming the line. Run it by go generate in hw/.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

// An output is a generated file, its path relative to hw/.
type output struct {
	path string
	make func(*card) ([]byte, error)
}

var outputs = []output{
	{"card_gen.go", (*card).goFile},
	{"card_gen_test.go", (*card).goTestFile},
	{"../bitstream/rtl/card_pkg.sv", (*card).svFile},
	{"../docs/card.md", (*card).docFile},
}

// source is the contract, relative to hw/.
const source = "card.yaml"

func main() {
	if err := run("."); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run reads the contract in dir, which is hw/, and writes every output, or none when the
// contract is bad.
func run(dir string) error {
	files, err := generate(dir)
	if err != nil {
		return err
	}
	for _, o := range outputs {
		path := filepath.Join(dir, o.path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, files[o.path], 0o644); err != nil {
			return err
		}
	}
	return nil
}

// generate makes every output in memory, by path.
func generate(dir string) (map[string][]byte, error) {
	text, err := os.ReadFile(filepath.Join(dir, source))
	if err != nil {
		return nil, err
	}
	c, err := load(source, text)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for _, o := range outputs {
		if files[o.path], err = o.make(c); err != nil {
			return nil, fmt.Errorf("%s: %w", o.path, err)
		}
	}
	return files, nil
}
