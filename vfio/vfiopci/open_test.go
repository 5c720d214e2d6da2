package vfiopci_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rnic/vfio"
	"rnic/vfio/vfiopci"
	"rnic/vfio/vfiotest"
)

func TestVFIO_Address(t *testing.T) {
	k := vfiotest.New(t, vfiotest.Machine{})
	k.Add(vfiotest.Function{Addr: bdf})
	for addr, backend := range map[string]string{
		bdf: "iommufd", "03:00.0": "iommufd", "0000:03:00.0?vfio=type1": "type1v2", "0000:03:00.0?vfio=compat": "iommufd-compat", "0000:03:00.0?": "iommufd",
	} {
		d := mustOpen(t, k, addr)
		if d.Info().Backend != backend || d.Addr() != addr {
			t.Errorf("%s: %s by %s, want %s", addr, d.Addr(), d.Info().Backend, backend)
		}
		must(t, d.Close())
	}
	for addr, says := range map[string]string{
		"0000:03:00": "no PCI address", "0000:03:20.0": "no PCI address", "0000:03:00.8": "no PCI address", "": "no PCI address", "zz:00.0": "no PCI address",
		bdf + "?vfio=uio": "vfio=iommufd", bdf + "?vfio": "vfio=iommufd", bdf + "?speed=9": "unknown option \"speed\"", bdf + "?vf_token=12": "UUID",
		bdf + "?vfio=iommufd&vf_token=2ab74924-c335-45f4-9b16-8569e5b08258": "vfio=type1",
	} {
		_, err := open(t, k, addr)
		if !errors.Is(err, vfio.ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", addr, err)
		}
	}
	_, err := open(t, k, "0000:04:00.0")
	wants(t, err, vfio.ErrNotFound, "0000:04:00.0", "rnicctl list")
}

// Row 3, row 5: the order that the kernel demands, and the way back.
func TestVFIO_Order(t *testing.T) {
	for _, w := range ways {
		k := vfiotest.New(t, vfiotest.Machine{})
		k.Add(vfiotest.Function{Addr: bdf, Group: 7})
		d := mustOpen(t, k, bdf+"?vfio="+w)
		if d.Info().Backend != backends[w] {
			t.Errorf("%s: backend %s", w, d.Info().Backend)
		}
		m := memory(t, 4096)
		must(t, d.MapDMA(0x100000, m, 0, 4096, vfio.ProtReadWrite))
		must(t, d.Close())
		must(t, m.Close())
		var want []string
		switch w {
		case "type1":
			want = []string{"open /dev/vfio/vfio", "VFIO_GET_API_VERSION", "VFIO_CHECK_EXTENSION", "open /dev/vfio/7", "VFIO_GROUP_GET_STATUS", "VFIO_GROUP_SET_CONTAINER",
				"VFIO_SET_IOMMU", "VFIO_GROUP_GET_DEVICE_FD", "VFIO_IOMMU_GET_INFO", "VFIO_DEVICE_GET_INFO", "VFIO_IOMMU_MAP_DMA", "VFIO_IOMMU_UNMAP_DMA", "close", "close", "close"}
		case "compat":
			want = []string{"open /dev/iommu", "VFIO_GET_API_VERSION", "VFIO_CHECK_EXTENSION", "open /dev/vfio/7", "VFIO_GROUP_GET_STATUS", "VFIO_GROUP_SET_CONTAINER",
				"VFIO_SET_IOMMU", "VFIO_GROUP_GET_DEVICE_FD", "VFIO_IOMMU_GET_INFO", "VFIO_IOMMU_MAP_DMA", "VFIO_IOMMU_UNMAP_DMA", "close", "close", "close"}
		case "iommufd":
			want = []string{"open /dev/vfio/devices/vfio0", "open /dev/iommu", "VFIO_DEVICE_BIND_IOMMUFD", "IOMMU_IOAS_ALLOC", "VFIO_DEVICE_ATTACH_IOMMUFD_PT",
				"IOMMU_IOAS_IOVA_RANGES", "VFIO_DEVICE_GET_INFO", "IOMMU_IOAS_MAP", "IOMMU_IOAS_UNMAP", "close", "close"}
		}
		subsequence(t, k.Calls(), want...)
	}
}

// What the machine has decides, and what this user may not open leads on.
func TestVFIO_Choice(t *testing.T) {
	for _, c := range []struct {
		m    vfiotest.Machine
		fail string
		want string
	}{
		{vfiotest.Machine{}, "", "iommufd"},
		{vfiotest.Machine{NoCdev: true}, "", "type1v2"},
		{vfiotest.Machine{NoIOMMUFD: true}, "", "type1v2"},
		{vfiotest.Machine{NoType1: true, NoCdev: true}, "", "iommufd-compat"},
		{vfiotest.Machine{NoV2: true, NoCdev: true}, "", "iommufd-compat"},
		{vfiotest.Machine{}, "open /dev/iommu", "type1v2"},
		{vfiotest.Machine{}, "open /dev/vfio/devices/vfio0", "type1v2"},
	} {
		k := vfiotest.New(t, c.m)
		k.Add(vfiotest.Function{Addr: bdf})
		if c.fail != "" {
			k.Fail(c.fail, unix.EACCES)
		}
		if d := mustOpen(t, k, bdf); d.Info().Backend != c.want {
			t.Errorf("%+v %s: %s, want %s", c.m, c.fail, d.Info().Backend, c.want)
		}
	}
	// Neither may be opened: the answer has both.
	k := vfiotest.New(t, vfiotest.Machine{})
	k.Add(vfiotest.Function{Addr: bdf, Group: 7})
	k.Fail("open /dev/iommu", unix.EACCES)
	k.Fail("open /dev/vfio/7", unix.EPERM)
	_, err := open(t, k, bdf)
	setup(t, err, vfio.CheckNoPermission, vfio.ErrPermission, "/dev/iommu", "/dev/vfio/7", "udev")
	// A machine with nothing says what is missing.
	k = vfiotest.New(t, vfiotest.Machine{NoType1: true, NoIOMMUFD: true})
	k.Add(vfiotest.Function{Addr: bdf})
	_, err = open(t, k, bdf)
	setup(t, err, vfio.CheckNoModule, vfio.ErrNotSupported, "/dev/vfio/vfio", "modprobe")
	_, err = open(t, k, bdf+"?vfio=compat")
	setup(t, err, vfio.CheckNoModule, vfio.ErrNotSupported, "/dev/iommu")
	k = vfiotest.New(t, vfiotest.Machine{NoCdev: true})
	k.Add(vfiotest.Function{Addr: bdf})
	_, err = open(t, k, bdf+"?vfio=iommufd")
	setup(t, err, vfio.CheckNoModule, vfio.ErrNotSupported, "CONFIG_VFIO_DEVICE_CDEV", "?vfio=type1")
	// A container without type 1 v2 (row 4), and one of another version.
	k = vfiotest.New(t, vfiotest.Machine{NoV2: true})
	k.Add(vfiotest.Function{Addr: bdf})
	_, err = open(t, k, bdf+"?vfio=type1")
	setup(t, err, vfio.CheckNoModule, vfio.ErrNotSupported, "type 1 v2", "modprobe vfio_iommu_type1")
	one := 1
	k.Do(vfiotest.Script{Call: "VFIO_GET_API_VERSION", Result: &one})
	_, err = open(t, k, bdf+"?vfio=type1")
	wants(t, err, vfio.ErrNotSupported, "version 1, want 0")
}

func TestVFIO_Bound(t *testing.T) {
	k := vfiotest.New(t, vfiotest.Machine{})
	k.Add(vfiotest.Function{Addr: bdf, Driver: "e1000e"})
	k.Add(vfiotest.Function{Addr: "0000:04:00.0", Driver: "none"})
	k.Add(vfiotest.Function{Addr: "0000:05:00.0", Driver: "mlx5_vfio_pci"})
	_, err := open(t, k, bdf)
	setup(t, err, vfio.CheckNotBound, vfio.ErrNotSupported, "e1000e", "vfio-pci", "rnicctl bind "+bdf)
	_, err = open(t, k, "0000:04:00.0")
	setup(t, err, vfio.CheckNotBound, vfio.ErrNotSupported, "no driver")
	mustOpen(t, k, "0000:05:00.0") // a variant of vfio-pci
}

// Row 38, and a machine without an IOMMU.
func TestVFIO_NoIOMMUIsRefused(t *testing.T) {
	k := vfiotest.New(t, vfiotest.Machine{})
	k.Add(vfiotest.Function{Addr: bdf, NoIOMMU: true})
	_, err := open(t, k, bdf)
	setup(t, err, vfio.CheckIOMMUOff, vfio.ErrNotSupported, "intel_iommu=on")
	k.Add(vfiotest.Function{Addr: "0000:04:00.0", Group: 8})
	k.Put("sys/kernel/iommu_groups/8/name", "vfio-noiommu\n")
	_, err = open(t, k, "0000:04:00.0")
	setup(t, err, vfio.CheckNoIOMMU, vfio.ErrNotSupported, "no-IOMMU", "no option")
	k.Add(vfiotest.Function{Addr: "0000:05:00.0", Group: 9})
	k.Put("dev/vfio/noiommu-9", "")
	_, err = open(t, k, "0000:05:00.0")
	setup(t, err, vfio.CheckNoIOMMU, vfio.ErrNotSupported)
	for _, c := range k.Calls() {
		if strings.HasPrefix(c, "open") {
			t.Errorf("a node was opened: %s", c)
		}
	}
}

// Rows 1 and 2: the offender is named, a bridge is none.
func TestVFIO_GroupNotViable(t *testing.T) {
	for _, w := range ways {
		k := vfiotest.New(t, vfiotest.Machine{})
		k.Add(vfiotest.Function{Addr: bdf, Group: 7})
		k.Add(vfiotest.Function{Addr: "0000:02:00.0", Group: 7, Class: 0x060400, Driver: "pcieport"})
		k.Add(vfiotest.Function{Addr: "0000:03:00.1", Group: 7, Driver: "none"})
		d, err := open(t, k, bdf+"?vfio="+w)
		if err != nil {
			t.Fatalf("%s: a bridge and a free function in the group: %v", w, err)
		}
		must(t, d.Close())
		k.Add(vfiotest.Function{Addr: "0000:03:00.2", Group: 7, Driver: "snd_hda_intel"})
		_, err = open(t, k, bdf+"?vfio="+w)
		setup(t, err, vfio.CheckGroupNotViable, vfio.ErrBusy, "group 7", "0000:03:00.2 is bound to snd_hda_intel", "rnicctl bind 0000:03:00.2")
		if strings.Contains(err.Error(), "0000:02:00.0") {
			t.Errorf("the bridge is named: %v", err)
		}
	}
}

// The kernel takes the group for not viable between status and container, and
// sysfs shows nothing.
func TestVFIO_GroupNotViableWithoutOffender(t *testing.T) {
	k := vfiotest.New(t, vfiotest.Machine{})
	k.Add(vfiotest.Function{Addr: bdf, Group: 7})
	k.Fail("VFIO_GROUP_SET_CONTAINER", unix.EBUSY)
	_, err := open(t, k, bdf+"?vfio=type1")
	setup(t, err, vfio.CheckGroupNotViable, vfio.ErrBusy, "/sys/kernel/iommu_groups/7/devices")
}

// Row 32: the holder is named, found in /proc.
func TestVFIO_BusyNamesTheHolder(t *testing.T) {
	for _, first := range ways {
		for _, second := range ways {
			k := vfiotest.New(t, vfiotest.Machine{})
			k.Add(vfiotest.Function{Addr: bdf, Group: 7})
			mustOpen(t, k, bdf+"?vfio="+first)
			node := "/dev/vfio/7"
			if first == "iommufd" {
				node = "/dev/vfio/devices/vfio0"
			}
			k.Link("proc/17/fd/3", "/dev/null")
			k.Link("proc/17/fd/5", node)
			k.Link("proc/18/fd/0", "/dev/vfio/71")
			k.Put("proc/uptime", "1 1")
			_, err := open(t, k, bdf+"?vfio="+second)
			wants(t, err, vfio.ErrBusy, "pid 17")
			var busy *vfio.BusyError
			if !errors.As(err, &busy) || busy.PID != 17 {
				t.Errorf("%s after %s: %v", second, first, err)
			}
			k.Remove("proc/17/fd/5")
			if _, err = open(t, k, bdf+"?vfio="+second); !errors.As(err, &busy) {
				t.Errorf("%s after %s, holder unseen: %v", second, first, err)
			}
		}
	}
}

// A second function of an open group is busy, and says that we hold it.
func TestVFIO_OneFunctionOfAGroup(t *testing.T) {
	k := vfiotest.New(t, vfiotest.Machine{})
	k.Add(vfiotest.Function{Addr: bdf, Group: 7})
	k.Add(vfiotest.Function{Addr: "0000:03:00.1", Group: 7})
	d := mustOpen(t, k, bdf+"?vfio=type1")
	k.Link("proc/4711/fd/9", "/dev/vfio/7")
	_, err := open(t, k, "0000:03:00.1?vfio=type1")
	wants(t, err, vfio.ErrBusy, "pid 4711")
	must(t, d.Close())
	k.Remove("proc/4711/fd/9")
	mustOpen(t, k, "0000:03:00.1?vfio=type1")
}

// Row 2: without interrupt remapping a function could raise any interrupt.
func TestVFIO_NoInterruptRemapping(t *testing.T) {
	for w, module := range map[string]string{"type1": "vfio_iommu_type1", "iommufd": "iommufd", "compat": "iommufd"} {
		k := vfiotest.New(t, vfiotest.Machine{NoRemap: true})
		k.Add(vfiotest.Function{Addr: bdf})
		_, err := open(t, k, bdf+"?vfio="+w)
		setup(t, err, vfio.CheckMSINoRemap, vfio.ErrNotSupported, "/sys/module/"+module+"/parameters/allow_unsafe_interrupts")
	}
}

// Row 37: a token is passed where one is given, and its want is said.
func TestVFIO_VFToken(t *testing.T) {
	const uuid = "2ab74924-c335-45f4-9b16-8569e5b08258"
	k := vfiotest.New(t, vfiotest.Machine{})
	k.Add(vfiotest.Function{Addr: "0000:03:10.0", PhysFn: bdf, VFToken: uuid})
	k.Add(vfiotest.Function{Addr: "0000:03:10.1"})
	k.Add(vfiotest.Function{Addr: "0000:04:00.0", NumVFs: 2, VFToken: uuid})
	_, err := open(t, k, "0000:03:10.0?vfio=type1")
	setup(t, err, vfio.CheckVFToken, vfio.ErrPermission, "virtual function", bdf, "vf_token=UUID")
	_, err = open(t, k, "0000:03:10.0?vf_token=00000000-c335-45f4-9b16-8569e5b08258")
	setup(t, err, vfio.CheckVFToken, vfio.ErrPermission, "refused")
	_, err = open(t, k, "0000:04:00.0?vfio=compat")
	setup(t, err, vfio.CheckVFToken, vfio.ErrPermission, "VF token required")
	_, err = open(t, k, "0000:03:10.1?vf_token="+uuid)
	setup(t, err, vfio.CheckVFToken, vfio.ErrPermission, "SR-IOV is not involved", "without vf_token")
	must(t, mustOpen(t, k, "0000:03:10.1?vfio=type1").Close())
	if d := mustOpen(t, k, "0000:03:10.0?vf_token="+strings.ToUpper(uuid)); d.Info().Backend != "type1v2" {
		t.Errorf("with a token: %+v", d.Info())
	}
}

// Row 6: iommufd's errnos are told apart.
func TestVFIO_IOMMUFDErrnos(t *testing.T) {
	for _, c := range []struct {
		errno unix.Errno
		says  string
	}{{unix.ENOTTY, "does not know the request"}, {unix.E2BIG, "smaller than ours"}, {unix.EOPNOTSUPP, "not this value"}} {
		for _, call := range []string{"VFIO_DEVICE_BIND_IOMMUFD", "IOMMU_IOAS_ALLOC", "VFIO_DEVICE_ATTACH_IOMMUFD_PT", "IOMMU_IOAS_IOVA_RANGES"} {
			k := vfiotest.New(t, vfiotest.Machine{})
			k.Add(vfiotest.Function{Addr: bdf})
			k.Fail(call, c.errno)
			_, err := open(t, k, bdf+"?vfio=iommufd")
			wants(t, err, vfio.ErrNotSupported, c.says)
			if !errors.Is(err, c.errno) {
				t.Errorf("%s: %v has lost its errno", call, err)
			}
		}
	}
}

// Every call of an opening fails once: the error is typed, and no descriptor
// stays open (the kernel checks that at the test's end).
func TestVFIO_EachStepFails(t *testing.T) {
	for _, w := range ways {
		k := vfiotest.New(t, vfiotest.Machine{})
		k.Add(vfiotest.Function{Addr: bdf})
		must(t, mustOpen(t, k, bdf+"?vfio="+w).Close())
		steps := map[string]int{}
		for _, c := range k.Calls() {
			if c != "close" {
				steps[c]++
			}
		}
		for call, times := range steps {
			for skip := range times {
				for _, errno := range []unix.Errno{unix.EIO, unix.ENOMEM, unix.EMFILE} {
					k.Forget()
					k.Do(vfiotest.Script{Call: call, Skip: skip, Times: 1, Err: errno})
					d, err := open(t, k, bdf+"?vfio="+w)
					if d != nil { // it may do without: bus mastering off at the end
						must(t, d.Close())
						if err == nil && call != "pread" && call != "pwrite" && call != "VFIO_DEVICE_SET_IRQS" {
							t.Errorf("%s: opened although %s gave %v", w, call, errno)
						}
						continue
					}
					wants(t, err, errno)
					if n := k.OpenFiles(); n != 0 {
						t.Errorf("%s: %d descriptors are open after %s gave %v", w, n, call, errno)
					}
				}
			}
		}
	}
}

// The kernel takes longer than the caller waits: the caller gets its error, and
// the function is given back when it comes.
func TestVFIO_OpenIsBounded(t *testing.T) {
	k := vfiotest.New(t, vfiotest.Machine{})
	k.Add(vfiotest.Function{Addr: bdf})
	stuck, entered := make(chan struct{}), make(chan struct{})
	k.Do(vfiotest.Script{Call: "VFIO_GROUP_GET_DEVICE_FD", Times: 1, Before: func() { close(entered); <-stuck }})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-entered; cancel() }()
	_, err := vfiopci.Open(ctx, bdf+"?vfio=type1", vfiopci.WithSystem(k))
	wants(t, err, vfio.ErrTimeout, "still opening")
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v is not the context's", err)
	}
	close(stuck)
	givenBack(t, k)
}

// givenBack waits until what a late call got was closed.
func givenBack(t *testing.T, k *vfiotest.Kernel) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); k.OpenFiles() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d descriptors are still open", k.OpenFiles())
		}
	}
}

// A context that gives more time than the default has its way, one without a deadline has not.
func TestVFIO_OpenTakesItsTime(t *testing.T) {
	k := vfiotest.New(t, vfiotest.Machine{})
	k.Add(vfiotest.Function{Addr: bdf})
	slow := func() {
		k.Do(vfiotest.Script{Call: "VFIO_GROUP_GET_DEVICE_FD", Times: 1, Before: func() { time.Sleep(100 * time.Millisecond) }})
	}
	slow()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	d, err := vfiopci.Open(ctx, bdf+"?vfio=type1", vfiopci.WithSystem(k), vfiopci.WithTimeout(time.Millisecond))
	must(t, err)
	_ = d.Close() // it waits a millisecond only
	givenBack(t, k)
	slow()
	_, err = vfiopci.Open(t.Context(), bdf+"?vfio=type1", vfiopci.WithSystem(k), vfiopci.WithTimeout(time.Millisecond))
	wants(t, err, vfio.ErrTimeout, "still opening")
	givenBack(t, k)
}

// A device that is being reset or unbound gives EAGAIN for a moment.
func TestVFIO_Again(t *testing.T) {
	k := vfiotest.New(t, vfiotest.Machine{})
	k.Add(vfiotest.Function{Addr: bdf})
	k.Do(vfiotest.Script{Call: "VFIO_GROUP_GET_DEVICE_FD", Times: 3, Err: unix.EAGAIN})
	k.Do(vfiotest.Script{Call: "VFIO_DEVICE_RESET", Times: 3, Err: unix.EAGAIN})
	d := mustOpen(t, k, bdf+"?vfio=type1")
	must(t, d.Reset(t.Context()))
	k.Fail("VFIO_DEVICE_RESET", unix.EAGAIN)
	wants(t, d.Reset(t.Context()), unix.EAGAIN)
}
