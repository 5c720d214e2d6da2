package uapi

import "structs"

// What came with iommufd (Linux 6.2) and the device's character device (6.6).
const (
	VFIO_DEVICE_BIND_IOMMUFD      = 0x3b76
	VFIO_DEVICE_ATTACH_IOMMUFD_PT = 0x3b77
	VFIO_DEVICE_DETACH_IOMMUFD_PT = 0x3b78

	VFIO_PCI_HOT_RESET_FLAG_DEV_ID       = 1 << 0
	VFIO_PCI_HOT_RESET_FLAG_DEV_ID_OWNED = 1 << 1

	IOMMU_DESTROY          = 0x3b80
	IOMMU_IOAS_ALLOC       = 0x3b81
	IOMMU_IOAS_IOVA_RANGES = 0x3b84
	IOMMU_IOAS_MAP         = 0x3b85
	IOMMU_IOAS_UNMAP       = 0x3b86
	IOMMU_OPTION           = 0x3b87
	IOMMU_VFIO_IOAS        = 0x3b88

	IOMMU_IOAS_MAP_FIXED_IOVA = 1 << 0
	IOMMU_IOAS_MAP_WRITEABLE  = 1 << 1
	IOMMU_IOAS_MAP_READABLE   = 1 << 2

	IOMMU_OPTION_RLIMIT_MODE = 0
	IOMMU_OPTION_OP_SET      = 0
	IOMMU_OPTION_OP_GET      = 1

	IOMMU_VFIO_IOAS_GET = 0
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

// Destroy is struct iommu_destroy.
type Destroy struct {
	_    structs.HostLayout
	Size uint32
	ID   uint32
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

// Option is struct iommu_option.
type Option struct {
	_        structs.HostLayout
	Size     uint32
	OptionID uint32
	Op       uint16
	Reserved uint16
	ObjectID uint32
	Val64    uint64
}

// VFIOIoas is struct iommu_vfio_ioas.
type VFIOIoas struct {
	_        structs.HostLayout
	Size     uint32
	IoasID   uint32
	Op       uint16
	Reserved uint16
}
