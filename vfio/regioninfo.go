package vfio

import (
	"encoding/binary"
	"fmt"
	"slices"

	"rnic/vfio/uapi"
)

// RegionInfoSize is the size of struct vfio_region_info without capabilities.
const RegionInfoSize = 32

// regionCapSparseSize is the size of a sparse-mmap capability before its areas
// of 16 bytes each.
const regionCapSparseSize = 16

// AppendRegionInfo appends r as struct vfio_region_info, with a sparse-mmap
// capability where r's areas are not the whole region. fileOffset is the
// offset to give to mmap. argsz is the size of all.
func AppendRegionInfo(b []byte, r RegionInfo, fileOffset uint64) []byte {
	le := binary.LittleEndian
	flags, size, capOff := r.Flags&^(RegionMmap|RegionCaps), uint32(RegionInfoSize), uint32(0)
	if len(r.Areas) > 0 {
		flags |= RegionMmap
	}
	sparse := len(r.Areas) > 0 && !(len(r.Areas) == 1 && r.Areas[0] == Area{0, r.Size})
	if sparse {
		flags |= RegionCaps
		capOff = RegionInfoSize
		size += regionCapSparseSize + 16*uint32(len(r.Areas))
	}
	b = le.AppendUint32(b, size)
	b = le.AppendUint32(b, uint32(flags))
	b = le.AppendUint32(b, uint32(r.Index))
	b = le.AppendUint32(b, capOff)
	b = le.AppendUint64(b, r.Size)
	b = le.AppendUint64(b, fileOffset)
	if sparse {
		b = le.AppendUint16(b, uapi.VFIO_REGION_INFO_CAP_SPARSE_MMAP)
		b = le.AppendUint16(b, 1) // version
		b = le.AppendUint32(b, 0) // next
		b = le.AppendUint32(b, uint32(len(r.Areas)))
		b = le.AppendUint32(b, 0) // reserved
		for _, a := range r.Areas {
			b = le.AppendUint64(b, a.Offset)
			b = le.AppendUint64(b, a.Size)
		}
	}
	return b
}

// ParseRegionInfo reads struct vfio_region_info and its capabilities, as the
// kernel or a vfio-user server gives them, trusting nothing: offsets are
// bounds-checked and the chain cannot loop. Areas that lie outside the region
// or overlap are ErrProtocol. Unknown capabilities are passed over.
func ParseRegionInfo(b []byte) (r RegionInfo, fileOffset uint64, err error) {
	bad := func(format string, a ...any) (RegionInfo, uint64, error) {
		return RegionInfo{}, 0, fmt.Errorf("%w: region info: %s", ErrProtocol, fmt.Sprintf(format, a...))
	}
	le := binary.LittleEndian
	if len(b) < RegionInfoSize {
		return bad("%d bytes, want %d", len(b), RegionInfoSize)
	}
	r = RegionInfo{
		Index: int(le.Uint32(b[8:])), Size: le.Uint64(b[16:]),
		Flags: RegionFlags(le.Uint32(b[4:])),
	}
	fileOffset = le.Uint64(b[24:])
	if r.Flags&RegionMmap != 0 && r.Size > 0 {
		r.Areas = []Area{{0, r.Size}}
	}
	if r.Flags&RegionCaps == 0 {
		return r, fileOffset, nil
	}
	caps, err := uapi.Capabilities(b, le.Uint32(b[12:]), RegionInfoSize)
	if err != nil {
		return bad("%v", err)
	}
	for _, c := range caps {
		if c.ID != uapi.VFIO_REGION_INFO_CAP_SPARSE_MMAP {
			continue
		}
		if len(c.Data) < regionCapSparseSize {
			return bad("sparse-mmap capability cut off")
		}
		count := uint64(le.Uint32(c.Data[8:]))
		if count > uint64(len(c.Data)-regionCapSparseSize)/16 {
			return bad("%d sparse areas do not fit", count)
		}
		r.Areas = nil
		for i := range count {
			a := c.Data[regionCapSparseSize+16*i:]
			if s := (Area{le.Uint64(a), le.Uint64(a[8:])}); s.Size > 0 {
				r.Areas = append(r.Areas, s)
			}
		}
	}
	if r.Flags&RegionMmap == 0 {
		r.Areas = nil
	}
	slices.SortFunc(r.Areas, func(x, y Area) int {
		if x.Offset < y.Offset {
			return -1
		}
		return 1
	})
	end := uint64(0)
	for _, a := range r.Areas {
		if a.Offset < end || a.Size > r.Size || a.Offset > r.Size-a.Size {
			return bad("area %#x+%#x overlaps or is outside", a.Offset, a.Size)
		}
		end = a.Offset + a.Size
	}
	return r, fileOffset, nil
}
