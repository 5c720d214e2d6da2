// Package uapi has the numbers and structures of the kernel's VFIO and iommufd
// interfaces that this module uses, with the names of linux/vfio.h and
// linux/iommufd.h. A test compares them with the headers.
//
// The comment of a structure names the C structure. Trailing arrays are left
// out: their elements follow the structure in memory.
package uapi

import "structs"

// Requests of a container (/dev/vfio/vfio, or /dev/iommu as one).
const (
	VFIO_API_VERSION     = 0
	VFIO_TYPE1v2_IOMMU   = 3
	VFIO_UNMAP_ALL       = 9
	VFIO_GET_API_VERSION = 0x3b64
	VFIO_CHECK_EXTENSION = 0x3b65
	VFIO_SET_IOMMU       = 0x3b66
	VFIO_IOMMU_GET_INFO  = 0x3b70
	VFIO_IOMMU_MAP_DMA   = 0x3b71
	VFIO_IOMMU_UNMAP_DMA = 0x3b72
)

// Requests of a group (/dev/vfio/N).
const (
	VFIO_GROUP_GET_STATUS    = 0x3b67
	VFIO_GROUP_SET_CONTAINER = 0x3b68
	VFIO_GROUP_GET_DEVICE_FD = 0x3b6a

	VFIO_GROUP_FLAGS_VIABLE        = 1 << 0
	VFIO_GROUP_FLAGS_CONTAINER_SET = 1 << 1
)

// GroupStatus is struct vfio_group_status.
type GroupStatus struct {
	_     structs.HostLayout
	Argsz uint32
	Flags uint32
}

// Requests of a device.
const (
	VFIO_DEVICE_GET_INFO        = 0x3b6b
	VFIO_DEVICE_GET_REGION_INFO = 0x3b6c
	VFIO_DEVICE_GET_IRQ_INFO    = 0x3b6d
	VFIO_DEVICE_SET_IRQS        = 0x3b6e
	VFIO_DEVICE_RESET           = 0x3b6f
	VFIO_DEVICE_PCI_HOT_RESET   = 0x3b71

	VFIO_DEVICE_FLAGS_RESET = 1 << 0
	VFIO_DEVICE_FLAGS_PCI   = 1 << 1
)

// DeviceInfo is struct vfio_device_info, without what newer kernels append.
type DeviceInfo struct {
	_          structs.HostLayout
	Argsz      uint32
	Flags      uint32
	NumRegions uint32
	NumIrqs    uint32
	CapOffset  uint32
}

// Indices and flags of regions.
const (
	VFIO_PCI_NUM_REGIONS = 9

	VFIO_REGION_INFO_FLAG_READ  = 1 << 0
	VFIO_REGION_INFO_FLAG_WRITE = 1 << 1
	VFIO_REGION_INFO_FLAG_MMAP  = 1 << 2
	VFIO_REGION_INFO_FLAG_CAPS  = 1 << 3

	VFIO_REGION_INFO_CAP_SPARSE_MMAP   = 1
	VFIO_REGION_INFO_CAP_MSIX_MAPPABLE = 3
)

// InfoCapHeader is struct vfio_info_cap_header.
type InfoCapHeader struct {
	_       structs.HostLayout
	ID      uint16
	Version uint16
	Next    uint32
}

// RegionInfo is struct vfio_region_info.
type RegionInfo struct {
	_         structs.HostLayout
	Argsz     uint32
	Flags     uint32
	Index     uint32
	CapOffset uint32
	Size      uint64
	Offset    uint64
}

// RegionInfoCapSparseMmap is struct vfio_region_info_cap_sparse_mmap; areas follow.
type RegionInfoCapSparseMmap struct {
	_        structs.HostLayout
	Header   InfoCapHeader
	NrAreas  uint32
	Reserved uint32
}

// RegionSparseMmapArea is struct vfio_region_sparse_mmap_area.
type RegionSparseMmapArea struct {
	_      structs.HostLayout
	Offset uint64
	Size   uint64
}

// Indices, flags and actions of interrupts.
const (
	VFIO_PCI_NUM_IRQS = 5

	VFIO_IRQ_INFO_EVENTFD    = 1 << 0
	VFIO_IRQ_INFO_MASKABLE   = 1 << 1
	VFIO_IRQ_INFO_AUTOMASKED = 1 << 2
	VFIO_IRQ_INFO_NORESIZE   = 1 << 3

	VFIO_IRQ_SET_DATA_NONE      = 1 << 0
	VFIO_IRQ_SET_DATA_BOOL      = 1 << 1
	VFIO_IRQ_SET_DATA_EVENTFD   = 1 << 2
	VFIO_IRQ_SET_ACTION_MASK    = 1 << 3
	VFIO_IRQ_SET_ACTION_UNMASK  = 1 << 4
	VFIO_IRQ_SET_ACTION_TRIGGER = 1 << 5
)

// IRQInfo is struct vfio_irq_info.
type IRQInfo struct {
	_     structs.HostLayout
	Argsz uint32
	Flags uint32
	Index uint32
	Count uint32
}

// IRQSet is struct vfio_irq_set; the data follows.
type IRQSet struct {
	_     structs.HostLayout
	Argsz uint32
	Flags uint32
	Index uint32
	Start uint32
	Count uint32
}

// Flags and capabilities of a type 1 IOMMU.
const (
	VFIO_IOMMU_INFO_PGSIZES              = 1 << 0
	VFIO_IOMMU_INFO_CAPS                 = 1 << 1
	VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE = 1
	VFIO_DMA_MAP_FLAG_READ               = 1 << 0
	VFIO_DMA_MAP_FLAG_WRITE              = 1 << 1
	VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL      = 3
)

// Type1Info is struct vfio_iommu_type1_info. The kernel's structure of 20 bytes
// of fields is padded to 24.
type Type1Info struct {
	_           structs.HostLayout
	Argsz       uint32
	Flags       uint32
	IovaPgsizes uint64
	CapOffset   uint32
}

// Type1IOVARanges is struct vfio_iommu_type1_info_cap_iova_range; ranges follow.
type Type1IOVARanges struct {
	_        structs.HostLayout
	Header   InfoCapHeader
	NrIovas  uint32
	Reserved uint32
}

// IOVARange is struct vfio_iova_range, both ends included.
type IOVARange struct {
	_     structs.HostLayout
	Start uint64
	End   uint64
}

// Type1DMAAvail is struct vfio_iommu_type1_info_dma_avail.
type Type1DMAAvail struct {
	_      structs.HostLayout
	Header InfoCapHeader
	Avail  uint32
}

// DMAMap is struct vfio_iommu_type1_dma_map.
type DMAMap struct {
	_     structs.HostLayout
	Argsz uint32
	Flags uint32
	Vaddr uint64
	Iova  uint64
	Size  uint64
}

// DMAUnmap is struct vfio_iommu_type1_dma_unmap.
type DMAUnmap struct {
	_     structs.HostLayout
	Argsz uint32
	Flags uint32
	Iova  uint64
	Size  uint64
}
