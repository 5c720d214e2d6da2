// Package docs holds the documents to what is there: their commands are run,
// their links lead somewhere, and the README's program is the one that is
// built and run.
package docs

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// block is a fenced block of a document.
type block struct {
	line     int
	language string
	text     string
}

func blocks(t *testing.T, file string) (all []block) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var b *block
	for i, line := range strings.Split(string(text), "\n") {
		fence, isFence := strings.CutPrefix(line, "```")
		switch {
		case isFence && b == nil:
			b = &block{line: i + 2, language: fence}
		case isFence:
			all = append(all, *b)
			b = nil
		case b != nil:
			b.text += line + "\n"
		}
	}
	return all
}

// TestProcesses_GettingStarted runs the shell blocks of getting-started.md in
// their order, at the top of the tree: each to its end, and those that are
// marked as of another terminal beside the rest. Sockets and the port are the
// test's own.
func TestProcesses_GettingStarted(t *testing.T) {
	runs(t, "getting-started.md")
}

// TestProcesses_Readme does the same with the README, but for the gate itself.
func TestProcesses_Readme(t *testing.T) {
	runs(t, "../README.md")
}

func runs(t *testing.T, file string) {
	dir, err := os.MkdirTemp("", "rnic") // a short name: it is in sockets' paths
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().String()
	l.Close()
	env := append(os.Environ(), "XDG_RUNTIME_DIR="+dir, "RNIC_DEVICE=", "CGO_ENABLED=0")
	ran := 0
	for _, b := range blocks(t, file) {
		where, background := strings.CutPrefix(b.language, "sh")
		if !background || where != "" && where != " background" {
			continue
		}
		background = where != ""
		script := regexp.MustCompile(`(?m)^make test(-full)?$`).ReplaceAllString(b.text, ":")
		script = strings.ReplaceAll(script, "/tmp/", dir+"/")
		script = strings.ReplaceAll(script, "127.0.0.1:18515", port)
		script = strings.ReplaceAll(script, " stream.pcapng", " "+dir+"/stream.pcapng")
		ran++
		cmd := exec.Command("sh", "-euc", script)
		cmd.Dir, cmd.Env = "..", env
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		// What it starts ends with it.
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		if !background {
			if err := cmd.Run(); err != nil {
				t.Fatalf("%s:%d: %v\n%s%s", file, b.line, err, script, out.String())
			}
			continue
		}
		said := filepath.Join(dir, "said")
		f, err := os.Create(said)
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stdout, cmd.Stderr = f, f
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		f.Close()
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		t.Cleanup(func() {
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			<-ended
		})
		awaitReady(t, b, dir, port, ended, said)
	}
	if ran == 0 {
		t.Errorf("%s: no block was run", file)
	}
}

// awaitReady waits until what a block has started is up: what it says, its
// sockets, its port.
func awaitReady(t *testing.T, b block, dir, port string, ended <-chan error, said string) {
	t.Helper()
	ready := func() bool {
		text, _ := os.ReadFile(said)
		switch {
		case strings.Contains(b.text, "rnicsim"):
			return strings.Contains(string(text), "joined by a wire")
		case strings.Contains(b.text, "-listen"):
			// Looked for without connecting: the first to come is the peer.
			table, _ := os.ReadFile("/proc/net/tcp")
			_, p, _ := net.SplitHostPort(port)
			return bytes.Contains(table, []byte(listening(p)))
		}
		return strings.Contains(string(text), "is connected to")
	}
	for end := time.Now().Add(2 * time.Minute); !ready(); time.Sleep(20 * time.Millisecond) {
		select {
		case err := <-ended:
			text, _ := os.ReadFile(said)
			t.Fatalf("line %d has ended: %v\n%s%s", b.line, err, b.text, text)
		default:
		}
		if time.Now().After(end) {
			text, _ := os.ReadFile(said)
			t.Fatalf("line %d does not come up\n%s%s", b.line, b.text, text)
		}
	}
}

// listening is how proc(5) shows a listening socket on a port of 127.0.0.1.
func listening(port string) string {
	n, _ := strconv.Atoi(port)
	return fmt.Sprintf("0100007F:%04X 00000000:0000 0A", n)
}

// The README's program is the one that is built and run outside the module.
func TestReadmeHoldsTheFirstProgram(t *testing.T) {
	program, err := os.ReadFile("../test/external/main.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range blocks(t, "../README.md") {
		if b.language != "go" {
			continue
		}
		if b.text != string(program) {
			t.Errorf("README.md:%d is not test/external/main.go", b.line)
		}
		return
	}
	t.Error("README.md has no Go program")
}

// The links of every page, of README and CHANGELOG lead to files of the tree.
func TestLinks(t *testing.T) {
	pages := []string{"../README.md", "../CHANGELOG.md"}
	for _, pattern := range []string{"*.md", "decisions/*.md"} {
		more, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, more...)
	}
	link := regexp.MustCompile(`\]\(([^)#\s]+)(#[^)]*)?\)`)
	n := 0
	for _, p := range pages {
		text, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			n++
			if _, err := os.Stat(filepath.Join(filepath.Dir(p), m[1])); err != nil {
				t.Errorf("%s: %v", p, err)
			}
		}
	}
	if n == 0 {
		t.Error("no link was found")
	}
}
