package legs

import (
	"bytes"
	"testing"

	"rnic/test/vm/vm"
)

// TestVM_Setup: rnicctl's bind, unbind, reset, doctor and report against a real sysfs, as root and as an ordinary user;
// and doctor where the IOMMU lacks something, and where it is off.
func TestVM_Setup(t *testing.T) {
	tests, err := vm.BuildTest(t.Context(), "./test/vm/guest")
	if err != nil {
		t.Fatal(err)
	}
	rnicctl, err := vm.Build(t.Context(), "./cmd/rnicctl")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, run, iommu, options string
	}{
		{"setup", "^TestSetup_", vm.Intel, ""},
		{"unsafe", "^TestUnsafe_", vm.Intel, "intremap=off,aw-bits=39"},
		{"off", "^TestOff_", vm.None, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := pass(t, vm.Config{
				Kernel: vm.Kernel61, VFIO: vm.Type1, IOMMU: c.iommu, IOMMUOptions: c.options,
				Cards: 1, NoBind: true, Devices: []string{"e1000e,romfile=", "edu"},
				Modules: []string{"e1000e", "i2c-i801"}, Files: map[string]string{"/bin/rnicctl": rnicctl},
				Binary: tests, Args: []string{"-test.run", c.run, "-test.v"},
				Say: func(line string) { t.Log(line) },
			})
			if bytes.Contains(r.Stdout, []byte("--- SKIP: "+c.run[1:])) || !bytes.Contains(r.Stdout, []byte("--- PASS: "+c.run[1:])) {
				t.Errorf("a test was skipped, or none ran:\n%s", r.Stdout)
			}
		})
	}
}
