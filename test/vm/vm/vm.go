// Package vm runs a static program as the payload of a Linux guest under QEMU, whose emulated IOMMU translates the DMA
// of soft cards that are attached by vfio-user.
package vm
