package kerneltrace

import (
	"regexp"
	"strconv"
	"strings"
	"time"
)

// What the IOMMU's drivers write into the kernel's log about an access that they refuse.
var faults = []struct {
	line *regexp.Regexp
	// The groups' numbers; 0 is none.
	device, endpoint, address int
}{
	// drivers/iommu/intel/dmar.c: DMAR: [DMA Read NO_PASID] Request device [00:01.0] fault addr 0x120000000 [fault reason 0x06] …
	{regexp.MustCompile(`^DMAR: \[DMA (?:Read|Write)[^\]]*\] Request device \[([0-9a-f:.]+)\] fault addr (0x[0-9a-f]+)`), 1, 0, 2},
	// drivers/iommu/virtio-iommu.c: virtio_iommu virtio0: page fault from EP 16 at 0x120000000 [R]
	{regexp.MustCompile(`^virtio_iommu \S+: (?:page|mapping|unknown) fault from EP (\d+) at (0x[0-9a-f]+)`), 0, 1, 2},
	// drivers/iommu/amd/iommu.c, without the device's name and with it.
	{regexp.MustCompile(`AMD-Vi: Event logged \[IO_PAGE_FAULT device=([0-9a-f:.]+) .*address=(0x[0-9a-f]+)`), 1, 0, 2},
	{regexp.MustCompile(`^\S+ ([0-9a-f]{4}:[0-9a-f:.]+): AMD-Vi: Event logged \[IO_PAGE_FAULT .*address=(0x[0-9a-f]+)`), 1, 0, 2},
	// drivers/iommu/arm/arm-smmu-v3: arm-smmu-v3 …: event: F_TRANSLATION client: 0000:03:00.0 sid: 0x300 ssid: 0x0 iova: 0x1000 …
	{regexp.MustCompile(`^arm-smmu-v3 \S+: event: F_\S+ client: (\S+) .*iova: (0x[0-9a-f]+)`), 1, 0, 2},
}

// parseLog reads a record of /dev/kmsg (Documentation/ABI/testing/dev-kmsg): "priority,sequence,microseconds,flags;text". The bool is
// false for one that is no IOMMU fault.
func parseLog(record string) (Event, bool) {
	head, body, ok := strings.Cut(record, ";")
	if !ok {
		return Event{}, false
	}
	body, _, _ = strings.Cut(body, "\n")
	fields := strings.SplitN(head, ",", 4)
	if len(fields) < 3 {
		return Event{}, false
	}
	if prio, err := strconv.ParseUint(fields[0], 10, 32); err != nil || prio>>3 != 0 {
		return Event{}, false // not the kernel's own: a program may write into the log
	}
	us, err := strconv.ParseInt(fields[2], 10, 64)
	if err != nil || us < 0 || us > int64(1<<63-1)/1000 {
		return Event{}, false
	}
	for _, f := range faults {
		m := f.line.FindStringSubmatch(body)
		if m == nil {
			continue
		}
		address, err := strconv.ParseUint(m[f.address], 0, 64)
		if err != nil {
			return Event{}, false
		}
		e := Event{Time: time.Duration(us) * time.Microsecond, Kind: Fault, Address: address, Detail: body}
		switch {
		case f.device != 0:
			e.Device = withDomain(m[f.device])
		case f.endpoint != 0: // the endpoint's number is its bus, device and function
			if ep, err := strconv.ParseUint(m[f.endpoint], 10, 16); err == nil {
				e.Device = bdf(uint16(ep))
			}
		}
		return e, true
	}
	return Event{}, false
}

// withDomain is an address with its PCI domain, which Intel's driver leaves out.
func withDomain(s string) string {
	if strings.Count(s, ":") == 1 {
		return "0000:" + s
	}
	return s
}

func bdf(n uint16) string {
	const hex = "0123456789abcdef"
	dev := n >> 3 & 31
	return "0000:" + string([]byte{hex[n>>12], hex[n>>8&15], ':', hex[dev>>4], hex[dev&15], '.', hex[n&7]})
}
