package selftest

import (
	"context"
	"encoding/binary"
	"errors"
	"strings"
	"testing"
	"time"

	"rnic/hw"
	_ "rnic/hw/softcard/soft"
	"rnic/vfio"
)

// broken is a soft card with a defect: one that a stage is there to find.
type broken struct {
	vfio.Device
	defect string
}

func init() {
	// The scheme "broken": DEFECT@ADDRESS of the card that has it.
	vfio.Register("broken", func(ctx context.Context, rest string) (vfio.Device, error) {
		defect, addr, _ := strings.Cut(rest, "@")
		d, err := vfio.Open(ctx, addr)
		if err != nil {
			return nil, err
		}
		return &broken{d, defect}, nil
	})
}

func (b *broken) Region(i int) (vfio.RegionInfo, error) {
	r, err := b.Device.Region(i)
	switch {
	case b.defect == "bar-small" && i == hw.BARDoorbell:
		r.Size /= 2
	case b.defect == "bar-unmapped" && i == hw.BARKeytable:
		r.Areas = nil
	}
	return r, err
}

func (b *broken) MapRegion(i int) (*vfio.Mapping, error) {
	// A window that leads nowhere: what is stored never reaches the card.
	if b.defect == "key-table" && i == hw.BARKeytable || b.defect == "doorbell" && i == hw.BARDoorbell {
		r, err := b.Device.Region(i)
		if err != nil {
			return nil, err
		}
		m, err := vfio.AllocMemory(int(r.Size), vfio.MemoryOptions{})
		if err != nil {
			return nil, err
		}
		defer m.Close()
		return vfio.NewMapping(r.Size, []vfio.Area{{Size: r.Size}}, m.FD(), 0, true)
	}
	return b.Device.MapRegion(i)
}

func (b *broken) ReadRegion(i int, off uint64, p []byte) error {
	if err := b.Device.ReadRegion(i, off, p); err != nil {
		return err
	}
	if i != hw.BARCtrl {
		if i == vfio.RegionConfig && off == 0 && len(p) > 4 && b.defect == "config" {
			p[vfio.ConfigDeviceID]++
		}
		return nil
	}
	switch {
	case b.defect == "bar-ones":
		for j := range p {
			p[j] = 0xff
		}
	case b.defect == "identity" && off == hw.RegIdentVersion:
		binary.LittleEndian.PutUint32(p, uint32(hw.IdentVersion(0).WithMajor(hw.ContractMajor+1)))
	case b.defect == "scratch" && off == hw.RegControlScratch:
		p[2] |= 0x10 // bit 20 is stuck
	case b.defect == "dma-read" && off == hw.RegControlDMATestCRC:
		p[0] ^= 1
	case b.defect == "dma-read-all" && off == hw.RegControlDMATest && binary.LittleEndian.Uint32(p)&testFault != 0:
		clear(p) // no fault is ever reported
	}
	return nil
}

func (b *broken) WriteRegion(i int, off uint64, p []byte) error {
	if err := b.Device.WriteRegion(i, off, p); err != nil || i != hw.BARCtrl {
		return err
	}
	switch {
	case b.defect == "widths" && off == hw.RegControlScratchWide+4 && len(p) == 4:
		return b.Device.WriteRegion(i, hw.RegControlScratchWide, []byte{0, 0, 0, 0})
	case b.defect == "loopback" && off == hw.RegControlCommandEnable && p[0] == 1:
		return b.Device.WriteRegion(i, hw.RegDebugFlipByte, []byte{1, 0, 0, 0})
	}
	return nil
}

func (b *broken) MapDMA(iova uint64, m *vfio.Memory, off, n uint64, p vfio.Prot) error {
	if b.defect == "dma-write" {
		p = vfio.ProtReadWrite // an IOMMU that lets everything pass
	}
	return b.Device.MapDMA(iova, m, off, n, p)
}

func (b *broken) SetIRQs(i, start int, fds []int) error {
	if b.defect == "vectors" && len(fds) > 3 {
		fds = append([]int(nil), fds...)
		fds[2], fds[3] = fds[3], fds[2]
	}
	return b.Device.SetIRQs(i, start, fds)
}

// TestEachStageFindsItsDefect: the stage for a defect is the first that fails, what is below it passes, what is above
// is not run, and the report says what was seen and where to look.
func TestEachStageFindsItsDefect(t *testing.T) {
	for _, c := range []struct{ defect, stage, says string }{
		{"config", "config", "10ee:7265"},
		{"bar-small", "bar", "DOORBELL"},
		{"bar-unmapped", "bar", "KEYTABLE"},
		{"bar-ones", "bar", "all ones"},
		{"identity", "identity", "contract 2.0"},
		{"scratch", "scratch", "0x00100000"},
		{"widths", "widths", "high half"},
		{"dma-read", "dma-read", "CRC-32"},
		{"dma-read-all", "dma-read", "not mapped"},
		{"dma-write", "dma-write", "mapped for reading"},
		{"vectors", "vectors", "vector 2"},
		{"key-table", "key-table", "table 0x0"},
		{"doorbell", "doorbell", "no completion"},
		{"loopback", "loopback", "byte 0 of 7680"},
		{"none", "wire", "RETRY_EXC"}, // the peer is on another wire
	} {
		t.Run(c.defect, func(t *testing.T) {
			r, err := Run(t.Context(), Options{
				Addr: "broken:" + c.defect + "@soft:" + c.defect + "?wire=" + c.defect, Peer: "soft:" + c.defect + "-peer?wire=elsewhere", Timeout: time.Second,
			})
			if err != nil {
				t.Fatal(err)
			}
			if r.Passed || len(r.Stages) != len(stages) {
				t.Fatalf("passed %v, %d stages", r.Passed, len(r.Stages))
			}
			want := Pass
			for _, s := range r.Stages {
				if s.Stage == c.stage {
					if s.Outcome != Fail || !strings.Contains(s.Why, c.says) || s.Fix == "" {
						t.Errorf("%s: %s, %q, fix %q; want it to fail with %q", s.Stage, s.Outcome, s.Why, s.Fix, c.says)
					}
					want = NotRun
				} else if s.Outcome != want {
					t.Errorf("%s: %s (%s), want %s", s.Stage, s.Outcome, s.Why, want)
				}
			}
		})
	}
}

// TestPass: a whole card passes each stage; without a peer the wire is skipped, with the reason.
func TestPass(t *testing.T) {
	for _, peer := range []string{"soft:b?wire=pass", ""} {
		var told []string
		r, err := Run(t.Context(), Options{Addr: "soft:a?wire=pass", Peer: peer, Timeout: 5 * time.Second, Progress: func(done, of int, stage string) {
			if done != len(told) || of != len(stages) {
				t.Errorf("progress %d of %d at %s", done, of, stage)
			}
			told = append(told, stage)
		}})
		if err != nil || !r.Passed {
			t.Fatalf("%v, %+v", err, r)
		}
		for i, s := range r.Stages {
			want := Pass
			if peer == "" && s.Stage == "wire" {
				want = Skip
			}
			if s.Outcome != want || s.Outcome == Pass && s.Found == "" || s.Outcome == Skip && s.Why == "" || told[i] != s.Stage {
				t.Errorf("%+v", s)
			}
		}
	}
}

// TestOneStage: a stage can be run alone.
func TestOneStage(t *testing.T) {
	for _, name := range Names() {
		r, err := Run(t.Context(), Options{Addr: "soft:a?wire=one", Peer: "soft:b?wire=one", Timeout: 5 * time.Second, Stages: []string{name}})
		if err != nil || !r.Passed {
			t.Fatalf("%s: %v, %+v", name, err, r)
		}
		for _, s := range r.Stages {
			if want := map[bool]Outcome{true: Pass, false: NotRun}[s.Stage == name]; s.Outcome != want {
				t.Errorf("--stage %s: %s is %s (%s)", name, s.Stage, s.Outcome, s.Why)
			}
		}
	}
	if _, err := Run(t.Context(), Options{Addr: "soft:a", Stages: []string{"cellar"}}); !errors.Is(err, ErrStage) {
		t.Errorf("unknown stage: %v", err)
	}
}

// TestNoCard: a card that cannot be opened is an error, not a broken stage.
func TestNoCard(t *testing.T) {
	for _, stages := range [][]string{nil, {"loopback"}} {
		if _, err := Run(t.Context(), Options{Addr: "vfio-user:/nowhere/at/all", Timeout: time.Second, Stages: stages}); !errors.Is(err, vfio.ErrNotFound) {
			t.Errorf("%v: %v", stages, err)
		}
	}
}
