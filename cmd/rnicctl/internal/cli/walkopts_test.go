package cli

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// TestWalkRefusals: bad options are refused with the reason.
func TestWalkRefusals(t *testing.T) {
	many := make([]string, 64)
	for i := range many {
		many[i] = fmt.Sprintf("%d:10", i+1)
	}
	for _, c := range []struct {
		name string
		o    walkOptions
		why  string
	}{
		{"mtu", walkOptions{mtu: 1500, opcode: opSend, gather: "card"}, "1500 is no path MTU"},
		{"mtu 0", walkOptions{mtu: 0, opcode: opSend, gather: "card"}, "0 is no path MTU"},
		{"opcode", walkOptions{mtu: 4096, opcode: "atomic", gather: "card"}, "no such operation gathers"},
		{"gather", walkOptions{mtu: 4096, opcode: opSend, gather: "both"}, "neither card nor host"},
		{"64 segments", walkOptions{mtu: 4096, opcode: opSend, gather: "card", sges: many}, "at most 63"},
		{"read-response of two", walkOptions{mtu: 4096, opcode: opReadResponse, gather: "card", sges: []string{"1:1", "1:1"}}, "one segment"},
		{"read-response inline", walkOptions{mtu: 4096, opcode: opReadResponse, gather: "card", inline: true}, "nobody posts it"},
		{"read-response by host", walkOptions{mtu: 4096, opcode: opReadResponse, gather: "host"}, "contiguous"},
		{"inline by host", walkOptions{mtu: 4096, opcode: opSend, gather: "host", inline: true}, "nobody gathers"},
		{"no colon", walkOptions{mtu: 4096, opcode: opSend, gather: "card", sges: []string{"1024"}}, "no colon"},
		{"no region", walkOptions{mtu: 4096, opcode: opSend, gather: "card", sges: []string{":1024"}}, "region"},
		{"no length", walkOptions{mtu: 4096, opcode: opSend, gather: "card", sges: []string{"1:"}}, "byte count"},
		{"negative", walkOptions{mtu: 4096, opcode: opSend, gather: "card", sges: []string{"1:-1"}}, "byte count"},
		{"signed", walkOptions{mtu: 4096, opcode: opSend, gather: "card", sges: []string{"1:+1"}}, "byte count"},
		{"unit", walkOptions{mtu: 4096, opcode: opSend, gather: "card", sges: []string{"1:1KB"}}, "byte count"},
		{"too long", walkOptions{mtu: 4096, opcode: opSend, gather: "card", sges: []string{"1:3GiB"}}, "longest message"},
		{"in all too long", walkOptions{mtu: 4096, opcode: opSend, gather: "card", sges: []string{"1:16MiB", "1:1"}}, "at most 16777216"},
	} {
		err := c.o.check()
		var f *failure
		if !errors.As(err, &f) || f.exit != exitUsage || f.fix == "" || !strings.Contains(err.Error(), c.why) {
			t.Errorf("%s: error %v, want exit 2, a fix and %q", c.name, err, c.why)
		}
	}
}

func TestWalkOptions(t *testing.T) {
	for _, c := range []struct {
		o     walkOptions
		want  []segment
		total uint64
	}{
		{walkOptions{mtu: 4096, opcode: opSend, gather: "card"}, []segment{{"MR 1", 1024}, {"MR 2", 6144}, {"MR 1", 512}}, 7680},
		{walkOptions{mtu: 256, opcode: opWrite, gather: "host", sges: []string{"a:0", "log:4KiB"}}, []segment{{"a", 0}, {"log", 4096}}, 4096},
		{walkOptions{mtu: 1024, opcode: opReadResponse, gather: "card"}, []segment{{"MR 1", 7680}}, 7680},
		{walkOptions{mtu: 1024, opcode: opSend, gather: "card", inline: true}, []segment{{"MR 1", 64}}, 64},
	} {
		if err := c.o.check(); err != nil {
			t.Error(err)
			continue
		}
		if fmt.Sprint(c.o.parsed) != fmt.Sprint(c.want) || c.o.total != c.total {
			t.Errorf("segments %v, %d bytes; want %v, %d", c.o.parsed, c.o.total, c.want, c.total)
		}
	}
}
