package main

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// workflow is what the test looks at of .github/workflows/hardware.yml.
type workflow struct {
	On          map[string]map[string]any `yaml:"on"`
	Permissions map[string]string
	Jobs        map[string]struct {
		If          string
		Permissions map[string]string
		Concurrency struct {
			Group  string
			Cancel bool `yaml:"cancel-in-progress"`
		}
		RunsOn  []string `yaml:"runs-on"`
		Timeout int      `yaml:"timeout-minutes"`
		Steps   []struct {
			Uses, Run, If string
			With, Env     map[string]any
		}
	}
}

func readWorkflow(t *testing.T) (w workflow, text string) {
	t.Helper()
	b, err := os.ReadFile("../../.github/workflows/hardware.yml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(b, &w); err != nil {
		t.Fatal(err)
	}
	return w, string(b)
}

// TestWorkflowConditions runs the job's condition on the events that GitHub sends.
func TestWorkflowConditions(t *testing.T) {
	w, _ := readWorkflow(t)
	event := func(name, ref string, fork bool, e string) map[string]any {
		var v map[string]any
		if err := json.Unmarshal([]byte(e), &v); err != nil {
			t.Fatal(err)
		}
		if v["repository"] == nil {
			v["repository"] = map[string]any{"fork": fork}
		}
		return map[string]any{
			"github": map[string]any{"event_name": name, "ref": ref, "repository": "us/rnic", "event": v},
			"vars":   map[string]any{"HIL_MAINTAINERS": `["mona"]`},
		}
	}
	labelled := func(action, label, from, by string) string {
		return fmt.Sprintf(`{"action":%q,"label":{"name":%q},"sender":{"login":%q},"pull_request":{"head":{"sha":"1","repo":{"full_name":%q}}}}`, action, label, by, from)
	}
	const target = "pull_request_target"
	nobody := event(target, "refs/heads/main", false, labelled("labeled", "hardware", "us/rnic", "mona"))
	delete(nobody["vars"].(map[string]any), "HIL_MAINTAINERS")
	for _, c := range []struct {
		what  string
		event map[string]any
		want  bool
	}{
		{"push to main", event("push", "refs/heads/main", false, `{}`), true},
		{"push to another branch", event("push", "refs/heads/x", false, `{}`), false},
		{"push of a tag named main", event("push", "refs/tags/main", false, `{}`), false},
		{"push to main of a fork of the repository", event("push", "refs/heads/main", true, `{}`), false},
		{"label by a maintainer", event(target, "refs/heads/main", false, labelled("labeled", "hardware", "us/rnic", "mona")), true},
		{"label by another", event(target, "refs/heads/main", false, labelled("labeled", "hardware", "us/rnic", "eve")), false},
		{"label by one whose name a maintainer's begins with", event(target, "refs/heads/main", false, labelled("labeled", "hardware", "us/rnic", "mon")), false},
		{"another label", event(target, "refs/heads/main", false, labelled("labeled", "bug", "us/rnic", "mona")), false},
		{"fork's pull request, labelled by a maintainer", event(target, "refs/heads/main", false, labelled("labeled", "hardware", "eve/rnic", "mona")), false},
		{"pull request whose fork was deleted", event(target, "refs/heads/main", false, `{"action":"labeled","label":{"name":"hardware"},"sender":{"login":"mona"},"pull_request":{"head":{"sha":"1","repo":null}}}`), false},
		{"later commit of a labelled pull request", event(target, "refs/heads/main", false, labelled("synchronize", "hardware", "us/rnic", "mona")), false},
		{"pull_request of a fork, from a changed file", event("pull_request", "refs/pull/1/merge", false, labelled("labeled", "hardware", "eve/rnic", "mona")), false},
		{"no maintainer is named", nobody, false},
	} {
		for name, job := range w.Jobs {
			got, err := evaluate(job.If, c.event)
			if err != nil {
				t.Fatalf("job %s: %v", name, err)
			}
			if got != c.want {
				t.Errorf("%s: job %s runs: %v, want %v", c.what, name, got, c.want)
			}
		}
	}
}

// TestWorkflowIsNarrow: what the conditions do not say.
func TestWorkflowIsNarrow(t *testing.T) {
	w, text := readWorkflow(t)
	if len(w.On) != 2 || fmt.Sprint(w.On["push"]["branches"]) != "[main]" || fmt.Sprint(w.On["pull_request_target"]["types"]) != "[labeled]" {
		t.Errorf("on: %v", w.On)
	}
	if len(w.Permissions) != 1 || w.Permissions["contents"] != "read" {
		t.Errorf("permissions: %v", w.Permissions)
	}
	if strings.Contains(text, "secrets") || strings.Contains(text, "github.token") || strings.Contains(text, "actions/cache") {
		t.Error("it uses a secret, a token or a cache")
	}
	pinned := regexp.MustCompile(`^actions/[a-z-]+@[0-9a-f]{40}$`)
	for name, j := range w.Jobs {
		if j.Permissions != nil {
			t.Errorf("job %s has permissions of its own: %v", name, j.Permissions)
		}
		if !slices.Contains(j.RunsOn, "self-hosted") || j.Timeout < 1 || j.Timeout > 120 {
			t.Errorf("job %s: runs-on %v, timeout-minutes %d", name, j.RunsOn, j.Timeout)
		}
		if !strings.Contains(j.Concurrency.Group, "matrix.card") || j.Concurrency.Cancel {
			t.Errorf("job %s: concurrency %+v; a run is not to be cut off by the next, and there is one a card", name, j.Concurrency)
		}
		checkouts := 0
		for _, s := range j.Steps {
			if s.Uses != "" && !pinned.MatchString(s.Uses) {
				t.Errorf("job %s uses %s; an action of GitHub's, by its commit", name, s.Uses)
			}
			if strings.Contains(s.Run, "${{") {
				t.Errorf("job %s: an expression in a shell's text: %s", name, s.Run)
			}
			switch {
			case strings.HasPrefix(s.Uses, "actions/checkout@"):
				checkouts++
				if s.With["persist-credentials"] != false {
					t.Errorf("job %s: the checkout leaves its credentials", name)
				}
				if s.With["ref"] != "${{ github.event.pull_request.head.sha || github.sha }}" {
					t.Errorf("job %s: ref is %v; of a pull request the commit that was labelled", name, s.With["ref"])
				}
			case strings.HasPrefix(s.Uses, "actions/setup-go@") && s.With["cache"] != false:
				t.Errorf("job %s: setup-go writes a cache that main's runs would use", name)
			}
		}
		if checkouts != 1 {
			t.Errorf("job %s has %d checkouts", name, checkouts)
		}
	}
}

// expression evaluates GitHub's expressions as far as conditions use them here: values of contexts, strings, !, ==, &&,
// ||, parentheses, contains and fromJSON (docs.github.com, "Evaluate expressions in workflows and actions").
type expression struct {
	tokens []string
	values map[string]any
}

var token = regexp.MustCompile(`\s*('(?:[^']|'')*'|&&|\|\||==|[!(),]|[A-Za-z_][A-Za-z0-9_.-]*)`)

func evaluate(text string, values map[string]any) (result bool, err error) {
	e := &expression{values: values}
	for rest := text; strings.TrimSpace(rest) != ""; {
		m := token.FindStringSubmatchIndex(rest)
		if m == nil || m[0] != 0 {
			return false, fmt.Errorf("%q is not understood", rest)
		}
		e.tokens = append(e.tokens, rest[m[2]:m[3]])
		rest = rest[m[1]:]
	}
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%q: %v", text, r)
		}
	}()
	v := e.or()
	if len(e.tokens) > 0 {
		return false, fmt.Errorf("%q is left of %q", e.tokens, text)
	}
	return truth(v), nil
}

func (e *expression) take(want string) bool {
	if len(e.tokens) > 0 && e.tokens[0] == want {
		e.tokens = e.tokens[1:]
		return true
	}
	return false
}

func (e *expression) or() any {
	v := e.and()
	for e.take("||") {
		if w := e.and(); !truth(v) {
			v = w
		}
	}
	return v
}

func (e *expression) and() any {
	v := e.equal()
	for e.take("&&") {
		if w := e.equal(); truth(v) {
			v = w
		}
	}
	return v
}

func (e *expression) equal() any {
	v := e.unary()
	for e.take("==") {
		a, isA := v.(string)
		w := e.unary()
		b, isB := w.(string)
		// Strings compare without case; null equals null, and no string.
		v = isA && isB && strings.EqualFold(a, b) || v == nil && w == nil
	}
	return v
}

func (e *expression) unary() any {
	switch {
	case e.take("!"):
		return !truth(e.unary())
	case e.take("("):
		v := e.or()
		e.must(")")
		return v
	case e.take("fromJSON"):
		e.must("(")
		text := e.or().(string)
		e.must(")")
		var v any
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			panic(err)
		}
		return v
	case e.take("contains"):
		e.must("(")
		list := e.or()
		e.must(",")
		item, _ := e.or().(string) // null is the empty string
		e.must(")")
		if s, ok := list.(string); ok {
			return strings.Contains(strings.ToLower(s), strings.ToLower(item))
		}
		return slices.ContainsFunc(list.([]any), func(v any) bool { return strings.EqualFold(v.(string), item) })
	}
	t := e.tokens[0]
	e.tokens = e.tokens[1:]
	if s, ok := strings.CutPrefix(t, "'"); ok {
		return strings.ReplaceAll(strings.TrimSuffix(s, "'"), "''", "'")
	}
	var v any = e.values
	for _, key := range strings.Split(t, ".") {
		m, _ := v.(map[string]any)
		v = m[key]
	}
	return v
}

func (e *expression) must(want string) {
	if !e.take(want) {
		panic("want " + want)
	}
}

func truth(v any) bool { return v != nil && v != false && v != "" && v != 0.0 }

// TestExpressions: the reader of conditions knows precedence and what a missing value is.
func TestExpressions(t *testing.T) {
	values := map[string]any{"a": map[string]any{"yes": true, "text": "X", "nothing": nil}}
	for text, want := range map[string]bool{
		"a.yes || a.no && a.no":               true,
		"(a.yes || a.no) && a.no":             false,
		"a.text == 'x'":                       true,
		"a.none.deeper == 'x'":                false,
		"a.none == a.nothing":                 true,
		"!a.none":                             true,
		"contains(fromJSON('[\"x\"]'), 'x')":  true,
		"contains(fromJSON('[\"xy\"]'), 'x')": false,
		"contains('xy', 'x')":                 true,
	} {
		if got, err := evaluate(text, values); got != want || err != nil {
			t.Errorf("%s is %v, %v", text, got, err)
		}
	}
}
