package main

import (
	"context"
	"fmt"
)

// runBench reports figures and judges none: a laboratory has its own history.
func runBench(ctx context.Context, s *session) []testCase {
	a, v := s.verify(ctx, verifyRequests)
	c := oneCase("verified", a, func() (bool, string) {
		if v == nil || a.code != exitOK {
			return false, "verify did not end well"
		}
		return true, ""
	})
	if c.Result == passed {
		c.Figures = []figure{{"packets_verified", float64(v.Packets) / a.took.Seconds(), "packet/s"}}
	}
	return []testCase{c}
}

// figure is a number that a case measured.
type figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
}

// String gives "name value unit".
func (f figure) String() string { return fmt.Sprintf("%s %.4g %s", f.Name, f.Value, f.Unit) }
