package vm

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// module is a kernel module to load.
type module struct{ name, file string }

// findModules gives modules with what they depend on, in the order of loading. A module of the overlay goes before the
// kernel's own; one that is built in is left out.
func findModules(tree, overlay string, wanted []string) ([]module, error) {
	files := map[string]string{}
	for _, dir := range []string{tree, overlay} {
		if dir == "" {
			continue
		}
		err := filepath.WalkDir(dir, func(file string, _ fs.DirEntry, err error) error {
			if strings.HasSuffix(file, ".ko") {
				files[moduleName(file)] = file
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	text, err := os.ReadFile(tree + "/modules.builtin")
	if err != nil {
		return nil, err
	}
	builtin := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		builtin[moduleName(strings.TrimSpace(line))] = true
	}
	var order []module
	seen := map[string]bool{}
	var add func(name, by string) error
	add = func(name, by string) error {
		name = moduleName(name)
		if seen[name] || builtin[name] {
			return nil
		}
		seen[name] = true
		file := files[name]
		if file == "" {
			return fmt.Errorf("kernel module %s, which %s needs, is not among those that were kept of the kernel's package", name, by)
		}
		depends, err := dependsOn(file)
		if err != nil {
			return err
		}
		for _, d := range depends {
			if err := add(d, name); err != nil {
				return err
			}
		}
		order = append(order, module{name, file})
		return nil
	}
	for _, w := range wanted {
		if err := add(w, "the guest"); err != nil {
			return nil, err
		}
	}
	return order, nil
}

// moduleName is a module's name: '-' and '_' are the same in it.
func moduleName(file string) string {
	return strings.ReplaceAll(strings.TrimSuffix(filepath.Base(file), ".ko"), "-", "_")
}

// dependsOn reads what a module says that it needs.
func dependsOn(file string) ([]string, error) {
	f, err := elf.Open(file)
	if err != nil {
		return nil, fmt.Errorf("module %s: %w", file, err)
	}
	defer f.Close()
	s := f.Section(".modinfo")
	if s == nil {
		return nil, fmt.Errorf("module %s has no section .modinfo", file)
	}
	data, err := s.Data()
	if err != nil {
		return nil, fmt.Errorf("module %s: %w", file, err)
	}
	for _, entry := range bytes.Split(data, []byte{0}) {
		if list, ok := strings.CutPrefix(string(entry), "depends="); ok && list != "" {
			return strings.Split(list, ","), nil
		}
	}
	return nil, nil
}
