package main

import (
	"fmt"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"
)

// A problem is one thing that is wrong with the contract, at a line of the YAML file.
type problem struct {
	line int
	text string
}

func (p problem) String() string { return fmt.Sprintf("line %d: %s", p.line, p.text) }

// problems collects everything that is wrong, so that one run shows it all.
type problems []problem

func (ps *problems) add(line int, format string, args ...any) {
	*ps = append(*ps, problem{line, fmt.Sprintf(format, args...)})
}

// decode fills v, a pointer to a struct, from a YAML mapping. It is strict: an
// unknown key, a missing key whose tag does not say optional, and a value of the
// wrong kind are problems, each at its line. The field tagged "@line" receives the
// line of the mapping.
func decode(n *yaml.Node, v reflect.Value, what string, ps *problems) {
	if n.Kind != yaml.MappingNode {
		ps.add(n.Line, "%s: a mapping is wanted", what)
		return
	}
	fields := map[string]reflect.Value{}
	missing := map[string]bool{}
	for i := range v.NumField() {
		name, opt, _ := strings.Cut(v.Type().Field(i).Tag.Get("card"), ",")
		switch name {
		case "":
		case "@line":
			v.Field(i).SetInt(int64(n.Line))
		default:
			fields[name] = v.Field(i)
			missing[name] = opt != "optional"
		}
	}
	seen := map[string]bool{}
	for i := 0; i < len(n.Content); i += 2 {
		key, val := n.Content[i], n.Content[i+1]
		f, ok := fields[key.Value]
		switch {
		case !ok:
			ps.add(key.Line, "%s: unknown key %q", what, key.Value)
		case seen[key.Value]:
			ps.add(key.Line, "%s: key %q stands twice", what, key.Value)
		default:
			decodeValue(val, f, what+"."+key.Value, ps)
		}
		seen[key.Value] = true
		delete(missing, key.Value)
	}
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("card"), ",")
		if missing[name] {
			ps.add(n.Line, "%s: key %q is missing", what, name)
		}
	}
}

func decodeValue(n *yaml.Node, v reflect.Value, what string, ps *problems) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch v.Kind() {
	case reflect.Struct:
		decode(n, v, what, ps)
	case reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			ps.add(n.Line, "%s: a sequence is wanted", what)
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
		for i, c := range n.Content {
			decodeValue(c, v.Index(i), fmt.Sprintf("%s[%d]", what, i), ps)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		decodeValue(n, v.Elem(), what, ps)
	default:
		if n.Kind != yaml.ScalarNode {
			ps.add(n.Line, "%s: one value is wanted", what)
			return
		}
		if v.Kind() == reflect.String && n.Tag != "!!str" {
			// A name such as NO or 802 would silently become another type.
			ps.add(n.Line, "%s: %q is not a string in YAML; quote it", what, n.Value)
			return
		}
		if err := n.Decode(v.Addr().Interface()); err != nil {
			ps.add(n.Line, "%s: %q is not a %s", what, n.Value, v.Kind())
		}
	}
}
