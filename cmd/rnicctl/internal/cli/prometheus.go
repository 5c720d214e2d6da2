package cli

import (
	"fmt"
	"io"
	"strconv"
	"strings"
)

// metrics is a page of Prometheus' text format, version 0.0.4: the samples of a metric stand together.
type metrics struct {
	names   []string // in the order of their first sample
	kinds   map[string]string
	samples map[string][]string
}

// add adds a sample; labels are names and values in turn.
func (m *metrics) add(name, kind string, value uint64, labels ...string) {
	name = strings.Map(metricRune, name)
	if m.kinds == nil {
		m.kinds, m.samples = map[string]string{}, map[string][]string{}
	}
	if _, ok := m.kinds[name]; !ok {
		m.names = append(m.names, name)
		m.kinds[name] = kind
	}
	var b strings.Builder
	b.WriteString(name)
	for i := 0; i+1 < len(labels); i += 2 {
		b.WriteString([]string{"{", ","}[min(i, 1)])
		b.WriteString(labels[i] + `="` + escapeLabel.Replace(printable(labels[i+1])) + `"`)
	}
	if len(labels) > 0 {
		b.WriteByte('}')
	}
	m.samples[name] = append(m.samples[name], b.String()+" "+strconv.FormatUint(value, 10))
}

// metricRune makes a name one that the format takes: a holder's counters have any.
func metricRune(r rune) rune {
	if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == ':' {
		return r
	}
	return '_'
}

var escapeLabel = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

func (m *metrics) write(w io.Writer) error {
	for _, n := range m.names {
		if _, err := fmt.Fprintf(w, "# TYPE %s %s\n%s\n", n, m.kinds[n], strings.Join(m.samples[n], "\n")); err != nil {
			return err
		}
	}
	return nil
}
