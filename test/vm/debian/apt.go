// Package debian takes packages from the Debian mirror that apt on this machine uses, by download and
// unpacking only: apt resolves, fetches and verifies in a state of its own, and nothing is installed.
package debian

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// ErrMirrorLacks says that the mirror was reached and does not have what is needed: a suite, a package, or a
// version that agrees with the others.
var ErrMirrorLacks = errors.New("the mirror lacks it")

// keyring verifies the mirror's release files. Bookworm's has the keys of trixie too.
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// suite matches the suites of Debian's own archive, by which its mirror is known among apt's sources. Security
// updates are in another archive.
var suite = regexp.MustCompile(`^(bullseye|bookworm|trixie|forky|duke|sid|(old)*stable|testing|unstable)(-updates|-backports|-proposed-updates)?$`)

// Mirrors are the addresses of Debian's archive among apt's sources, in their order. apt itself reads them, in both
// forms (one-line and deb822). options are more options of apt.
func Mirrors(ctx context.Context, options ...string) ([]string, error) {
	// Without ReleaseInfo apt tells of sources too whose index it has not fetched yet.
	out, err := output(ctx, "", nil, append([]string{"apt-get"}, append(options,
		"indextargets", "-o", "APT::Get::IndexTargets::ReleaseInfo=false", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages")...)...)
	if err != nil {
		return nil, fmt.Errorf("apt's sources: %w", err)
	}
	var found []string
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) == 3 && suite.MatchString(f[1]) && f[2] == "main" && !slices.Contains(found, f[0]) {
			found = append(found, f[0])
		}
	}
	if len(found) == 0 {
		return nil, errors.New("apt's sources have no mirror of Debian: add one to /etc/apt/sources.list.d (apt-get indextargets lists what apt has)")
	}
	return found, nil
}

// An Archive is a private state of apt with some suites of the mirror. Its folder can be kept: downloads that were
// interrupted go on.
type Archive struct {
	dir    string // absolute
	suites []string
}

// Open brings the index of the suites, from the first of apt's mirrors of Debian that has them.
func Open(ctx context.Context, dir string, suites ...string) (*Archive, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	for _, program := range []string{"apt-get", "apt-cache", "apt-config", "dpkg-deb", "gpgv"} {
		if _, err := exec.LookPath(program); err != nil {
			return nil, fmt.Errorf("%s is missing: packages are taken with Debian's own tools (%w)", program, err)
		}
	}
	if _, err := os.Stat(keyring); err != nil {
		return nil, fmt.Errorf("%w: install debian-archive-keyring", err)
	}
	mirrors, err := Mirrors(ctx)
	if err != nil {
		return nil, err
	}
	a := &Archive{dir: dir, suites: suites}
	var all []error
	for _, m := range mirrors {
		if err := a.use(ctx, m); err != nil {
			all = append(all, fmt.Errorf("mirror %s, %s: %w", m, strings.Join(suites, ", "), err))
			continue
		}
		return a, nil
	}
	return nil, errors.Join(all...)
}

// use configures one mirror and brings its index.
func (a *Archive) use(ctx context.Context, mirror string) error {
	for _, d := range []string{"state/lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(a.dir, d), 0o755); err != nil {
			return err
		}
	}
	var sources bytes.Buffer
	for _, s := range a.suites {
		fmt.Fprintf(&sources, "deb [arch=amd64 signed-by=%s] %s %s main\n", keyring, mirror, s)
	}
	conf, err := a.configuration(ctx)
	if err != nil {
		return err
	}
	for name, text := range map[string][]byte{"sources.list": sources.Bytes(), "status": nil, "apt.conf": conf} {
		if err := os.WriteFile(filepath.Join(a.dir, name), text, 0o644); err != nil {
			return err
		}
	}
	_, err = a.apt(ctx, "apt-get", "update", "--error-on=any")
	return err
}

// configuration is what apt reads instead of the machine's: how the machine reaches its mirrors is kept, its hooks and
// preferences are not.
func (a *Archive) configuration(ctx context.Context) ([]byte, error) {
	dump, err := output(ctx, "", nil, "apt-config", "dump")
	if err != nil {
		return nil, err
	}
	var conf bytes.Buffer
	for line := range strings.Lines(string(dump)) {
		if strings.HasPrefix(line, "Acquire::http") { // and https
			conf.WriteString(line)
		}
	}
	for _, kv := range [][2]string{
		{"APT::Architecture", "amd64"}, {"APT::Architectures", ""},
		{"APT::Install-Recommends", "false"}, {"APT::Install-Suggests", "false"},
		{"APT::Sandbox::User", "root"}, // the downloads are this user's
		{"APT::Get::Assume-Yes", "true"},
		{"Acquire::Languages", "none"}, {"Acquire::IndexTargets::deb::DEP-11::DefaultEnabled", "false"},
		{"Acquire::Retries", "3"}, {"Acquire::http::Timeout", "30"}, {"Acquire::https::Timeout", "30"},
		{"Dir::State", filepath.Join(a.dir, "state")}, {"Dir::State::status", filepath.Join(a.dir, "status")},
		{"Dir::Cache", filepath.Join(a.dir, "cache")}, {"Dir::Log", filepath.Join(a.dir, "log")},
		{"Dir::Etc::sourcelist", filepath.Join(a.dir, "sources.list")}, {"Dir::Etc::sourceparts", "/dev/null"},
		{"Dir::Etc::main", "/dev/null"}, {"Dir::Etc::parts", "/dev/null"},
		{"Dir::Etc::preferences", "/dev/null"}, {"Dir::Etc::preferencesparts", "/dev/null"},
		{"Dir::Etc::trusted", "/dev/null"}, {"Dir::Etc::trustedparts", "/dev/null"},
	} {
		fmt.Fprintf(&conf, "%s \"%s\";\n", kv[0], kv[1])
	}
	return conf.Bytes(), nil
}

// A Package is a version of a package in the mirror's index.
type Package struct {
	Name, Version string
	Depends       string // the field as it is
}

// Show gives the newest version of a package in one of the archive's suites.
func (a *Archive) Show(ctx context.Context, name, suite string) (Package, error) {
	out, err := a.apt(ctx, "apt-cache", "show", "--no-all-versions", name+"/"+suite)
	if err != nil {
		return Package{}, fmt.Errorf("package %s of %s: %w", name, suite, err)
	}
	p := Package{}
	for s := bufio.NewScanner(bytes.NewReader(out)); s.Scan() && s.Text() != ""; {
		switch key, value, _ := strings.Cut(s.Text(), ": "); key {
		case "Package":
			p.Name = value
		case "Version":
			p.Version = value
		case "Depends":
			p.Depends = value
		}
	}
	if p.Name == "" || p.Version == "" {
		return p, fmt.Errorf("package %s of %s is not in the index: %w", name, suite, ErrMirrorLacks)
	}
	return p, nil
}

// A dependency with an exact version, as the kernel's metapackages have it.
var exact = regexp.MustCompile(`([a-z0-9][a-z0-9+.-]*) \(= ([^)]+)\)`)

// Exact gives the package that p depends on by exact version and whose name begins with prefix.
func (p Package) Exact(prefix string) (Package, error) {
	for _, m := range exact.FindAllStringSubmatch(p.Depends, -1) {
		if strings.HasPrefix(m[1], prefix) {
			return Package{Name: m[1], Version: m[2]}, nil
		}
	}
	return Package{}, fmt.Errorf("package %s %s depends on no exact version of %s… but on %q: %w", p.Name, p.Version, prefix, p.Depends, ErrMirrorLacks)
}

// String is how apt names a version.
func (p Package) String() string { return p.Name + "=" + p.Version }

// Download brings packages, and gives their files in the same order.
func (a *Archive) Download(ctx context.Context, packages ...Package) ([]string, error) {
	args := []string{"download"}
	for _, p := range packages {
		args = append(args, p.String())
	}
	files, err := a.fetch(ctx, args)
	if err != nil {
		return nil, err
	}
	var ordered []string
	for _, p := range packages {
		i := slices.IndexFunc(files, func(f string) bool { return strings.HasPrefix(filepath.Base(f), p.Name+"_") })
		if i < 0 {
			return nil, fmt.Errorf("apt-get download %v brought %q", p, files)
		}
		ordered = append(ordered, files[i])
	}
	return ordered, nil
}

// Closure brings packages with all that they depend on, from suite where it has them and from the others of the
// archive where not, as if nothing were installed.
func (a *Archive) Closure(ctx context.Context, suite string, packages ...string) ([]string, error) {
	return a.fetch(ctx, append([]string{"install", "--download-only", "--target-release", suite}, packages...))
}

var uri = regexp.MustCompile(`(?m)^'[^']+' (\S+\.deb) `)

func (a *Archive) fetch(ctx context.Context, args []string) ([]string, error) {
	// apt lists what it has not got: it is asked where nothing is.
	nowhere := filepath.Join(a.dir, "nowhere")
	if err := os.MkdirAll(nowhere+"/partial", 0o755); err != nil {
		return nil, err
	}
	list, err := a.aptIn(ctx, nowhere, "apt-get", append([]string{"-o", "Dir::Cache::archives=" + nowhere, "--print-uris"}, args...)...)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, m := range uri.FindAllSubmatch(list, -1) {
		files = append(files, filepath.Join(a.dir, "cache/archives", string(m[1])))
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("apt-get %s: nothing to fetch in %q", strings.Join(args, " "), list)
	}
	if _, err := a.apt(ctx, "apt-get", args...); err != nil {
		return nil, err
	}
	for _, f := range files {
		if _, err := os.Stat(f); err != nil {
			return nil, fmt.Errorf("apt-get %s: %w", strings.Join(args, " "), err)
		}
	}
	return files, nil
}

// apt runs a program of apt in the private state, in the archives' folder, where "download" writes.
func (a *Archive) apt(ctx context.Context, program string, args ...string) ([]byte, error) {
	return a.aptIn(ctx, filepath.Join(a.dir, "cache/archives"), program, args...)
}

func (a *Archive) aptIn(ctx context.Context, dir, program string, args ...string) ([]byte, error) {
	return output(ctx, dir, []string{"APT_CONFIG=" + filepath.Join(a.dir, "apt.conf")},
		append([]string{program, "-q"}, args...)...)
}

// lacks is how apt says that the mirror answered and has not got it.
var lacks = regexp.MustCompile(`does not have a Release file|(404|410) +(Not Found|Gone)|Unable to locate package|No packages found|was not found|have unmet dependencies|has no installation candidate|Can't find a source to download`)

// unreachable is how it says that there was no answer, which is the cause of all else.
var unreachable = regexp.MustCompile(`Temporary failure resolving|Could not (resolve|connect)|Unable to connect|Connection (timed out|failed)|Cannot initiate the connection`)

// output runs a program of apt and gives what it prints. The error has what it says is wrong.
func output(ctx context.Context, dir string, env []string, command ...string) ([]byte, error) {
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir, cmd.Env = dir, append(append(os.Environ(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive"), env...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	err := cmd.Run()
	if err == nil {
		return out.Bytes(), nil
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	said := strings.TrimSpace(errs.String())
	if all := errs.String() + out.String(); ctx.Err() == nil && lacks.MatchString(all) && !unreachable.MatchString(all) {
		err = ErrMirrorLacks
		said = strings.TrimSpace(all)
	}
	const most = 1500
	if len(said) > most {
		said = "…" + said[len(said)-most:]
	}
	return nil, fmt.Errorf("%s: %w: %s", strings.Join(command, " "), err, said)
}
