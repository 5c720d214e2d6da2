package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"rnic/cmd/rnicctl/internal/qppair"
	"rnic/driver"
	"rnic/hw"
	"rnic/hw/softcard"
	_ "rnic/hw/softcard/soft"
	"rnic/vfio"
	"rnic/vfio/pcidev"
	"rnic/vfio/vfiouser"
)

// result is what one run of rnicctl left.
type result struct {
	code     int
	out, err string
}

// rnicctl runs a command in this process, on a machine without PCI functions.
func rnicctl(t *testing.T, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return rnicctlOn(ctx, none(t), args...)
}

func rnicctlOn(ctx context.Context, tree pcidev.Tree, args ...string) result {
	var out, err bytes.Buffer
	a := &app{out: &out, err: &err, pci: tree}
	code := a.main(ctx, args)
	return result{code, out.String(), err.String()}
}

// well wants exit 0.
func (r result) well(t *testing.T) result {
	t.Helper()
	if r.code != exitOK {
		t.Fatalf("exit %d\n%s%s", r.code, r.out, r.err)
	}
	return r
}

// sockets gives status sockets a folder of their own: of this test, and near enough for a UNIX socket.
func sockets(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "rnic")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	t.Setenv("XDG_RUNTIME_DIR", dir)
	t.Setenv(deviceVariable, "")
	return dir
}

const schemas = "../../../../docs/json"

// schema compiles docs/json/NAME.schema.json, with those that it refers to.
func schema(t *testing.T, name string) *jsonschema.Schema {
	t.Helper()
	files, err := filepath.Glob(schemas + "/*.schema.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d schemas, %v", len(files), err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
		if err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		if err := c.AddResource(filepath.Base(f), doc); err != nil {
			t.Fatalf("%s: %v", f, err)
		}
	}
	s, err := c.Compile(name + ".schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// objects holds every JSON object of the output to the schema, wants at least one, and gives them.
func (r result) objects(t *testing.T, name string) []map[string]any {
	t.Helper()
	s := schema(t, name)
	d := json.NewDecoder(strings.NewReader(r.out))
	var list []map[string]any
	for d.More() {
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			t.Fatalf("%v in %s", err, r.out)
		}
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Validate(doc); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, raw)
		}
		var m map[string]any
		if err := json.Unmarshal(raw, &m); err != nil {
			t.Fatal(err)
		}
		list = append(list, m)
	}
	if len(list) == 0 {
		t.Fatalf("no object: exit %d, %s", r.code, r.err)
	}
	return list
}

// object wants one object.
func (r result) object(t *testing.T, name string) map[string]any {
	t.Helper()
	list := r.objects(t, name)
	if len(list) != 1 {
		t.Fatalf("%d objects, want one", len(list))
	}
	return list[0]
}

// lines wants a stream: each object on a line of its own.
func (r result) lines(t *testing.T, name string) []map[string]any {
	t.Helper()
	list := r.objects(t, name)
	n := 0
	for s := bufio.NewScanner(strings.NewReader(r.out)); s.Scan(); n++ {
		if !json.Valid(s.Bytes()) {
			t.Fatalf("line %q is no object", s.Text())
		}
	}
	if n != len(list) {
		t.Errorf("%d objects on %d lines", len(list), n)
	}
	return list
}

// program is a program that holds a soft card and sends at itself until the test ends.
type program struct {
	dev  *driver.Device
	pair qppair.Pair
	mr   *driver.MR
	to   *driver.MR // the far end's
}

func hold(t *testing.T, addr string, opts ...driver.Option) *program {
	t.Helper()
	ctx := t.Context()
	dev, err := driver.Open(ctx, addr, opts...)
	if err != nil {
		t.Fatal(err)
	}
	p := &program{dev: dev}
	if p.pair, err = qppair.Connect(ctx, [2]*driver.Device{dev, dev}, qppair.Options{}); err != nil {
		t.Fatal(err)
	}
	if p.mr, err = p.pair[0].MR(ctx, 8192); err != nil {
		t.Fatal(err)
	}
	if p.to, err = p.pair[1].MR(ctx, 8192); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// write does one RDMA WRITE of 5,000 bytes in two segments.
func (p *program) write(ctx context.Context, wrid uint64) error {
	err := p.pair[0].QP.PostSend(&driver.SendWR{
		WRID: wrid, Opcode: driver.Write, Flags: driver.Signaled, Remote: p.to.Remote(),
		SGEs: []driver.SGE{p.mr.SGE(0, 4500), p.mr.SGE(5000, 500)},
	})
	if err == nil {
		_, err = p.pair[0].Wait(ctx)
	}
	return err
}

// traffic writes until stop is called, which says what went wrong.
func (p *program) traffic(ctx context.Context) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		for id := uint64(1); ; id++ {
			if ctx.Err() != nil {
				done <- nil
				return
			}
			if err := p.write(context.WithoutCancel(ctx), id); err != nil {
				done <- err
				return
			}
		}
	}()
	return func() error {
		cancel()
		return <-done
	}
}

// interrupted is the context of a run that Ctrl-C ends after a while.
func interrupted(t *testing.T, after time.Duration) context.Context {
	ctx, cancel := context.WithCancelCause(t.Context())
	timer := time.AfterFunc(after, func() { cancel(errors.New("interrupt signal received")) })
	t.Cleanup(func() {
		timer.Stop()
		cancel(nil)
	})
	return ctx
}

// none is a machine without PCI functions.
func none(t *testing.T) pcidev.Tree { return pcidev.Tree{Sys: t.TempDir(), Proc: "/proc"} }

// The scheme "lone" is a soft card that nobody takes for one.
func init() {
	vfio.Register("lone", func(ctx context.Context, rest string) (vfio.Device, error) { return vfio.Open(ctx, "soft:"+rest) })
}

// The scheme "flipping" is a card that inverts the first byte of the fifth packet that it gathers.
func init() {
	vfio.Register("flipping", func(ctx context.Context, rest string) (vfio.Device, error) {
		d, err := vfio.Open(ctx, "soft:"+rest)
		return flipping{d}, err
	})
}

type flipping struct{ vfio.Device }

func (f flipping) WriteRegion(i int, off uint64, p []byte) error {
	err := f.Device.WriteRegion(i, off, p)
	if err == nil && i == hw.BARCtrl && off == hw.RegControlCommandEnable && p[0] == 1 {
		err = f.Device.WriteRegion(i, hw.RegDebugFlipByte, []byte{5, 0, 0, 0})
	}
	return err
}

// The scheme "remembering" is a card that has a key in its table after its reset: index 7, tag 0xa5, of 4096 bytes.
func init() {
	vfio.Register("remembering", func(ctx context.Context, rest string) (vfio.Device, error) {
		d, err := vfio.Open(ctx, "soft:"+rest)
		return remembering{d}, err
	})
}

type remembering struct{ vfio.Device }

func (r remembering) WriteRegion(i int, off uint64, p []byte) error {
	err := r.Device.WriteRegion(i, off, p)
	if err == nil && i == hw.BARCtrl && off == hw.RegControlCommandEnable && p[0] == 1 {
		e := hw.KeyEntry{Length: 4096, Valid: uint32(hw.KeyEntryValid(0).WithTag(0xa5).WithState(hw.KeyStateValid))}
		err = r.Device.WriteRegion(hw.BARKeytable, 7*hw.KeyEntrySize, e.AsBytes())
	}
	return err
}

// The scheme "spoiling" is a card, alone on its wire, that walks right and places wrong: each payload of
// 1 KiB or more comes to memory with its first byte inverted.
func init() {
	vfio.Register("spoiling", func(ctx context.Context, rest string) (vfio.Device, error) {
		card, err := softcard.New(softcard.Config{Name: rest, Engine: hw.EngineGo})
		if err != nil {
			return nil, err
		}
		wire, err := softcard.NewWire(0)
		if err == nil {
			err = wire.Join(card)
		}
		if err != nil {
			return nil, err
		}
		client, server, err := vfiouser.Pair()
		if err != nil {
			return nil, err
		}
		worker := softcard.NewRunner()
		worker.Add(card)
		go func() {
			_ = vfiouser.Serve(context.Background(), server, spoiling{card})
			worker.Close()
		}()
		return vfiouser.Client(ctx, client, "spoiling:"+rest)
	})
}

type spoiling struct{ *softcard.Card }

func (s spoiling) Attach(h vfiouser.Host) { s.Card.Attach(spoilingHost{h}) }

type spoilingHost struct{ vfiouser.Host }

func (h spoilingHost) Write(iova uint64, p []byte) error {
	if len(p) >= 1<<10 {
		p = bytes.Clone(p)
		p[0] ^= 0xff
	}
	return h.Host.Write(iova, p)
}
