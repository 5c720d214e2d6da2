package vm

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"syscall"
)

// cardSocket is where card i is served.
func cardSocket(dir string, i int) string { return fmt.Sprintf("%s/card%d.sock", dir, i) }

// sim is the process that serves the cards.
type sim struct {
	cmd  *exec.Cmd
	done chan struct{} // closed once it was waited for

	mu   sync.Mutex
	said strings.Builder
}

// startSim starts rnicsim with the cards of a guest and waits until they are served.
func startSim(ctx context.Context, c *Config, dir string) (*sim, error) {
	program, err := Build(ctx, "./cmd/rnicsim")
	if err != nil {
		return nil, err
	}
	args := []string{"--json"}
	for i := range c.Cards {
		args = append(args, "--card", fmt.Sprintf("card%d=%s", i, cardSocket(dir, i)))
	}
	s := &sim{cmd: exec.Command(program, append(args, c.SimArgs...)...), done: make(chan struct{})}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	s.cmd.Stderr = writerFunc(s.note)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	ready := make(chan struct{})
	go func() {
		defer close(s.done)
		once := sync.OnceFunc(func() { close(ready) })
		for lines := bufio.NewScanner(out); lines.Scan(); {
			s.note(append(lines.Bytes(), '\n'))
			var e struct{ Event string }
			if json.Unmarshal(lines.Bytes(), &e) == nil && e.Event == "ready" {
				once()
			}
		}
		_ = s.cmd.Wait()
	}()
	select {
	case <-ready:
		return s, nil
	case <-s.done:
		return nil, fmt.Errorf("rnicsim ended: %s", s.output())
	case <-ctx.Done():
		s.kill()
		return nil, fmt.Errorf("rnicsim is not ready: %w: %s", context.Cause(ctx), s.output())
	}
}

type writerFunc func([]byte)

func (f writerFunc) Write(p []byte) (int, error) {
	f(p)
	return len(p), nil
}

func (s *sim) note(p []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.said.Write(p)
}

func (s *sim) output() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.said.String()
}

func (s *sim) kill() { s.end(syscall.SIGKILL) }

// stop ends it, well.
func (s *sim) stop() { s.end(syscall.SIGTERM) }

func (s *sim) end(signal syscall.Signal) {
	_ = s.cmd.Process.Signal(signal)
	<-s.done
}
