package pcidev

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Uses says what this machine would lose with the function: network interfaces that are up, disks that are
// mounted, swapped to or part of another, the console's display. Each is a few words for people.
func (t Tree) Uses(addr string) []string {
	var uses []string
	real, err := filepath.EvalSymlinks(t.device(addr))
	if err != nil {
		return nil
	}
	for _, name := range t.below(real, "net") {
		// if.h: IFF_UP is 1.
		if flags, err := strconv.ParseUint(text(filepath.Join(t.Sys, "class/net", name), "flags"), 0, 32); err == nil && flags&1 != 0 {
			uses = append(uses, "network interface "+name+" is up")
		}
	}
	mounts, swaps := t.mounts(), t.swaps()
	for _, name := range t.below(real, "block") {
		dir := filepath.Join(t.Sys, "class/block", name)
		if at := mounts[text(dir, "dev")]; at != "" {
			uses = append(uses, fmt.Sprintf("disk %s is mounted at %s", name, at))
		}
		if swaps[name] {
			uses = append(uses, "disk "+name+" is swapped to")
		}
		if h, err := os.ReadDir(filepath.Join(dir, "holders")); err == nil && len(h) > 0 {
			uses = append(uses, fmt.Sprintf("disk %s is part of %s", name, h[0].Name()))
		}
	}
	if text(t.device(addr), "boot_vga") == "1" {
		uses = append(uses, "it is the console's display")
	}
	return uses
}

// below lists the devices of a class that stand on the PCI function whose real folder is given.
func (t Tree) below(real, class string) (list []string) {
	entries, err := os.ReadDir(filepath.Join(t.Sys, "class", class))
	if err != nil {
		return nil
	}
	for _, e := range entries {
		at, err := filepath.EvalSymlinks(filepath.Join(t.Sys, "class", class, e.Name()))
		if err == nil && strings.HasPrefix(at, real+"/") {
			list = append(list, e.Name())
		}
	}
	return list
}

// mounts are the mount points by device number (proc_pid_mountinfo(5)).
func (t Tree) mounts() map[string]string {
	m := map[string]string{}
	t.lines("self/mountinfo", func(f []string) {
		if len(f) > 4 && m[f[2]] == "" {
			m[f[2]] = f[4]
		}
	})
	return m
}

// swaps are the names of the disks that are swapped to (proc_swaps(5)).
func (t Tree) swaps() map[string]bool {
	m := map[string]bool{}
	t.lines("swaps", func(f []string) {
		if len(f) > 0 {
			m[filepath.Base(f[0])] = true
		}
	})
	return m
}

// lines gives the words of each line of a file of procfs.
func (t Tree) lines(name string, each func(words []string)) {
	f, err := os.Open(filepath.Join(t.Proc, name))
	if err != nil {
		return
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		each(strings.Fields(s.Text()))
	}
}
