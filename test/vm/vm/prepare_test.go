package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"rnic/test/vm/debian"
)

// withPart adds a part for a test, and gives the cache.
func withPart(t *testing.T, build func(ctx context.Context, work, dest string) error) string {
	t.Helper()
	saved := parts
	parts = []part{{name: "test", build: build}}
	t.Cleanup(func() { parts = saved })
	return t.TempDir()
}

// again forgets that this process has looked through a part.
func again(cache string) { prepared.Delete(filepath.Join(cache, "test")) }

func silent(string) {}

func TestPrep_InterruptedLeavesNothingHalf(t *testing.T) {
	cut := errors.New("cut off")
	fail := true
	cache := withPart(t, func(_ context.Context, work, dest string) error {
		if fail {
			if err := os.WriteFile(dest+"/half", nil, 0o644); err != nil {
				return err
			}
			return cut
		}
		return os.WriteFile(dest+"/whole", []byte("text"), 0o644)
	})
	if _, err := prepare(t.Context(), cache, "test", silent); !errors.Is(err, cut) {
		t.Fatalf("error %v", err)
	}
	if _, err := os.Stat(filepath.Join(cache, "test")); !os.IsNotExist(err) {
		t.Fatalf("there is a part after a preparation that failed: %v", err)
	}
	fail = false
	dir, err := prepare(t.Context(), cache, "test", silent)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir + "/half"); !os.IsNotExist(err) {
		t.Errorf("what the failed one left is in the part: %v", err)
	}
	if text, err := os.ReadFile(dir + "/whole"); err != nil || string(text) != "text" {
		t.Errorf("%q, %v", text, err)
	}
	if left, _ := filepath.Glob(cache + "/*.work"); left != nil {
		t.Errorf("left behind: %q", left)
	}
}

func TestPrep_MadeAnewIfItIsNotWhatItWas(t *testing.T) {
	builds := 0
	cache := withPart(t, func(_ context.Context, _, dest string) error {
		builds++
		return errors.Join(os.WriteFile(dest+"/a", []byte("text"), 0o644), os.WriteFile(dest+"/b", nil, 0o644), os.Symlink("a", dest+"/link"))
	})
	dest := filepath.Join(cache, "test")
	for i, c := range []struct {
		name   string
		change func() error
		anew   bool
	}{
		{"first", func() error { return nil }, true},
		{"untouched", func() error { return nil }, false},
		{"one byte", func() error { return os.WriteFile(dest+"/a", []byte("texT"), 0o644) }, true},
		{"removed", func() error { return os.Remove(dest + "/b") }, true},
		{"added", func() error { return os.WriteFile(dest+"/c", nil, 0o644) }, true},
		{"link", func() error { return errors.Join(os.Remove(dest+"/link"), os.Symlink("b", dest+"/link")) }, true},
		{"manifest cut", func() error { return os.Truncate(dest+"/"+manifestName, 20) }, true},
		{"no manifest", func() error { return os.Remove(dest + "/" + manifestName) }, true},
		{"another layout", func() error {
			text, err := os.ReadFile(dest + "/" + manifestName)
			if err != nil {
				return err
			}
			other := strings.Replace(string(text), fmt.Sprintf(`"layout": %d`, layout), fmt.Sprintf(`"layout": %d`, layout+1), 1)
			return os.WriteFile(dest+"/"+manifestName, []byte(other), 0o644)
		}, true},
		{"at last", func() error { return nil }, false},
	} {
		if err := c.change(); err != nil {
			t.Fatal(err)
		}
		before := builds
		again(cache)
		if _, err := prepare(t.Context(), cache, "test", silent); err != nil {
			t.Fatal(err)
		}
		if (builds > before) != c.anew {
			t.Errorf("%d, %s: made anew: %v, want %v", i, c.name, builds > before, c.anew)
		}
	}
}

func TestPrep_TwoMakeOnePart(t *testing.T) {
	var builds atomic.Int32
	cache := withPart(t, func(_ context.Context, _, dest string) error {
		builds.Add(1)
		return os.WriteFile(dest+"/a", nil, 0o644)
	})
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			again(cache)
			if _, err := prepare(t.Context(), cache, "test", silent); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := builds.Load(); n != 1 {
		t.Errorf("made %d times", n)
	}
}

func TestALockEndsWithTheContext(t *testing.T) {
	file := filepath.Join(t.TempDir(), "lock")
	unlock, err := lock(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := lock(ctx, file); !errors.Is(err, context.Canceled) {
		t.Errorf("a held lock: %v", err)
	}
	unlock()
	if unlock, err = lock(t.Context(), file); err != nil {
		t.Fatal(err)
	}
	unlock()
}

// verdict records what Check does with a test.
type verdict struct{ how, text string }

func (v *verdict) Helper()           {}
func (v *verdict) Name() string      { return "TestVM_X/6.12" }
func (v *verdict) Skip(args ...any)  { v.how, v.text = "skip", fmt.Sprint(args...) }
func (v *verdict) Fatal(args ...any) { v.how, v.text = "fail", fmt.Sprint(args...) }

func TestPrep_WhatCannotBeHadIsSkippedByNameAndReason(t *testing.T) {
	lacks := fmt.Errorf("mirror a: %w: 404", debian.ErrMirrorLacks)
	gcc := errors.New("gcc is missing")
	unavailable := func(err error) error { return fmt.Errorf("%w: %w", ErrUnavailable, err) }
	for _, c := range []struct {
		name  string
		err   error
		local string
		ci    string
	}{
		{"well", nil, "", ""},
		{"mirror", unavailable(lacks), "skip", "skip"},
		{"two mirrors", unavailable(fmt.Errorf("prepare: %w", errors.Join(lacks, lacks))), "skip", "skip"},
		{"one mirror not reached", unavailable(errors.Join(lacks, errors.New("no route"))), "skip", "fail"},
		{"compiler", unavailable(gcc), "skip", "fail"},
		{"no verdict", ErrNoVerdict, "fail", "fail"},
		{"no verdict for the mirror", lacks, "fail", "fail"},
	} {
		for ci, want := range map[string]string{"": c.local, "true": c.ci} {
			t.Setenv("CI", ci)
			var v verdict
			Check(&v, c.err)
			if v.how != want {
				t.Errorf("%s, CI=%q: %q, want %q (%s)", c.name, ci, v.how, want, v.text)
			}
			if v.how == "skip" && !strings.HasPrefix(v.text, Skipped+"TestVM_X/6.12: ") {
				t.Errorf("%s: %q lacks the leg's name", c.name, v.text)
			}
		}
	}
}

func TestConfigsThatCannotBe(t *testing.T) {
	for name, c := range map[string]Config{
		"kernel":                {Kernel: "5.10"},
		"VFIO":                  {VFIO: "noiommu"},
		"IOMMU":                 {IOMMU: "arm"},
		"6.1 has no iommufd":    {Kernel: Kernel61, VFIO: IOMMUFD},
		"6.1 has no compat":     {Kernel: Kernel61, VFIO: Compat},
		"6.1 has no virtio":     {Kernel: Kernel61, IOMMU: Virtio},
		"6.12 cloud has no AMD": {Kernel: Kernel612, IOMMU: AMD},
		"cards":                 {Cards: 9},
	} {
		c.Binary = "/bin/true"
		if _, err := c.defaults(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := (Config{}).defaults(); err == nil {
		t.Error("no program: no error")
	}
	for want, c := range map[string]Config{
		Kernel61 + Type1 + Intel:    {},
		Kernel612 + IOMMUFD + Intel: {VFIO: IOMMUFD},
		Kernel612 + Type1 + Virtio:  {IOMMU: Virtio},
		Kernel61 + Type1 + AMD:      {IOMMU: AMD},
	} {
		c.Binary = "/bin/true"
		if got, err := c.defaults(); err != nil || got.Kernel+got.VFIO+got.IOMMU != want {
			t.Errorf("%s: got %s %s %s, %v", want, got.Kernel, got.VFIO, got.IOMMU, err)
		}
	}
}
