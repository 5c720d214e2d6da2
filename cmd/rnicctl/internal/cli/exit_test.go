package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"rnic/driver"
	"rnic/vfio"
)

// TestExitCodes: a failure has the documented exit code and, with --json, an object with code, message and
// fix; the same text is on stderr.
func TestExitCodes(t *testing.T) {
	dir := sockets(t)
	hold(t, "soft:exit-held")
	mute, err := driver.Open(t.Context(), "soft:exit-mute", driver.WithStatusSocket(""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = mute.Close() })
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("no socket"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args string
		exit int
		code string
		says string
	}{
		{"bogus", exitUsage, "usage", `unknown command "bogus"`},
		{"info extra", exitUsage, "usage", "extra"},
		{"info --bogus", exitUsage, "usage", "--bogus"},
		{"walk --mtu lots", exitUsage, "usage", "lots"},
		{"walk --mtu 1500", exitUsage, "usage", "1500 is no path MTU"},
		{"walk --inline --sge 1:961", exitUsage, "usage", "961 bytes inline, the card takes up to 960"},
		{"walk --color sometimes", exitUsage, "usage", "sometimes"},
		{"walk --timeout 0s", exitUsage, "usage", "above zero"},
		{"stats -d soft:exit --grep [", exitUsage, "usage", "--grep"},
		{"stats -d soft:exit --watch -1s", exitUsage, "usage", "--watch"},
		{"stats -d soft:exit --qp 0x55", exitUsage, "usage", "no QP 0x55"},
		{"qp -d soft:exit --qp 0x55", exitUsage, "usage", "no QP 0x55"},
		{"keys -d soft:exit --qp 0x55", exitUsage, "usage", "no QP 0x55"},
		{"keys -d soft:exit --scrub --grep x", exitUsage, "usage", "--scrub"},
		{"regs -d soft:exit NOPE", exitUsage, "usage", "NOPE"},
		{"regs -d soft:exit --set MAGIC=1 --yes", exitUsage, "usage", "read only"},
		{"regs -d soft:exit --set SCRATCH --yes", exitUsage, "usage", "no value"},
		{"regs -d soft:exit --set SCRATCH=many --yes", exitUsage, "usage", "many"},
		{"regs -d soft:exit --set SCRATCH=1", exitUsage, "usage", "--yes"},
		{"trace card -d soft:exit --count -1", exitUsage, "usage", "--count"},
		{"capture -d soft:exit --for -1s", exitUsage, "usage", "--for"},
		{"capture -d soft:exit -w /nowhere/at/all", exitUsage, "usage", "/nowhere"},
		{"selftest --stage cellar", exitUsage, "usage", "cellar"},
		{"bogus --help", exitUsage, "usage", `unknown command "bogus"`},
		{"trace bogus", exitUsage, "usage", `unknown command "bogus" for "rnicctl trace"`},
		{"trace bogus -h", exitUsage, "usage", `unknown command "bogus" for "rnicctl trace"`},
		{"--timeout 5s bogus --help", exitUsage, "usage", `unknown command "bogus"`},
		{"help bogus", exitUsage, "usage", `unknown command "bogus"`},
		{"help trace bogus", exitUsage, "usage", `unknown command "bogus" for "rnicctl trace"`},
		{"conformance", exitUsage, "usage", "rnicctl conformance wants an argument: DIR..."},
		{"completion", exitUsage, "usage", "rnicctl completion wants an argument: bash|zsh|fish"},
		{"man", exitUsage, "usage", "rnicctl man wants an argument: DIR"},
		{"man a b", exitUsage, "usage", "rnicctl man wants DIR, and has 2 arguments"},
		{"unbind", exitUsage, "usage", "rnicctl unbind wants an argument: BDF..."},
		{"completion tcsh", exitUsage, "usage", "tcsh"},
		{"man " + file, exitUsage, "usage", file},
		{"info -d soft:exit?speed=9", exitUsage, "usage", "speed"},
		{"info -d nonsense", exitUsage, "usage", "nonsense"},
		{"info -d vfio-user:/nowhere/at/all", exitNoCard, "no-card", "/nowhere/at/all"},
		{"walk -d soft:exit-held", exitHeld, "held", fmt.Sprintf("pid %d", os.Getpid())},
		{"info -d soft:exit-mute", exitHeld, "held", "no status socket in " + driver.StatusDir()},
		{"regs -d soft:exit-held --set SCRATCH=1 --yes", exitHeld, "held", fmt.Sprintf("pid %d", os.Getpid())},
		{"info -d fffe:03:00.0", exitNoCard, "no-card", "fffe:03:00.0"},
		{"info -d 0000:03:00.0?vfio=uio", exitUsage, "usage", "vfio=iommufd"},
	} {
		t.Run(c.args, func(t *testing.T) {
			r := rnicctl(t, append(strings.Fields(c.args), "--json")...)
			e := r.object(t, "error")["error"].(map[string]any)
			if r.code != c.exit || e["code"] != c.code || !strings.Contains(e["message"].(string), c.says) || e["fix"] == "" {
				t.Errorf("exit %d, %v; want exit %d, code %s, and %q with a fix", r.code, e, c.exit, c.code, c.says)
			}
			if !strings.Contains(r.err, e["message"].(string)) || !strings.Contains(r.err, e["fix"].(string)) {
				t.Errorf("stderr says %q", r.err)
			}
			if at := deviceArgument.FindStringSubmatch(c.args); at != nil && strings.Count(e["message"].(string), at[1]+":") > 1 {
				t.Errorf("the address is there twice: %s", e["message"])
			}
			if r := rnicctl(t, strings.Fields(c.args)...); r.code != c.exit || strings.Contains(r.out, "{") {
				t.Errorf("without --json: exit %d, output %q", r.code, r.out)
			}
		})
	}
}

var deviceArgument = regexp.MustCompile(`-d (\S+)`)

// TestHelp: help of commands that are there ends well, and is theirs.
func TestHelp(t *testing.T) {
	for args, says := range map[string]string{
		"": "rnicctl [command]", "--help": "rnicctl [command]", "help": "rnicctl [command]", "trace --help": "rnicctl trace card", "help trace card": "--count",
		"man DIR --help": "rnicctl man DIR", "qp -h": "--grep", "help help": "COMMAND",
	} {
		if r := rnicctl(t, strings.Fields(args)...).well(t); !strings.Contains(strings.ReplaceAll(r.out, "trace [command]", "trace card"), says) || r.err != "" {
			t.Errorf("%q: %s%s", args, r.out, r.err)
		}
	}
}

// TestNoCard: without a card, a command that looks ends with 3, and one that may goes to soft:.
func TestNoCard(t *testing.T) {
	sockets(t)
	for _, args := range []string{"info", "regs", "qp", "keys", "stats", "trace card", "capture"} {
		r := rnicctl(t, append(strings.Fields(args), "--json")...)
		if e := r.object(t, "error")["error"].(map[string]any); r.code != exitNoCard || e["code"] != "no-card" {
			t.Errorf("%s: exit %d, %v", args, r.code, e)
		}
	}
}

// TestDeadline: a card that does not answer in time ends a command with 7.
func TestDeadline(t *testing.T) {
	sockets(t)
	if r := rnicctl(t, "info", "-d", "soft:deadline", "--timeout", "1ns", "--json"); r.code != exitGone {
		t.Errorf("exit %d: %s", r.code, r.out)
	}
	if r := rnicctl(t, "stats", "-d", "soft:deadline", "--prometheus", "--json"); r.code != exitUsage {
		t.Errorf("two formats: exit %d", r.code)
	}
}

// TestInterrupted: what is interrupted ends with 130, and says so.
func TestInterrupted(t *testing.T) {
	sockets(t)
	for _, args := range []string{"stats --watch 1ms", "trace card", "capture"} {
		r := rnicctlOn(interrupted(t, 200*time.Millisecond), none(t), append(strings.Fields(args), "-d", "soft:interrupted", "--json")...)
		if r.code != exitInterrupted || !strings.Contains(r.out, `"code":"interrupted"`) {
			t.Errorf("%s: exit %d, %s", args, r.code, r.out)
		}
	}
}

// TestClasses: each cause that commands meet has its exit code, wrapped as the driver wraps it.
func TestClasses(t *testing.T) {
	for _, c := range []struct {
		err  error
		exit int
	}{
		{driver.ErrNotFound, exitNoCard},
		{driver.ErrBusy, exitHeld},
		{driver.ErrPermission, exitPermission},
		{os.ErrPermission, exitPermission},
		{driver.ErrContractVersion, exitLacks},
		{driver.ErrNotSupported, exitLacks},
		{driver.ErrDeviceGone, exitGone},
		{errors.Join(driver.ErrTimeout, driver.ErrDeviceGone), exitGone},
		{driver.ErrTimeout, exitGone},
		{context.DeadlineExceeded, exitGone},
		{driver.ErrState, exitFound},
		{errors.New("else"), exitFound},
	} {
		f := classify(&driver.DeviceError{Addr: "x", Op: "open", Err: fmt.Errorf("because: %w", c.err)})
		if f.exit != c.exit {
			t.Errorf("%v: exit %d, want %d", c.err, f.exit, c.exit)
		}
	}
	// What this machine has to change says itself what to do.
	f := classify(&vfio.SetupError{Check: vfio.CheckMemlockLow, Object: "RLIMIT_MEMLOCK", Fix: "ulimit -l unlimited", Err: vfio.ErrPermission})
	if f.exit != exitPermission || f.fix != "ulimit -l unlimited" {
		t.Errorf("%+v", f)
	}
}
