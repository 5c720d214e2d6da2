package conformance

import "errors"

// Result is how a scenario ended.
type Result string

// The results. Skip only where the cards lack something that the scenario needs.
const (
	Pass Result = "pass"
	Fail Result = "fail"
	Skip Result = "skip"
)

// Schema names the form of a Report in JSON.
const Schema = "rnic.conformance.v1"

// Report is the outcome of a run.
type Report struct {
	Schema    string           `json:"schema"`
	Scenarios []ScenarioReport `json:"scenarios"`
	Passed    int              `json:"passed"`
	Failed    int              `json:"failed"`
	Skipped   int              `json:"skipped"`
}

// ScenarioReport is the outcome of one scenario.
type ScenarioReport struct {
	Name   string      `json:"name"`
	Result Result      `json:"result"`
	Why    string      `json:"why"`              // of a fail or skip; empty for a pass
	Frames int         `json:"frames"`           // compared with the recording
	Ruled  []string    `json:"ruled,omitempty"`  // ruled differences that applied
	Fields []FieldPair `json:"fields,omitempty"` // of the first differing frame
}

func (r *Report) add(s ScenarioReport) {
	switch s.Result {
	case Pass:
		r.Passed++
	case Fail:
		r.Failed++
	case Skip:
		r.Skipped++
	}
	r.Scenarios = append(r.Scenarios, s)
}

// fail fills in what a replay found.
func (s *ScenarioReport) fail(err error) {
	s.Result, s.Why = Fail, err.Error()
	if d := (*Difference)(nil); errors.As(err, &d) {
		s.Fields = d.Fields
	}
}
