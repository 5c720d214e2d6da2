package uapi

import "structs"

// What came with iommufd (Linux 6.2) and the device's character device (6.6).
const (
	VFIO_DEVICE_BIND_IOMMUFD      = 0x3b76
	VFIO_DEVICE_ATTACH_IOMMUFD_PT = 0x3b77

	IOMMU_IOAS_ALLOC       = 0x3b81
	IOMMU_IOAS_IOVA_RANGES = 0x3b84
	IOMMU_IOAS_MAP         = 0x3b85
	IOMMU_IOAS_UNMAP       = 0x3b86

	IOMMU_IOAS_MAP_FIXED_IOVA = 1 << 0
	IOMMU_IOAS_MAP_WRITEABLE  = 1 << 1
	IOMMU_IOAS_MAP_READABLE   = 1 << 2
)

// BindIommufd is struct vfio_device_bind_iommufd.
type BindIommufd struct {
	_        structs.HostLayout
	Argsz    uint32
	Flags    uint32
	Iommufd  int32
	OutDevid uint32
}

// AttachIommufdPt is struct vfio_device_attach_iommufd_pt, without what newer
// kernels append.
type AttachIommufdPt struct {
	_     structs.HostLayout
	Argsz uint32
	Flags uint32
	PtID  uint32
}

// IoasAlloc is struct iommu_ioas_alloc.
type IoasAlloc struct {
	_         structs.HostLayout
	Size      uint32
	Flags     uint32
	OutIoasID uint32
}

// IommuIovaRange is struct iommu_iova_range, both ends included.
type IommuIovaRange struct {
	_     structs.HostLayout
	Start uint64
	Last  uint64
}

// IoasIovaRanges is struct iommu_ioas_iova_ranges. AllowedIovas is the address
// of NumIovas ranges.
type IoasIovaRanges struct {
	_                structs.HostLayout
	Size             uint32
	IoasID           uint32
	NumIovas         uint32
	Reserved         uint32
	AllowedIovas     uint64
	OutIovaAlignment uint64
}

// IoasMap is struct iommu_ioas_map.
type IoasMap struct {
	_        structs.HostLayout
	Size     uint32
	Flags    uint32
	IoasID   uint32
	Reserved uint32
	UserVa   uint64
	Length   uint64
	Iova     uint64
}

// IoasUnmap is struct iommu_ioas_unmap.
type IoasUnmap struct {
	_      structs.HostLayout
	Size   uint32
	IoasID uint32
	Iova   uint64
	Length uint64
}
