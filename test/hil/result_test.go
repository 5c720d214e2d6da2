package main

import (
	"bytes"
	"context"
	"encoding/xml"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"rnic/driver"
	_ "rnic/vfio/vfiouser"
)

func openCard(ctx context.Context, t *testing.T, addr string) *driver.Device {
	t.Helper()
	d, err := driver.Open(ctx, addr)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// validate holds results.json to its schema.
func validate(t *testing.T, text []byte) {
	t.Helper()
	b, err := os.ReadFile("../../docs/json/hil.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("hil.schema.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("hil.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	got, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Validate(got); err != nil {
		t.Errorf("results.json: %v\n%s", err, text)
	}
}

// element is a node of an XML document, read without the types that wrote it.
type element struct {
	name string
	attr map[string]string
	kids []*element
}

func readXML(text []byte) (*element, error) {
	d := xml.NewDecoder(bytes.NewReader(text))
	top := &element{}
	open := []*element{top}
	for {
		tok, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		switch tok := tok.(type) {
		case xml.StartElement:
			e := &element{name: tok.Name.Local, attr: map[string]string{}}
			for _, a := range tok.Attr {
				if _, twice := e.attr[a.Name.Local]; twice {
					return nil, fmt.Errorf("%s has %s twice", e.name, a.Name.Local)
				}
				e.attr[a.Name.Local] = a.Value
			}
			up := open[len(open)-1]
			up.kids = append(up.kids, e)
			open = append(open, e)
		case xml.EndElement:
			open = open[:len(open)-1]
		}
	}
	if len(top.kids) != 1 {
		return nil, fmt.Errorf("%d elements at the top", len(top.kids))
	}
	return top.kids[0], nil
}

// The types of the schema's attributes.
var (
	anyText   = regexp.MustCompile(`(?s)^.*$`)
	xsToken   = regexp.MustCompile(`^[^\s]+( [^\s]+)*$`) // xs:token that is not empty
	xsInt     = regexp.MustCompile(`^[0-9]{1,9}$`)
	xsDecimal = regexp.MustCompile(`^[0-9]+(\.[0-9]+)?$`)
	xsTime    = regexp.MustCompile(`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}$`)
)

// junitSchema is the schema of Ant's JUnitReport as published by Windy Road (github.com/windyroad/JUnit-Schema, JUnit.xsd):
// of each element the attributes, a required one in upper case of its first letter's mark "!", and the children in order.
// What it allows, Jenkins' junit-10.xsd allows as well.
var junitSchema = map[string]struct {
	attr map[string]*regexp.Regexp // "!name" is required
	kids []string                  // in this order; "*" any number, "!" one, "?" none or one
}{
	"testsuites": {nil, []string{"*testsuite"}},
	"testsuite": {map[string]*regexp.Regexp{
		"!name": xsToken, "!package": xsToken, "!id": xsInt, "!timestamp": xsTime, "!hostname": xsToken,
		"!tests": xsInt, "!failures": xsInt, "!errors": xsInt, "skipped": xsInt, "!time": xsDecimal,
	}, []string{"!properties", "*testcase", "!system-out", "!system-err"}},
	"properties": {nil, []string{"*property"}},
	"property":   {map[string]*regexp.Regexp{"!name": xsToken, "!value": anyText}, nil},
	"testcase":   {map[string]*regexp.Regexp{"!name": xsToken, "!classname": xsToken, "!time": xsDecimal}, []string{"?skipped", "?error", "?failure"}},
	"skipped":    {map[string]*regexp.Regexp{"message": anyText}, nil},
	"error":      {map[string]*regexp.Regexp{"message": anyText, "!type": anyText}, nil},
	"failure":    {map[string]*regexp.Regexp{"message": anyText, "!type": anyText}, nil},
	"system-out": {}, "system-err": {},
}

// junitRules names what a document breaks of the schema, and of the counts that readers take for true.
func junitRules(text []byte) (wrong []string) {
	bad := func(format string, a ...any) { wrong = append(wrong, fmt.Sprintf(format, a...)) }
	top, err := readXML(text)
	if err != nil {
		return []string{err.Error()}
	}
	if top.name != "testsuites" {
		bad("the top is %s", top.name)
	}
	var walk func(e *element)
	walk = func(e *element) {
		s, known := junitSchema[e.name]
		if !known {
			bad("element %s", e.name)
			return
		}
		for name, form := range s.attr {
			bare := strings.TrimPrefix(name, "!")
			v, there := e.attr[bare]
			switch {
			case !there && bare != name:
				bad("%s lacks %s", e.name, bare)
			case there && !form.MatchString(v):
				bad("%s has %s=%q", e.name, bare, v)
			}
		}
		for name := range e.attr {
			if s.attr[name] == nil && s.attr["!"+name] == nil {
				bad("%s has the attribute %s", e.name, name)
			}
		}
		at := 0
		for _, kind := range s.kids {
			n := 0
			for at < len(e.kids) && e.kids[at].name == kind[1:] {
				at, n = at+1, n+1
			}
			if kind[0] == '!' && n != 1 || kind[0] == '?' && n > 1 {
				bad("%s has %d of %s", e.name, n, kind[1:])
			}
		}
		if at < len(e.kids) {
			bad("%s has %s where it may not", e.name, e.kids[at].name)
		}
		for _, k := range e.kids {
			walk(k)
		}
	}
	walk(top)
	for i, s := range top.kids {
		if s.attr["id"] != strconv.Itoa(i) {
			bad("testsuite %d has id %s", i, s.attr["id"])
		}
		count := map[string]int{}
		names := map[string]bool{}
		for _, k := range s.kids {
			if k.name != "testcase" {
				continue
			}
			count["tests"]++
			if names[k.attr["name"]] {
				bad("%s: test case %s is there twice", s.attr["name"], k.attr["name"])
			}
			names[k.attr["name"]] = true
			if len(k.kids) > 1 {
				bad("test case %s has several outcomes", k.attr["name"])
			}
			for _, o := range k.kids {
				count[map[string]string{"failure": "failures", "error": "errors", "skipped": "skipped"}[o.name]]++
			}
		}
		for _, c := range []string{"tests", "failures", "errors", "skipped"} {
			if s.attr[c] != strconv.Itoa(count[c]) {
				bad("testsuite %s says %s=%s, there are %d", s.attr["name"], c, s.attr[c], count[c])
			}
		}
	}
	return wrong
}

// TestJUnit: every outcome, and text that XML cannot hold.
func TestJUnit(t *testing.T) {
	r := &report{Started: time.Unix(1e9, 0), Cards: []*cardResult{{
		Card: "left", Address: "soft:<&\">", Result: "fail", Why: "line\nline", Started: time.Unix(1e9, 5), Health: []healthResult{{When: "before", Result: passed}, {When: "after verify", Result: failed, Why: "x"}},
		Suites: []suiteResult{
			{Suite: "selftest", Result: failed, Seconds: 1e-9, Log: "escape \x1b[31m, zero \x00, half \xff, ]]>", Cases: []testCase{
				{Name: "bar", Result: passed, Seconds: 12345.6789}, {Name: "widths", Result: failed, Why: "a < b \x00\n"}, {Name: "wire", Result: skipped, Why: "no peer"}, {Name: "x", Result: errored, Why: "gone"},
			}},
			{Suite: "verify", Result: notRun, Cases: []testCase{}},
		},
	}, {Card: "right", Result: "unavailable", Why: "held", Started: time.Unix(1e9, 0), Suites: []suiteResult{}}}}
	text, err := r.junit()
	if err != nil {
		t.Fatal(err)
	}
	for _, wrong := range junitRules(text) {
		t.Error(wrong)
	}
	top, err := readXML(text)
	if err != nil {
		t.Fatal(err)
	}
	var seen []string
	for _, s := range top.kids {
		seen = append(seen, fmt.Sprintf("%s.%s %s/%s/%s/%s", s.attr["package"], s.attr["name"], s.attr["tests"], s.attr["failures"], s.attr["errors"], s.attr["skipped"]))
	}
	want := []string{"hil.left.card 3/1/0/0", "hil.left.selftest 4/1/1/1", "hil.left.verify 1/0/0/1", "hil.right.card 1/0/1/0"}
	if !slices.Equal(seen, want) {
		t.Errorf("%q, want %q", seen, want)
	}
}

// TestJUnitRulesBite: what the schema forbids is found.
func TestJUnitRulesBite(t *testing.T) {
	r := &report{Cards: []*cardResult{{Card: "left", Result: "pass", Suites: []suiteResult{{Suite: "verify", Result: passed, Cases: []testCase{{Name: "a", Result: failed, Why: "x"}}}}}}}
	good, err := r.junit()
	if err != nil {
		t.Fatal(err)
	}
	if wrong := junitRules(good); wrong != nil {
		t.Fatal(wrong)
	}
	for _, c := range [][2]string{
		{"<testsuites>", `<testsuites name="x">`},
		{`failures="1"`, `failures="0"`},
		{`id="1"`, `id="7"`},
		{`<properties>`, `<propertiez>`},
		{`type="failure"`, `kind="failure"`},
		{"<system-err></system-err>", ""},
		{`timestamp="`, `timestamp="x`},
		{`time="0.000"`, `time="0,000"`},
		{`name="verify"`, `name=""`},
	} {
		bad := bytes.ReplaceAll(good, []byte(c[0]), []byte(c[1]))
		if bytes.Equal(bad, good) {
			t.Fatalf("%q is not in\n%s", c[0], good)
		}
		if junitRules(bad) == nil {
			t.Errorf("%q for %q is not found", c[1], c[0])
		}
	}
}
