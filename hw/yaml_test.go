package hw

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// The layout tests read card.yaml by themselves, as plain maps, and share nothing with the
// generator: names are compared without case and underscores, so not even the naming is shared.

type plain = map[string]any

// contractYAML is card.yaml as plain maps.
func contractYAML(t *testing.T) plain {
	t.Helper()
	text, err := os.ReadFile("card.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var m plain
	if err := yaml.Unmarshal(text, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

func items(m plain, key string) []plain {
	list, _ := m[key].([]any)
	out := make([]plain, len(list))
	for i, v := range list {
		out[i] = v.(plain)
	}
	return out
}

func text(m plain, key string) string { s, _ := m[key].(string); return s }

func num(m plain, key string) uint64 {
	switch v := m[key].(type) {
	case int:
		return uint64(v)
	case uint64:
		return v
	}
	return 0
}

// squash makes names of different styles comparable: wqe_index, WQE_INDEX and WQEIndex.
func squash(name string) string { return strings.ToLower(strings.ReplaceAll(name, "_", "")) }

// yamlStructs are the structures by name.
func yamlStructs(m plain) map[string]plain {
	out := map[string]plain{}
	for _, s := range items(m, "structs") {
		out[text(s, "name")] = s
	}
	return out
}

var scalarSize = map[string]uint64{"u8": 1, "u16": 2, "u32": 4, "u64": 8}

// typeOf takes a field's type apart: element, number of elements (1 for a scalar), bytes of one.
func typeOf(structs map[string]plain, f plain) (elem string, count, size uint64) {
	elem, rest, array := strings.Cut(text(f, "type"), "[")
	count = 1
	if array {
		count, _ = strconv.ParseUint(strings.TrimSuffix(rest, "]"), 10, 64)
	}
	if s, nested := structs[elem]; nested {
		return elem, count, num(s, "size")
	}
	return elem, count, scalarSize[elem]
}

// definedBits gives a mask of a structure's memory image: a 1 for each bit that the contract names.
func definedBits(structs map[string]plain, s plain) []byte {
	mask := make([]byte, num(s, "size"))
	for _, f := range items(s, "fields") {
		elem, count, size := typeOf(structs, f)
		for i := range count {
			at := num(f, "offset") + i*size
			if nested, ok := structs[elem]; ok {
				copy(mask[at:], definedBits(structs, nested))
				continue
			}
			for bit := range size * 8 {
				named := f["bits"] == nil && (num(f, "width") == 0 || bit < num(f, "width"))
				for _, b := range items(f, "bits") {
					named = named || bit >= num(b, "lo") && bit <= num(b, "hi")
				}
				if named {
					mask[at+bit/8] |= 1 << (bit % 8)
				}
			}
		}
	}
	return mask
}
