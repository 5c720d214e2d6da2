package softcard

import (
	"encoding/binary"
	"sync/atomic"

	"rnic/hw"
	"rnic/vfio"
)

// Places in the card's configuration space, and what stands there (PCI Local
// Bus 3.0, 6.1 and 6.8.2; PCI Express Base 4.0, 7.5.3).
const (
	configBytes = 4096

	capPCIe = 0x40 // PCI Express capability, 0x3c bytes
	capMSIX = 0x80 // MSI-X capability, 12 bytes

	pcieFlags   = capPCIe + 0x02
	pcieDevCap  = capPCIe + 0x04
	pcieDevCtl  = capPCIe + 0x08
	pcieLinkCap = capPCIe + 0x0c
	pcieLinkSta = capPCIe + 0x12

	devCapFLR = 1 << 28
	devCapRBE = 1 << 15 // role-based error reporting
	devCtlFLR = 0x80    // in the register's high byte

	statusCapabilities = 1 << 4
)

// configSpace is the function's configuration space. Only the client's
// connection touches it; busMaster may be asked from anywhere.
type configSpace struct {
	card   *Card
	b      [configBytes]byte
	wmask  [configBytes]byte // bits that a store changes
	master atomic.Bool
}

func (s *configSpace) init(c *Card) {
	s.card = c
	s.reset(vfio.CommandMemory)
}

func (s *configSpace) busMaster() bool { return s.master.Load() }

// reset gives configuration space its content after reset, with this command
// register. VFIO hands a function over with memory decoding on; a function
// level reset leaves it off (PCI Express Base 4.0, 6.6.2), and a kernel that
// restores what it saved writes only what differs.
func (s *configSpace) reset(command uint16) {
	le := binary.LittleEndian
	b, w := s.b[:], s.wmask[:]
	clear(b)
	clear(w)
	s.master.Store(false)
	le.PutUint16(b[vfio.ConfigVendorID:], hw.PCIVendorID)
	le.PutUint16(b[vfio.ConfigDeviceID:], hw.PCIDeviceID)
	le.PutUint16(b[vfio.ConfigCommand:], command)
	le.PutUint16(w[vfio.ConfigCommand:], vfio.CommandMemory|vfio.CommandBusMaster|vfio.CommandINTxOff)
	le.PutUint16(b[vfio.ConfigStatus:], statusCapabilities)
	le.PutUint32(b[vfio.ConfigRevision:], hw.PCIClass<<8|hw.ContractMajor)
	w[0x0c] = 0xff // cache line size
	for _, r := range []struct {
		bar  int
		size uint64
	}{{hw.BARCtrl, hw.BARCtrlSize}, {hw.BARDoorbell, hw.BARDoorbellSize}, {hw.BARKeytable, hw.BARKeytableSize}} {
		at := 0x10 + 4*r.bar
		le.PutUint32(b[at:], 4) // 64-bit memory, not prefetchable
		le.PutUint64(w[at:], ^(r.size - 1))
	}
	le.PutUint16(b[vfio.ConfigSubVendor:], hw.PCISubsystemVendorID)
	le.PutUint16(b[vfio.ConfigSubsystem:], hw.PCISubsystemID)
	b[vfio.ConfigCapPtr] = capPCIe
	w[0x3c] = 0xff // interrupt line

	b[capPCIe], b[capPCIe+1] = vfio.CapPCIExpress, capMSIX
	le.PutUint16(b[pcieFlags:], 2) // endpoint, version 2
	payload, request := pcieSize(s.card.lim.MaxPayload), pcieSize(s.card.lim.MaxReadRequest)
	le.PutUint32(b[pcieDevCap:], devCapFLR|devCapRBE|payload)
	le.PutUint16(b[pcieDevCtl:], uint16(payload<<5|request<<12))
	le.PutUint16(w[pcieDevCtl:], 0x7fff) // FLR starts a reset and reads as 0
	le.PutUint32(b[pcieLinkCap:], 4<<4|3)
	le.PutUint16(b[pcieLinkSta:], 4<<4|3) // four lanes at 8 GT/s

	b[capMSIX] = vfio.CapMSIX
	le.PutUint16(b[capMSIX+2:], uint16(s.card.lim.Vectors-1))
	w[capMSIX+3] = 0xc0 // enable, function mask
	le.PutUint32(b[capMSIX+4:], hw.MSIXTableOffset|hw.BARCtrl)
	le.PutUint32(b[capMSIX+8:], hw.MSIXPBAOffset|hw.BARCtrl)
}

// pcieSize is the code of a payload or request size: 128 bytes << code.
func pcieSize(n uint32) (code uint32) {
	for code < 5 && 128<<code < n {
		code++
	}
	return code
}

func (s *configSpace) read(off uint64, p []byte) { copy(p, s.b[off:]) }

// write is a store to configuration space. It reports what follows from it:
// bus mastering changed, or a function level reset was asked for.
func (s *configSpace) write(off uint64, p []byte) (master, flr bool) {
	for i, v := range p {
		at := int(off) + i
		if at == pcieDevCtl+1 && v&devCtlFLR != 0 {
			flr = true
		}
		s.b[at] = s.b[at]&^s.wmask[at] | v&s.wmask[at]
	}
	on := binary.LittleEndian.Uint16(s.b[vfio.ConfigCommand:])&vfio.CommandBusMaster != 0
	return s.master.Swap(on) != on, flr
}
