package main

import (
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	"rnic/hw"
	"rnic/vfio"
)

// silent is a vfio-user client, written from the specification (QEMU,
// docs/interop/vfio-user.rst), that answers nothing: what the server sees of a
// program that is stopped.
type silent struct {
	t *testing.T
	c net.Conn
}

// Commands of the specification.
const (
	userVersion     = 1
	userDMAMap      = 2
	userRegionRead  = 9
	userRegionWrite = 10
	userDMARead     = 11
)

var le = binary.LittleEndian

func (s *silent) send(cmd uint16, body []byte) {
	s.t.Helper()
	b := le.AppendUint16(nil, 7) // message ID
	b = le.AppendUint16(b, cmd)
	b = le.AppendUint32(b, uint32(16+len(body)))
	b = le.AppendUint64(b, 0) // flags: a command; error
	if _, err := s.c.Write(append(b, body...)); err != nil {
		s.t.Fatal(err)
	}
}

// await gives the body of the next message of a command.
func (s *silent) await(cmd uint16) []byte {
	s.t.Helper()
	for {
		var h [16]byte
		if _, err := io.ReadFull(s.c, h[:]); err != nil {
			s.t.Fatalf("waiting for command %d: %v", cmd, err)
		}
		body := make([]byte, le.Uint32(h[4:])-16)
		if _, err := io.ReadFull(s.c, body); err != nil {
			s.t.Fatal(err)
		}
		if e := le.Uint32(h[12:]); e != 0 {
			s.t.Fatalf("command %d: errno %d", le.Uint16(h[2:]), e)
		}
		if le.Uint16(h[2:]) == cmd {
			return body
		}
	}
}

func access(region int, off uint64, n int) []byte {
	return le.AppendUint32(le.AppendUint32(le.AppendUint64(nil, off), uint32(region)), uint32(n))
}

func (s *silent) store(region int, off uint64, v uint32, n int) {
	s.t.Helper()
	s.send(userRegionWrite, append(access(region, off, n), le.AppendUint32(nil, v)[:n]...))
	s.await(userRegionWrite)
}

func (s *silent) load(off uint64) uint32 {
	s.t.Helper()
	s.send(userRegionRead, access(hw.BARCtrl, off, 4))
	return le.Uint32(s.await(userRegionRead)[16:])
}

// A card whose client does not answer DMA by message waits alone: the other
// cards of the process go on meanwhile.
func TestCardsDoNotWaitForEachOther(t *testing.T) {
	_, _, a, b := simulator(t)
	c, err := net.Dial("unix", a)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	s := &silent{t, c}
	s.send(userVersion, append(le.AppendUint32(nil, 1<<16), "{}\x00"...)) // version 0.1
	s.await(userVersion)
	for !hw.ControlStatus(s.load(hw.RegControlStatus)).Ready() {
	}
	s.store(vfio.RegionConfig, 4, 6, 2) // command register: memory space and bus master
	const iova = 1 << 20
	body := le.AppendUint32(le.AppendUint32(nil, 32), 3) // argsz; flags: read and write
	for _, v := range []uint64{0, iova, 4096} {          // offset, address, size
		body = le.AppendUint64(body, v)
	}
	s.send(userDMAMap, body) // without a descriptor: by message
	s.await(userDMAMap)
	s.store(hw.BARCtrl, hw.RegControlDMATestIOVA, iova, 4)
	s.store(hw.BARCtrl, hw.RegControlDMATestIOVA+4, 0, 4)
	s.store(hw.BARCtrl, hw.RegControlDMATestLength, 64, 4)
	s.store(hw.BARCtrl, hw.RegControlDMATest, 1, 4)
	s.await(userDMARead) // and there it waits

	// The other card does DMA of its own.
	o, err := open(b)
	if err != nil {
		t.Fatal(err)
	}
	defer o.close()
	mem, err := vfio.AllocMemory(4096, vfio.MemoryOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := o.MapDMA(iova, mem, 0, 4096, vfio.ProtReadWrite); err != nil {
		t.Fatal(err)
	}
	cfg, err := vfio.NewConfig(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := cfg.SetBusMaster(true); err != nil {
		t.Fatal(err)
	}
	o.ctrl.Store64(hw.RegControlDMATestIOVA, iova)
	o.ctrl.Store32(hw.RegControlDMATestLength, 64)
	for range 20 {
		o.ctrl.Store32(hw.RegControlDMATest, 1)
		for o.ctrl.Load32(hw.RegControlDMATest) == 1 {
		}
		if v := o.ctrl.Load32(hw.RegControlDMATest); v != 0 || o.ctrl.Err() != nil {
			t.Fatalf("DMA_TEST of the other card: %#x, %v", v, o.ctrl.Err())
		}
	}
	if v := s.load(hw.RegControlDMATest); v != 1 {
		t.Errorf("DMA_TEST %#x: the first card no longer waited when the other was done", v)
	}
}
