// Package vfiopci opens PCI functions through the kernel's VFIO: the legacy
// container and group (type 1 v2), iommufd with the device's character device,
// or iommufd's container that is compatible with the legacy one. It registers
// the scheme of PCI addresses.
//
//	0000:03:00.0                      by what the machine has: iommufd, then type1, then compat
//	0000:03:00.0?vfio=type1           /dev/vfio/vfio and the function's group
//	0000:03:00.0?vfio=iommufd         /dev/iommu and the function's character device
//	0000:03:00.0?vfio=compat          /dev/iommu as a container, and the function's group
//	0000:03:10.1?vf_token=UUID        a virtual function whose physical one is on VFIO, by its group
//
// The sequences, limits and errors are those of Documentation/driver-api/vfio.rst,
// linux/vfio.h and linux/iommufd.h.
package vfiopci

import (
	"fmt"
	"regexp"
	"strings"

	"rnic/vfio"
)

// The ways to a function, as the address option vfio= names them.
const (
	WayType1   = "type1"
	WayIOMMUFD = "iommufd"
	WayCompat  = "compat"
)

// address is a parsed address.
type address struct {
	bdf   string // with the domain, lower case
	way   string // "" for what the machine has
	token string // vf_token, "" for none
}

var (
	bdfForm  = regexp.MustCompile(`^([0-9a-f]{4,}:)?[0-9a-f]{2}:[0-1][0-9a-f]\.[0-7]$`)
	uuidForm = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
)

func parseAddress(s string) (address, error) {
	bdf, options, _ := strings.Cut(s, "?")
	a := address{bdf: strings.ToLower(bdf)}
	if !bdfForm.MatchString(a.bdf) {
		return a, fmt.Errorf("%w: %q is no PCI address such as 0000:03:00.0", vfio.ErrInvalid, bdf)
	}
	if strings.Count(a.bdf, ":") == 1 {
		a.bdf = "0000:" + a.bdf
	}
	if options == "" {
		return a, nil
	}
	for o := range strings.SplitSeq(options, "&") {
		name, value, _ := strings.Cut(o, "=")
		switch {
		case name == "vfio" && (value == WayType1 || value == WayIOMMUFD || value == WayCompat):
			a.way = value
		case name == "vfio":
			return a, fmt.Errorf("%w: vfio=%s; want vfio=type1, vfio=iommufd or vfio=compat", vfio.ErrInvalid, value)
		case name == "vf_token" && uuidForm.MatchString(strings.ToLower(value)):
			a.token = strings.ToLower(value)
		case name == "vf_token":
			return a, fmt.Errorf("%w: vf_token=%s; want a UUID such as 2ab74924-c335-45f4-9b16-8569e5b08258", vfio.ErrInvalid, value)
		default:
			return a, fmt.Errorf("%w: unknown option %q; there are vfio= and vf_token=", vfio.ErrInvalid, name)
		}
	}
	if a.token != "" && a.way == WayIOMMUFD {
		return a, fmt.Errorf("%w: vf_token= goes by the group, so it needs vfio=type1 or vfio=compat", vfio.ErrInvalid)
	}
	return a, nil
}
