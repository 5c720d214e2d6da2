package vfiotest

import (
	"io/fs"
	"sync"
	"testing/fstest"
)

// tree is the kernel's file system: /sys, /proc, and the nodes of /dev.
type tree struct {
	mu    sync.Mutex
	m     fstest.MapFS
	reads int
}

var _ fs.ReadLinkFS = (*tree)(nil)

func (t *tree) init() { t.m = fstest.MapFS{} }

func (t *tree) set(path string, f *fstest.MapFile) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.m[path] = f
}

func (t *tree) put(path, text string) {
	t.set(path, &fstest.MapFile{Data: []byte(text), Mode: 0o644})
}
func (t *tree) link(path, to string) {
	t.set(path, &fstest.MapFile{Data: []byte(to), Mode: fs.ModeSymlink | 0o777})
}
func (t *tree) node(path string) {
	t.set(path, &fstest.MapFile{Mode: fs.ModeDevice | fs.ModeCharDevice | 0o600})
}

func (t *tree) remove(path string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.m, path)
}

func (t *tree) has(path string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.m[path] != nil
}

func (t *tree) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.reads
}

// Open implements fs.FS.
func (t *tree) Open(name string) (fs.File, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reads++
	return t.m.Open(name)
}

// ReadLink implements fs.ReadLinkFS.
func (t *tree) ReadLink(name string) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reads++
	return t.m.ReadLink(name)
}

// Lstat implements fs.ReadLinkFS.
func (t *tree) Lstat(name string) (fs.FileInfo, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reads++
	return t.m.Lstat(name)
}
