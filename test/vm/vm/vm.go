// Package vm runs a static program as the payload of a Linux guest under QEMU, whose emulated IOMMU translates the DMA
// of soft cards that are attached by vfio-user. docs/vm.md describes it.
package vm

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"rnic/test/vm/port"
)

// The guest's IOMMUs.
const (
	Intel  = "intel"  // intel-iommu, in caching mode
	Virtio = "virtio" // virtio-iommu; without interrupt remapping; 6.12 only
	AMD    = "amd"    // amd-iommu, with DMA remapping; 6.1 only
	None   = "none"
)

// The interfaces of the guest's VFIO. A payload finds which one it is to use in RNIC_VM_VFIO.
const (
	Type1   = "type1"   // container and group; on 6.12 Debian's own modules
	IOMMUFD = "iommufd" // iommufd and the character device, 6.12 only
	Compat  = "compat"  // iommufd as container, 6.12 only
)

// What a guest may end with besides its payload's verdict.
var (
	ErrNoVerdict = errors.New("the guest ended without a verdict")
	ErrInit      = errors.New("the guest was not set up")
)

// Config says what guest runs. The zero value is 6.1 with type1 behind an Intel IOMMU and no card.
type Config struct {
	Kernel string // Kernel61 or Kernel612; "" is the one for VFIO
	IOMMU  string // "" is Intel
	VFIO   string // "" is Type1
	// IOMMUOptions are more properties of the IOMMU's device, such as "intremap=off".
	IOMMUOptions string
	// Cards is how many soft cards are attached. They are joined by a wire, on the host.
	Cards int
	// SimArgs are more arguments of rnicsim.
	SimArgs []string
	// Devices are more PCI functions, as QEMU's -device takes them: "edu,dma_mask=0xffffffff". Each has its PCI
	// address from Function. Those of BindDevices are bound to vfio-pci.
	Devices     []string
	BindDevices bool
	// NoBind leaves the cards without a driver.
	NoBind bool
	// RootPorts puts each card behind a root port of its own, from where device_del takes it.
	RootPorts bool

	MemoryMB  int // 0 is 384
	CPUs      int // 0 is 1
	HugePages int // of 2 MiB, taken at boot
	// KernelArgs go to the kernel's command line.
	KernelArgs []string
	// Modules are loaded besides those for VFIO, with what they depend on; ModuleArgs are parameters by module.
	Modules    []string
	ModuleArgs map[string]string

	// Binary is the static program that runs; Args are its arguments, Env is added to its environment.
	Binary string
	Args   []string
	Env    []string
	// Udev puts Debian's udev into the guest's root, with a shell and the tools for users and groups. Nothing is started.
	Udev bool
	// Files are put into the guest: path there to path here, of a file or of a folder with all under it.
	Files map[string]string

	// Limit bounds the guest's life, from QEMU's start; 0 is five minutes.
	Limit time.Duration
	// Trace is a file for QEMU's trace of vfio-user messages.
	Trace string
	// Say gets a line for each step of a preparation; nil is silence.
	Say func(string)
}

// Result is what a guest left.
type Result struct {
	Guest  string // kernel, VFIO's interface and IOMMU
	Exit   int    // the payload's exit code, -1 where a signal ended it
	Signal string // the signal's name
	Stdout []byte
	Stderr []byte
	Kernel string  // the kernel's log
	Boot   float64 // the guest's uptime when the payload started, in seconds
	Took   time.Duration
	// Console is what the kernel printed on the first serial port, Sim what rnicsim printed.
	Console, Sim string
}

// Log is the kernel's log from init's start on.
func (r *Result) Log() string {
	if _, after, ok := strings.Cut(r.Kernel, "Run /init as init process\n"); ok {
		return after
	}
	return r.Kernel
}

// Passed says that the payload ended with 0.
func (r *Result) Passed() bool { return r.Exit == 0 }

// Run runs a guest from its start to its end. An error says that there is no verdict; a payload that failed is none.
func Run(ctx context.Context, c Config) (Result, error) {
	g, err := Start(ctx, c)
	if err != nil {
		return Result{}, err
	}
	return g.Wait()
}

// Guest is a virtual machine that runs.
type Guest struct {
	cfg    Config
	dir    string
	began  time.Time
	ctx    context.Context
	cancel context.CancelFunc

	qemu *exec.Cmd
	sim  *sim
	port net.Conn
	qmp  *monitor

	mu     sync.Mutex
	result Result
	more   chan struct{} // closed and replaced when there is more output
	ended  bool          // no more frames come
	failed error         // what init or the port said

	done chan struct{} // closed when all has ended
	err  error
}

// Start starts a guest, which ends by itself or with the context. It prepares what it needs. Wait or Close must follow.
func Start(ctx context.Context, c Config) (*Guest, error) {
	c, err := c.defaults()
	if err != nil {
		return nil, err
	}
	cache, err := cacheFolder()
	if err != nil {
		return nil, err
	}
	if err := Prepare(ctx, c.Say, "qemu", c.Kernel); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	qemu, kernel := filepath.Join(cache, "qemu"), filepath.Join(cache, c.Kernel)
	accel, err := acceleration(ctx, cache, qemu, kernel, c.Say)
	if err != nil {
		return nil, err
	}
	udev := ""
	if c.Udev {
		if udev, err = prepare(ctx, cache, udevPart, c.Say); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
	}
	// Sockets have short names, and live in a folder of their own.
	dir, err := os.MkdirTemp("", "rnicvm")
	if err != nil {
		return nil, err
	}
	g := &Guest{cfg: c, dir: dir, more: make(chan struct{}), done: make(chan struct{})}
	g.result.Exit, g.result.Guest = noExit, c.Kernel+" "+c.VFIO+" "+c.IOMMU
	g.ctx, g.cancel = context.WithTimeoutCause(ctx, c.Limit, fmt.Errorf("the guest did not end in %v", c.Limit))
	if err := g.start(qemu, kernel, udev, accel); err != nil {
		g.end()
		return nil, fmt.Errorf("start the guest: %w", err)
	}
	return g, nil
}

// defaults fills in and checks a Config.
func (c Config) defaults() (Config, error) {
	set := func(s *string, v string) {
		if *s == "" {
			*s = v
		}
	}
	set(&c.IOMMU, Intel)
	set(&c.VFIO, Type1)
	if c.VFIO == Type1 && c.IOMMU != Virtio {
		set(&c.Kernel, Kernel61)
	}
	set(&c.Kernel, Kernel612)
	if c.MemoryMB == 0 {
		c.MemoryMB = 384
	}
	if c.CPUs == 0 {
		c.CPUs = 1
	}
	if c.Limit == 0 {
		c.Limit = 5 * time.Minute
	}
	if c.Say == nil {
		c.Say = func(string) {}
	}
	switch {
	case c.Kernel != Kernel61 && c.Kernel != Kernel612:
		return c, fmt.Errorf("kernel %q: want %s or %s", c.Kernel, Kernel61, Kernel612)
	case c.VFIO != Type1 && c.VFIO != IOMMUFD && c.VFIO != Compat:
		return c, fmt.Errorf("VFIO %q: want %s, %s or %s", c.VFIO, Type1, IOMMUFD, Compat)
	case c.VFIO != Type1 && c.Kernel != Kernel612:
		return c, fmt.Errorf("VFIO %s needs the kernel %s", c.VFIO, Kernel612)
	case c.IOMMU != Intel && c.IOMMU != Virtio && c.IOMMU != AMD && c.IOMMU != None:
		return c, fmt.Errorf("IOMMU %q: want %s, %s, %s or %s", c.IOMMU, Intel, Virtio, AMD, None)
	case c.IOMMU == Virtio && c.Kernel != Kernel612:
		return c, fmt.Errorf("%s has no driver for virtio-iommu: take %s", c.Kernel, Kernel612)
	case c.IOMMU == AMD && c.Kernel != Kernel61:
		return c, fmt.Errorf("%s has no driver for amd-iommu: take %s", c.Kernel, Kernel61)
	case c.Cards > 8 || len(c.Devices) > 8:
		return c, errors.New("there is room for 8 cards and 8 other devices")
	case c.Binary == "":
		return c, errors.New("no program to run")
	}
	return c, nil
}

// Card is the PCI address of card i in the guest.
func (c *Config) Card(i int) string {
	if c.RootPorts {
		return fmt.Sprintf("0000:%02x:00.0", 1+i)
	}
	return fmt.Sprintf("0000:00:%02x.0", firstCard+i)
}

// Function is the PCI address of device i of Devices in the guest.
func (c *Config) Function(i int) string { return fmt.Sprintf("0000:00:%02x.0", firstDevice+i) }

// start starts the cards and QEMU.
func (g *Guest) start(qemu, kernel, udev, accel string) error {
	if err := g.initramfs(kernel, udev); err != nil {
		return err
	}
	if g.cfg.Cards > 0 {
		var err error
		if g.sim, err = startSim(g.ctx, &g.cfg, g.dir); err != nil {
			return err
		}
	}
	portL, err := net.Listen("unix", g.path("port.sock"))
	if err != nil {
		return err
	}
	defer portL.Close()
	qmpL, err := net.Listen("unix", g.path("qmp.sock"))
	if err != nil {
		return err
	}
	defer qmpL.Close()

	line := append(qemuCommand(qemu), g.cfg.qemuArgs(g.dir, kernel, accel)...)
	g.qemu = exec.Command(line[0], line[1:]...)
	g.qemu.Env = append(os.Environ(), qemuEnv(qemu)...)
	said := &bytes.Buffer{}
	g.qemu.Stdout, g.qemu.Stderr = said, said
	g.qemu.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	g.qemu.WaitDelay = 5 * time.Second
	g.began = time.Now()
	if err := g.qemu.Start(); err != nil {
		g.qemu = nil
		return err
	}
	exited := make(chan error, 1)
	go func() { exited <- g.qemu.Wait() }()
	died := func(err error) error { return fmt.Errorf("QEMU: %v: %s", err, bytes.TrimSpace(said.Bytes())) }
	accept := func(l net.Listener) (net.Conn, error) {
		type accepted struct {
			net.Conn
			error
		}
		got := make(chan accepted, 1)
		go func() {
			c, err := l.Accept()
			got <- accepted{c, err}
		}()
		select {
		case a := <-got:
			return a.Conn, a.error
		case err := <-exited:
			exited <- err
			return nil, died(err)
		case <-g.ctx.Done():
			return nil, context.Cause(g.ctx)
		}
	}
	if g.port, err = accept(portL); err == nil {
		var c net.Conn
		if c, err = accept(qmpL); err == nil {
			g.qmp, err = newMonitor(g.ctx, c)
		}
	}
	if err != nil {
		_ = g.qemu.Process.Kill()
		return err
	}
	frames := make(chan struct{})
	go func() {
		defer close(frames)
		g.read()
	}()
	go func() {
		defer close(g.done)
		defer g.end()
		var err error
		select {
		case err = <-exited:
		case <-g.ctx.Done():
			_ = g.qemu.Process.Kill()
			<-exited
			err = context.Cause(g.ctx)
		}
		_ = g.port.SetReadDeadline(time.Now().Add(5 * time.Second)) // what it sent is still read
		<-frames
		if err != nil {
			err = died(err)
		}
		g.finish(err)
	}()
	return nil
}

// read takes in the guest's frames until the port is closed.
func (g *Guest) read() {
	r := port.NewReader(g.port)
	for {
		k, data, err := r.Read()
		g.mu.Lock()
		switch {
		case err != nil:
			g.ended = true
			if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) && g.failed == nil {
				g.failed = err
			}
		case k == port.Ready:
			g.result.Boot, _ = strconv.ParseFloat(string(data), 64)
		case k == port.Stdout:
			g.result.Stdout = append(g.result.Stdout, data...)
		case k == port.Stderr:
			g.result.Stderr = append(g.result.Stderr, data...)
		case k == port.Log:
			g.result.Kernel += string(data)
		case k == port.Failed:
			g.failed = fmt.Errorf("%w: %s", ErrInit, data)
		case k == port.Exit:
			code, err := strconv.Atoi(string(data))
			if err != nil {
				code, g.result.Signal = -1, strings.TrimPrefix(string(data), "signal: ")
			}
			g.result.Exit = code
			g.ended = true
		}
		close(g.more)
		g.more = make(chan struct{})
		ended := g.ended
		g.mu.Unlock()
		if ended {
			return
		}
	}
}

// noExit stands for the exit code until there is one.
const noExit = -2

// finish gathers what there is to be had, once QEMU has ended.
func (g *Guest) finish(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.result.Took = time.Since(g.began)
	console, _ := os.ReadFile(g.path("console.log"))
	g.result.Console = string(console)
	if g.sim != nil {
		g.sim.stop()
		g.result.Sim = g.sim.output()
	}
	switch {
	case g.failed != nil:
		g.err = g.failed
	case err != nil && g.result.Exit == noExit:
		g.err = fmt.Errorf("%w: %w", ErrNoVerdict, err)
	case g.result.Exit == noExit:
		g.err = fmt.Errorf("%w: %w", ErrNoVerdict, errors.New("QEMU ended"))
	}
	if g.err != nil {
		g.err = fmt.Errorf("%w\nkernel's log, its end:\n%s\nconsole, its end:\n%s", g.err, tail(g.result.Kernel, 20), tail(g.result.Console, 30))
	}
}

// tail gives the last lines of a text.
func tail(text string, lines int) string {
	all := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// end ends what runs and removes the folder.
func (g *Guest) end() {
	g.cancel()
	if g.sim != nil {
		g.sim.stop()
	}
	if g.port != nil {
		_ = g.port.Close()
	}
	if g.qmp != nil {
		g.qmp.close()
	}
	_ = os.RemoveAll(g.dir)
}

// Wait waits for the guest's end.
func (g *Guest) Wait() (Result, error) {
	<-g.done
	return g.result, g.err
}

// Close ends the guest at once, if it still runs.
func (g *Guest) Close() {
	g.cancel()
	<-g.done
}

// Await waits until the payload has printed a line that has text in it, and gives the line. It starts at the first line
// each time.
func (g *Guest) Await(ctx context.Context, text string) (string, error) {
	for {
		g.mu.Lock()
		out, more, ended := g.result.Stdout, g.more, g.ended
		g.mu.Unlock()
		for s := bufio.NewScanner(bytes.NewReader(out[:1+bytes.LastIndexByte(out, '\n')])); s.Scan(); {
			if strings.Contains(s.Text(), text) {
				return s.Text(), nil
			}
		}
		if ended {
			return "", fmt.Errorf("the guest ended before it printed %q", text)
		}
		select {
		case <-more:
		case <-ctx.Done():
			return "", fmt.Errorf("wait for %q: %w", text, context.Cause(ctx))
		}
	}
}

// Send writes to the payload's standard input.
func (g *Guest) Send(text string) error { return port.Write(g.port, port.Stdin, []byte(text)) }

// KillCards ends the cards' process by SIGKILL.
func (g *Guest) KillCards() { g.sim.kill() }

// QMP runs a command of QEMU's monitor, such as device_del with {"id": "card0"}, and gives what it returns. The cards'
// devices are card0, card1, …; those of Devices are device0, device1, ….
func (g *Guest) QMP(ctx context.Context, command string, arguments any) ([]byte, error) {
	return g.qmp.run(ctx, command, arguments)
}

// path is a file of the guest's folder.
func (g *Guest) path(name string) string { return filepath.Join(g.dir, name) }
