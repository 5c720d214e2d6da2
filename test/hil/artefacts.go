package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"rnic/driver"
	"rnic/driver/status"
	"rnic/hw"
	"rnic/hw/roce/pcapng"
)

// Bounds of what the failures of one card leave, bytes.
const (
	maxArtefacts = 64 << 20
	maxCapture   = 16 << 20
	maxKernelLog = 256 << 10
)

// artefacts is the folder of what the failures of one card leave. It is made when there is something to keep.
type artefacts struct {
	dir  string
	left int64 // bytes that still may be kept
}

// keep writes a file, or its beginning where the rest is too much.
func (k *artefacts) keep(name string, text []byte) {
	if len(text) == 0 {
		return
	}
	cut := int64(len(text)) > k.left
	if cut {
		text = text[:k.left]
	}
	file := filepath.Join(k.dir, name)
	err := os.MkdirAll(filepath.Dir(file), 0o755)
	if err == nil {
		err = os.WriteFile(file, text, 0o644)
	}
	k.left -= int64(len(text))
	if err != nil || cut {
		k.leftOut(name, fmt.Sprintf("cut at %d bytes: %v", len(text), err))
	}
}

// leftOut says in a file of its own what was not kept.
func (k *artefacts) leftOut(name, why string) {
	f, err := os.OpenFile(filepath.Join(k.dir, "LEFT-OUT.txt"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return
	}
	defer f.Close()
	fmt.Fprintf(f, "%s: %s\n", name, why)
}

// bound removes of the files that other programs wrote here what is over the bound, the newest first: the first
// failure tells most.
func (k *artefacts) bound(started time.Time) {
	type file struct {
		name string
		size int64
		when time.Time
	}
	var files []file
	_ = filepath.WalkDir(k.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil
		}
		if i, err := d.Info(); err == nil && !i.ModTime().Before(started) {
			files = append(files, file{path, i.Size(), i.ModTime()})
		}
		return nil
	})
	slices.SortFunc(files, func(a, b file) int { return a.when.Compare(b.when) })
	for _, f := range files {
		if f.size <= k.left {
			k.left -= f.size
			continue
		}
		if os.Remove(f.name) == nil {
			k.leftOut(filepath.Base(f.name), fmt.Sprintf("%d bytes, over the bound", f.size))
		}
	}
}

// names are the files, below the folder of the run.
func (k *artefacts) names() []string {
	list := []string{}
	_ = filepath.WalkDir(k.dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			if rel, err := filepath.Rel(filepath.Dir(k.dir), path); err == nil {
				list = append(list, rel)
			}
		}
		return nil
	})
	return list
}

// collect keeps what a failed suite leaves: what was run and said, then the kernel's log, the card's registers and
// rnicctl's report; at last it runs the suite once more with the frames captured. A repair comes after it.
func (k *artefacts) collect(ctx context.Context, s *session, sr *suiteResult, answers []*answer) {
	started := time.Now()
	k.keep(sr.Suite+".log", []byte(sr.Log))
	for i, a := range answers {
		k.keep(fmt.Sprintf("%s-%d.json", sr.Suite, i), a.out.bytes())
	}
	k.keep(sr.Suite+".kernel.log", kernelLog())
	for _, command := range []string{"regs", "stats"} {
		a := s.run(ctx, lookTime, command, "-d", s.card.Address)
		k.keep(sr.Suite+"."+command+".json", a.out.bytes())
	}
	if err := os.MkdirAll(k.dir, 0o755); err != nil {
		return
	}
	if a := s.run(ctx, lookTime, "report", "-o", filepath.Join(k.dir, sr.Suite+".report.tar.gz")); a.failed != nil || a.code != exitOK {
		k.leftOut(sr.Suite+".report.tar.gz", "rnicctl report: "+strings.TrimSpace(string(a.err.bytes())))
	}
	again := &suiteResult{Suite: sr.Suite}
	lost := captured(ctx, s.card.Address, filepath.Join(k.dir, sr.Suite+".pcapng"), func() {
		i := slices.IndexFunc(suites, func(x suite) bool { return x.name == sr.Suite })
		again.Cases = suites[i].run(ctx, s)
	})
	again.settle()
	sr.Again = again.Result
	if lost != nil {
		k.leftOut(sr.Suite+".pcapng", lost.Error())
	}
	k.bound(started)
}

// captured runs f and writes the frames of the card to a file, as long as a process holds the card and
// answers for it at its status socket. It never opens the card itself: that would reset it.
func captured(ctx context.Context, addr, file string, f func()) error {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- capture(ctx, addr, file) }()
	f()
	cancel()
	return <-done
}

func capture(ctx context.Context, addr, file string) error {
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer out.Close()
	w, err := pcapng.NewWriter(out, "hil", addr)
	if err != nil {
		return err
	}
	size := 0
	for ctx.Err() == nil && size < maxCapture {
		client, err := status.Find(ctx, addr)
		if err == nil {
			var frames driver.Stream[driver.CaptureFrame]
			if frames, err = client.Capture(ctx, driver.CaptureOptions{}); err == nil {
				for size < maxCapture {
					v, err := frames.Next(ctx)
					if err != nil {
						break // its holder is gone: there may be another
					}
					d := pcapng.Outbound
					if v.Direction == hw.DirectionRX {
						d = pcapng.Inbound
					}
					if err := w.Write(&pcapng.Frame{Time: time.Unix(0, int64(v.Time)), Direction: d, Dropped: uint64(v.Lost), Data: v.Data}); err != nil {
						return err
					}
					size += len(v.Data)
				}
				_ = frames.Close()
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
	if size == 0 {
		return fmt.Errorf("no frame was seen at a status socket of %s", addr)
	}
	return w.Flush()
}

// kernelLog is the end of the kernel's log, nil where this user may not read it.
func kernelLog() []byte {
	const readAll = 3 // SYSLOG_ACTION_READ_ALL of syslog(2)
	b := make([]byte, maxKernelLog)
	n, err := syscall.Klogctl(readAll, b)
	if err != nil {
		return nil
	}
	return b[:n]
}
