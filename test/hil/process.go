package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"strconv"
	"strings"
)

// process names a process so that it is not taken for a later one with its number.
type process struct {
	Who   string `json:"who"` // user
	Host  string `json:"host"`
	Boot  string `json:"boot"` // of the host's kernel: its boot_id
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // in clock ticks after the boot
}

// String gives "user on host, pid 1".
func (p process) String() string { return fmt.Sprintf("%s on %s, pid %d", p.Who, p.Host, p.PID) }

// thisProcess is the one that asks.
func thisProcess() (process, error) {
	p := process{Who: strconv.Itoa(os.Getuid()), PID: os.Getpid()}
	if u, err := user.Current(); err == nil {
		p.Who = u.Username
	}
	var err, err1, err2 error
	p.Host, err = os.Hostname()
	p.Boot, err1 = bootID()
	p.Start, _, err2 = started(p.PID)
	return p, errors.Join(err, err1, err2)
}

func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b)), err
}

// started is when a process started, in clock ticks after the boot, and whether it is there: one that
// ended and was not waited for is not.
func started(pid int) (ticks uint64, there bool, err error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	// proc(5): the name, field 2, may hold anything, and ends at the last parenthesis. State is field 3, start 22.
	f := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(f) < 20 {
		return 0, false, fmt.Errorf("/proc/%d/stat has %d fields behind the name", pid, len(f))
	}
	ticks, err = strconv.ParseUint(string(f[19]), 10, 64)
	return ticks, err == nil && f[0][0] != 'Z' && f[0][0] != 'X', err
}

// alive tells whether a process runs, as far as this host can know.
func alive(p process) (running, known bool) {
	host, err := os.Hostname()
	if err != nil || p.Host != host {
		return false, false
	}
	boot, err := bootID()
	if err != nil {
		return false, false
	}
	if boot != p.Boot {
		return false, true // the host was started again since
	}
	ticks, there, err := started(p.PID)
	return there && ticks == p.Start, err == nil
}
