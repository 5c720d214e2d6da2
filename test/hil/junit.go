package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"strings"
)

// The elements and attributes that both common schemas know: that of Ant's JUnitReport, which is the stricter
// (no attributes on testsuites, properties and both outputs in each testsuite, a fixed order), and that of
// Jenkins' xUnit plugin.
type (
	junitSuites struct {
		XMLName xml.Name     `xml:"testsuites"`
		Suites  []junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		Name       string          `xml:"name,attr"`
		Package    string          `xml:"package,attr"`
		ID         int             `xml:"id,attr"`
		Timestamp  string          `xml:"timestamp,attr"`
		Hostname   string          `xml:"hostname,attr"`
		Tests      int             `xml:"tests,attr"`
		Failures   int             `xml:"failures,attr"`
		Errors     int             `xml:"errors,attr"`
		Skipped    int             `xml:"skipped,attr"`
		Time       string          `xml:"time,attr"`
		Properties []junitProperty `xml:"properties>property"`
		Cases      []junitCase     `xml:"testcase"`
		Out        string          `xml:"system-out"`
		Err        string          `xml:"system-err"`
	}
	junitProperty struct {
		Name  string `xml:"name,attr"`
		Value string `xml:"value,attr"`
	}
	junitCase struct {
		Name    string        `xml:"name,attr"`
		Class   string        `xml:"classname,attr"`
		Time    string        `xml:"time,attr"`
		Skipped *junitSkip    `xml:"skipped"`
		Error   *junitFailure `xml:"error"`
		Failure *junitFailure `xml:"failure"`
	}
	junitSkip struct {
		Message string `xml:"message,attr"`
	}
	junitFailure struct {
		Type    string `xml:"type,attr"`
		Message string `xml:"message,attr"`
		Text    string `xml:",chardata"`
	}
)

// junit is junit.xml: a test suite for each suite of each card, and one, "card", for what the runner did
// around them: identity, lease, health.
func (r *report) junit() ([]byte, error) {
	host := r.Host
	if host == "" {
		host = "localhost"
	}
	var all junitSuites
	add := func(c *cardResult, s *suiteResult) {
		j := junitSuite{
			Name: s.Suite, Package: "hil." + c.Card, ID: len(all.Suites), Timestamp: c.Started.UTC().Format("2006-01-02T15:04:05"), Hostname: host,
			Time: seconds(s.Seconds), Properties: []junitProperty{{"address", c.Address}, {"peer", c.Peer}}, Out: s.Log,
		}
		if c.Identity != nil {
			j.Properties = append(j.Properties, junitProperty{"bitstream", c.Identity.Bitstream}, junitProperty{"engine", c.Identity.Engine}, junitProperty{"contract", c.Identity.Contract})
		}
		for _, t := range s.Cases {
			k := junitCase{Name: t.Name, Class: "hil." + c.Card + "." + s.Suite, Time: seconds(t.Seconds)}
			j.Tests++
			switch t.Result {
			case failed:
				j.Failures++
				k.Failure = &junitFailure{"failure", t.Why, t.Why}
			case errored:
				j.Errors++
				k.Error = &junitFailure{"error", t.Why, t.Why}
			case skipped:
				j.Skipped++
				k.Skipped = &junitSkip{t.Why}
			}
			j.Cases = append(j.Cases, k)
		}
		all.Suites = append(all.Suites, j)
	}
	for _, c := range r.Cards {
		add(c, c.around())
		for i := range c.Suites {
			s := c.Suites[i]
			if s.Result == notRun {
				s.Cases = []testCase{{Name: s.Suite, Result: skipped, Why: "not run: " + c.Why}}
			}
			add(c, &s)
		}
	}
	text, err := xml.MarshalIndent(all, "", " ")
	if err != nil {
		return nil, err
	}
	return append([]byte(xml.Header), append(text, '\n')...), nil
}

func seconds(s float64) string { return fmt.Sprintf("%.3f", s) }

// around is what the runner did around the suites, as a suite.
func (r *cardResult) around() *suiteResult {
	s := &suiteResult{Suite: "card"}
	for _, h := range r.Health {
		c := testCase{Name: "health " + h.When, Result: passed, Why: h.Why}
		if h.Result == failed || h.Result == mended && h.When == "after" {
			c.Result = failed
		}
		s.Cases = append(s.Cases, c)
	}
	c := testCase{Name: "run", Result: passed, Seconds: r.Seconds}
	switch r.Result {
	case "refused", "fail":
		if r.Quarantined != nil || r.Result == "refused" {
			c.Result, c.Why = failed, r.Why
		}
	case "unavailable", "interrupted":
		c.Result, c.Why = errored, r.Why
	}
	s.Cases = append(s.Cases, c)
	return s
}

// commandLog is what was run and what it said, for people.
func commandLog(answers []*answer) string {
	var b bytes.Buffer
	for _, a := range answers {
		fmt.Fprintf(&b, "$ rnicctl %s\n", strings.Join(a.args, " "))
		if a.code != exitOK { // what passed is in results.json
			b.Write(a.out.bytes())
		}
		b.Write(a.err.bytes())
		if a.failed != nil {
			fmt.Fprintf(&b, "[%v]\n", a.failed)
		}
		fmt.Fprintf(&b, "[exit %d, %.1f s]\n", a.code, a.took.Seconds())
	}
	return b.String()
}
