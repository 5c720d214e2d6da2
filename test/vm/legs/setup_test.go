package legs

import (
	"bytes"
	"os"
	"testing"
	"time"

	"rnic/test/vm/vm"
)

// TestVM_Setup: rnicctl's bind, unbind, reset, doctor and report against a real sysfs, as root and as an ordinary user; what the
// kernel limits; Debian's udevd and the rule for use without root;
// and doctor where the IOMMU lacks something, and where it is off.
func TestVM_Setup(t *testing.T) {
	t.Parallel()
	tests, err := vm.BuildTest(t.Context(), "./test/vm/guest")
	if err != nil {
		t.Fatal(err)
	}
	rnicctl, err := vm.Build(t.Context(), "./cmd/rnicctl")
	if err != nil {
		t.Fatal(err)
	}
	six := vm.Config{Kernel: vm.Kernel61, VFIO: vm.Type1, Devices: []string{"e1000e,romfile=", "edu"}, Modules: []string{"e1000e", "i2c-i801"}}
	twelve := vm.Config{Kernel: vm.Kernel612, VFIO: vm.IOMMUFD, Devices: []string{"nvme,serial=1", "edu"}}
	with := func(c vm.Config, change func(*vm.Config)) vm.Config { change(&c); return c }
	iommufd := "^TestSetup_(BindUnbind|Limits|Doctor|User)$"
	if os.Getenv("RNIC_FULL") == "1" {
		iommufd = "^TestSetup_"
	}
	for _, c := range []struct {
		name      string
		full      bool
		run, skip string
		cfg       vm.Config
	}{
		{"setup", false, "^TestSetup_", "", with(six, func(c *vm.Config) { c.Udev = true })},
		// What differs with the character device. The cloud kernel has neither e1000e nor the chipset's SMBus: its nvme stands for the one, and TestSetup_Refused is left out.
		{"setup/iommufd", false, iommufd, "^TestSetup_Refused$", with(twelve, func(c *vm.Config) { c.Udev = true })},
		{"unsafe", false, "^TestUnsafe_", "", with(six, func(c *vm.Config) { c.IOMMUOptions = "intremap=off,aw-bits=39" })},
		{"unsafe/iommufd", true, "^TestUnsafe_", "", with(twelve, func(c *vm.Config) { c.IOMMUOptions = "intremap=off,aw-bits=39" })},
		{"off", false, "^TestOff_", "", with(six, func(c *vm.Config) { c.IOMMU = vm.None })},
	} {
		if c.full && os.Getenv("RNIC_FULL") != "1" {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cfg := c.cfg
			cfg.Cards, cfg.NoBind, cfg.Limit = 1, true, 20*time.Minute
			cfg.Files = map[string]string{"/bin/rnicctl": rnicctl}
			cfg.Binary, cfg.Args = tests, []string{"-test.run", c.run, "-test.skip", c.skip, "-test.v"}
			cfg.Say = func(line string) { t.Log(line) }
			r := pass(t, cfg)
			if bytes.Contains(r.Stdout, []byte("--- SKIP: TestSetup_")) || !bytes.Contains(r.Stdout, []byte("--- PASS: Test")) {
				t.Errorf("a test was skipped, or none ran:\n%s", r.Stdout)
			}
		})
	}
}
