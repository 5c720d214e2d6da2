package guest

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"rnic/driver"
	"rnic/vfio"
)

// TestSetup_Limits runs into what the real kernel limits: the error of each has its check's name, under which doctor finds it before, and
// object, present value, limit and remedy.
func TestSetup_Limits(t *testing.T) {
	nic, _, card := machine(t)
	way := os.Getenv("RNIC_VM_VFIO")
	addr := card + "?vfio=" + way
	_, err := vfio.Open(t.Context(), nic+"?vfio="+way)
	names(t, err, vfio.CheckNotBound, nic, nicDriver, "rnicctl bind "+nic)
	well(t, "bind", card)
	defer well(t, "unbind", card)

	d, err := vfio.Open(t.Context(), addr)
	if err != nil {
		t.Fatal(err)
	}
	mem, err := vfio.AllocMemory(os.Getpagesize(), vfio.MemoryOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ranges := d.IOVARanges()
	last := ranges[len(ranges)-1].Last
	names(t, d.MapDMA(0xfee00000, mem, 0, mem.Size(), vfio.ProtRead), vfio.CheckMSIWindow, "0xfee00000-0xfee00fff", ranges[0].String(), "vfio.Space")
	names(t, d.MapDMA(last+1, mem, 0, mem.Size(), vfio.ProtRead), vfio.CheckIOVAWidth, fmt.Sprintf("%#x", last+1), " bits", ranges[len(ranges)-1].String(), "vfio.Space")

	// A second opener.
	_, err = vfio.Open(t.Context(), addr)
	var busy *vfio.BusyError
	if !errors.As(err, &busy) || busy.PID != os.Getpid() || !strings.Contains(err.Error(), card) || !strings.Contains(err.Error(), "end that process") {
		t.Errorf("a second opener: %v", err)
	}
	if err := errors.Join(d.Close(), mem.Close()); err != nil {
		t.Fatal(err)
	}
	r := run(t, root, "doctor", card, "--json")
	for check, says := range map[string]string{"msi-window": "0xfee00000-0xfeefffff", "iova-width": ranges[0].String()} {
		if f := find(t, r, check); !strings.Contains(f.Value, says) {
			t.Errorf("%+v; it does not say %s", f, says)
		}
	}

	if way != "type1" {
		return // iommufd has no limit of mappings
	}
	const limit = "/sys/module/vfio_iommu_type1/parameters/dma_entry_limit"
	write(t, limit, "64")
	err = register(t, addr, 100)
	names(t, err, vfio.CheckMappingLimit, limit, "mappings are in use", "fewer than 64", "echo 65535", "(now 64)")
	if f := find(t, run(t, root, "doctor", card, "--json"), "mapping-limit"); f.Result != "fail" {
		t.Errorf("%+v", f)
	}
	run(t, root, "doctor", "--fix", card)
	if err := register(t, addr, 100); err != nil {
		t.Errorf("after doctor --fix: %v", err)
	}
}

// register opens a card and registers regions of a page each.
func register(t *testing.T, addr string, regions int) error {
	t.Helper()
	dev, err := driver.Open(t.Context(), addr, driver.WithStatusSocket(""))
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	pd, err := dev.AllocPD(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for range regions {
		if _, err := pd.RegMR(t.Context(), pages(t, 1), driver.LocalWrite); err != nil {
			return err
		}
	}
	return nil
}
