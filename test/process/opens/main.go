// Opens opens and closes two cards again and again, each time with a message
// between them, and says what this process holds after the tenth time and
// after the last.
//
//	opens -n N ADDR ADDR
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"runtime"
	"sort"
	"strings"
	"time"

	"rnic/driver"
	_ "rnic/hw/softcard/soft"
)

// held is what the process holds.
type held struct {
	Round      int      `json:"round"`
	FDs        []string `json:"fds"`       // what each refers to
	Mappings   []string `json:"mappings"`  // of files, shared memory and devices; those of Go's heap come and go
	Anonymous  int      `json:"anonymous"` // number of the others
	Bytes      uint64   `json:"anonymous_bytes"`
	Goroutines int      `json:"goroutines"`
}

func main() {
	n := flag.Int("n", 100, "how often")
	flag.Parse()
	if err := run(*n, flag.Arg(0), flag.Arg(1)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(n int, a, b string) error {
	for round := 1; round <= n; round++ {
		if err := once(a, b); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
		if round == 10 || round == n {
			h, err := settled()
			if err != nil {
				return err
			}
			h.Round = round
			out, err := json.Marshal(h)
			if err != nil {
				return err
			}
			fmt.Println(string(out))
		}
	}
	return nil
}

// settled is what is held once the goroutines that were on their way out have
// gone: their number has been the same for a while.
func settled() (held, error) {
	for same, last := 0, 0; same < 20; {
		runtime.GC()
		time.Sleep(5 * time.Millisecond)
		if n := runtime.NumGoroutine(); n == last {
			same++
		} else {
			same, last = 0, n
		}
	}
	h := held{Goroutines: runtime.NumGoroutine()}
	dir, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return h, err
	}
	for _, e := range dir {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil { // else it was the folder's own
			h.FDs = append(h.FDs, strings.TrimRight(to, "0123456789[]"))
		}
	}
	sort.Strings(h.FDs)
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return h, err
	}
	for line := range strings.Lines(string(maps)) {
		f := strings.Fields(line)
		if f[1][3] == 's' || len(f) > 5 && !strings.HasPrefix(f[5], "[") {
			h.Mappings = append(h.Mappings, strings.Join(f[1:], " "))
		} else {
			h.Anonymous++
			var first, end uint64
			if _, err := fmt.Sscanf(f[0], "%x-%x", &first, &end); err != nil {
				return h, fmt.Errorf("mapping %q: %w", f[0], err)
			}
			h.Bytes += end - first
		}
	}
	return h, nil
}

// once opens both cards, sends a message, and closes everything.
func once(a, b string) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	here, there := net.Pipe()
	var devs []*driver.Device
	defer func() {
		for _, d := range devs {
			err = errors.Join(err, d.Close())
		}
	}()
	got := make(chan error, 2)
	for i, addr := range []string{a, b} {
		d, err := driver.Open(ctx, addr)
		if err != nil {
			return err
		}
		devs = append(devs, d)
		c := []net.Conn{here, there}[i]
		go func() { got <- message(ctx, d, c, i == 0) }()
	}
	return errors.Join(<-got, <-got)
}

func message(ctx context.Context, d *driver.Device, c net.Conn, sends bool) error {
	defer c.Close()
	text := bytes.Repeat([]byte("0123456789abcdef"), 512<<10/16)
	pd, err := d.AllocPD(ctx)
	if err != nil {
		return err
	}
	small, err := pd.AllocMR(ctx, 4096, driver.LocalWrite)
	if err != nil {
		return err
	}
	large, err := pd.AllocMR(ctx, len(text), driver.LocalWrite)
	if err != nil {
		return err
	}
	cq, err := d.CreateCQ(ctx, 16)
	if err != nil {
		return err
	}
	qp, err := pd.CreateQP(ctx, driver.QPInit{Type: driver.RC, SendCQ: cq, RecvCQ: cq, MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 4, MaxRecvSGE: 4})
	if err != nil {
		return err
	}
	if err := qp.PostRecv(&driver.RecvWR{SGEs: []driver.SGE{small.SGE(0, 4096), large.SGE(0, len(text)-4096)}}); err != nil {
		return err
	}
	if _, err := qp.ConnectVia(ctx, c, nil); err != nil {
		return err
	}
	if sends {
		copy(large.Bytes(), text)
		if err := qp.PostSend(&driver.SendWR{Opcode: driver.Send, Flags: driver.Signaled, SGEs: []driver.SGE{large.SGE(0, len(text))}}); err != nil {
			return err
		}
	}
	var wc [1]driver.WC
	if _, err := cq.Wait(ctx, wc[:]); err != nil {
		return err
	}
	if err := wc[0].Err(); err != nil {
		return err
	}
	if !sends && (!bytes.Equal(small.Bytes(), text[:4096]) || !bytes.Equal(large.Bytes()[:len(text)-4096], text[4096:])) {
		return errors.New("what came is not what was sent")
	}
	if cq.FD() < 0 {
		return errors.New("no eventfd")
	}
	// One region and one queue go by themselves, the rest goes with the device.
	if sends {
		return errors.Join(small.Dereg(ctx), qp.Close(), cq.Close())
	}
	return nil
}
