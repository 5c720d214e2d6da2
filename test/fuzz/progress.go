package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// progress prints lines and, on a terminal, what runs now beneath them.
type progress struct {
	mu          sync.Mutex
	out         io.Writer
	term        bool
	total, over int
	running     map[*target]stats
	began       time.Time
	stop        chan struct{}
	stopped     sync.WaitGroup
}

func newProgress(out *os.File, total int) *progress {
	st, err := out.Stat()
	p := &progress{out: out, term: err == nil && st.Mode()&os.ModeCharDevice != 0, total: total, running: map[*target]stats{}, began: time.Now(), stop: make(chan struct{})}
	if p.term {
		p.stopped.Go(func() {
			t := time.NewTicker(time.Second)
			defer t.Stop()
			for {
				select {
				case <-p.stop:
					return
				case <-t.C:
					p.mu.Lock()
					p.draw()
					p.mu.Unlock()
				}
			}
		})
	}
	return p
}

func (p *progress) begin(t *target) { p.update(t, stats{}) }

func (p *progress) update(t *target, s stats) {
	p.mu.Lock()
	p.running[t] = s
	p.mu.Unlock()
}

func (p *progress) done(t *target) {
	p.mu.Lock()
	delete(p.running, t)
	p.over++
	p.mu.Unlock()
}

// line prints a line of the report.
func (p *progress) line(s string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.term {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
	fmt.Fprintln(p.out, s)
	p.draw()
}

const barWidth = 30

// draw prints the bar over itself. The caller holds mu.
func (p *progress) draw() {
	if !p.term {
		return
	}
	n := barWidth * p.over / max(1, p.total)
	s := fmt.Sprintf("\r\x1b[K[%s] %d of %d, %v", bar(n), p.over, p.total, time.Since(p.began).Round(time.Second))
	for t, x := range p.running {
		s += fmt.Sprintf(", %s %d", t.name, x.execs)
	}
	fmt.Fprint(p.out, s)
}

func bar(n int) string {
	b := make([]byte, barWidth)
	for i := range b {
		b[i] = '.'
		if i < n {
			b[i] = '#'
		}
	}
	return string(b)
}

// end takes the bar away.
func (p *progress) end() {
	close(p.stop)
	p.stopped.Wait()
	if p.term {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}
