package conformance

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sort"
	"unicode"

	"rnic/hw/roce/pcapng"
)

// ErrScenario says that a directory holds no scenario, or one that cannot be
// read. Is of every error of Find and Load.
var ErrScenario = errors.New("not a sound scenario")

// ScenarioError names the file that is bad. Is: ErrScenario.
type ScenarioError struct {
	Path string // file or directory
	Err  error
}

func (e *ScenarioError) Error() string { return fmt.Sprintf("%s: %v: %v", e.Path, ErrScenario, e.Err) }

// Unwrap gives ErrScenario and the cause.
func (e *ScenarioError) Unwrap() []error { return []error{ErrScenario, e.Err} }

// What a scenario may hold. A file is somebody's input: beyond these it is
// refused before memory is spent on it. The largest recorded one, l_soak, stays
// below a hundredth of each.
const (
	maxFile        = 64 << 20
	maxFrames      = 1 << 18
	maxFrameBytes  = 1 << 16
	maxSteps       = 1 << 16
	maxWRs         = 1 << 12 // of one post
	maxCompletions = 1 << 16 // of one poll
	maxSGEs        = 1 << 10 // of one work request
	maxMRs         = 256     // of one node
	maxMRBytes     = 256 << 20
	maxMemory      = 1 << 16 // ranges read back
	maxScenarios   = 1 << 14
)

// side is one of the two nodes.
type side int

const (
	sideA side = iota
	sideB
)

func (s side) String() string { return string("AB"[s]) }
func (s side) peer() side     { return 1 - s }

// direction names the frames that s sends.
func (s side) direction() string { return s.String() + ">" + s.peer().String() }

func sideOf(name string) (side, error) {
	switch name {
	case "A":
		return sideA, nil
	case "B":
		return sideB, nil
	}
	return 0, fmt.Errorf("node %q is neither A nor B", name)
}

// Recording is a scenario with its frames.
type Recording struct {
	Scenario
	Dir string

	nodes     [2]Node
	capture   []recorded // every frame as it was sent
	delivered [][]byte   // frames that receivers got; nil: all, as sent
	damage    error      // why the files do not belong together; nil: they do
}

// recorded is one frame of capture.pcap.
type recorded struct {
	from  side
	relay string
	data  []byte
}

// Find gives the scenario directories that the arguments name: each argument is
// one, or holds some. Is: ErrScenario.
func Find(dirs []string) ([]string, error) {
	var all []string
	for _, dir := range dirs {
		if isScenario(dir) {
			all = append(all, dir)
			continue
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, &ScenarioError{dir, err}
		}
		n := len(all)
		for _, e := range entries {
			if sub := filepath.Join(dir, e.Name()); isScenario(sub) {
				all = append(all, sub)
			}
		}
		if len(all) == n {
			return nil, &ScenarioError{dir, errors.New("no scenario.json in it nor one directory below")}
		}
		sort.Strings(all[n:])
	}
	if len(all) == 0 {
		return nil, &ScenarioError{".", errors.New("no directory was named")}
	}
	if len(all) > maxScenarios {
		return nil, &ScenarioError{dirs[0], fmt.Errorf("%d scenarios, more than %d", len(all), maxScenarios)}
	}
	return all, nil
}

func isScenario(dir string) bool {
	info, err := os.Stat(filepath.Join(dir, "scenario.json"))
	return err == nil && info.Mode().IsRegular()
}

// Load reads the scenario in a directory. Is: ErrScenario.
func Load(dir string) (*Recording, error) {
	file := filepath.Join(dir, "scenario.json")
	text, err := readFile(file)
	if err != nil {
		return nil, &ScenarioError{file, err}
	}
	capture := filepath.Join(dir, "capture.pcap")
	sent, err := readFile(capture)
	if err != nil {
		return nil, &ScenarioError{capture, err}
	}
	delivered := filepath.Join(dir, "delivered.pcap")
	got, err := readFile(delivered)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, &ScenarioError{delivered, err}
	}
	r, err := parse(text, sent, got)
	if err != nil {
		return nil, &ScenarioError{dir, err}
	}
	r.Dir = dir
	return r, nil
}

func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(b) > maxFile {
		err = fmt.Errorf("more than %d bytes", maxFile)
	}
	return b, err
}

// parse makes a recording of the three files' content; delivered is nil where
// there is no such file.
func parse(text, capture, delivered []byte) (*Recording, error) {
	r := &Recording{}
	if err := json.Unmarshal(text, &r.Scenario); err != nil {
		return nil, fmt.Errorf("scenario.json: %w", err)
	}
	if err := r.check(); err != nil {
		return nil, fmt.Errorf("scenario.json: %w", err)
	}
	frames, err := readFrames(capture)
	if err != nil {
		return nil, fmt.Errorf("capture.pcap: %w", err)
	}
	if len(frames) != len(r.Frames) {
		// Both files are sound and one of them is not of this scenario: that fails it, and no other.
		r.damage = fmt.Errorf("capture.pcap holds %d frames, scenario.json tells of %d: the recording is damaged", len(frames), len(r.Frames))
		return r, nil
	}
	altered := r.DeliveredDiffers
	for i, info := range r.Frames {
		from := sideA
		if info.Dir == "B>A" {
			from = sideB
		}
		r.capture = append(r.capture, recorded{from, info.Relay, frames[i]})
		altered = altered || info.Relay != relayPass
	}
	if delivered != nil {
		if r.delivered, err = readFrames(delivered); err != nil {
			return nil, fmt.Errorf("delivered.pcap: %w", err)
		}
		if r.delivered == nil {
			r.delivered = [][]byte{}
		}
	} else if altered {
		return nil, errors.New("the wire changed frames, but there is no delivered.pcap")
	}
	return r, nil
}

func readFrames(file []byte) ([][]byte, error) {
	in, err := pcapng.NewReader(bytes.NewReader(file))
	if err != nil {
		return nil, err
	}
	var frames [][]byte
	for {
		f, err := in.Next()
		if err == io.EOF {
			return frames, nil
		}
		if err != nil {
			return nil, err
		}
		if len(frames) == maxFrames || len(f.Data) > maxFrameBytes {
			return nil, fmt.Errorf("frame %d of %d bytes: at most %d frames of %d bytes are taken",
				len(frames), len(f.Data), maxFrames, maxFrameBytes)
		}
		frames = append(frames, f.Data)
	}
}

// check holds a scenario to the bounds within which the rest of the package may
// use it unchecked: node and region names are known, lengths are small.
func (r *Recording) check() error {
	s := &r.Scenario
	switch {
	case s.Schema != 1:
		return fmt.Errorf("schema %d: only 1 is known", s.Schema)
	case !plain(s.Name):
		return fmt.Errorf("scenario %.40q has no plain name of 1 to 200 bytes", s.Name)
	case s.IPVersion != 4 && s.IPVersion != 6:
		return fmt.Errorf("ip_version %d: 4 and 6 are known", s.IPVersion)
	case mtuCode(s.Path.MTU) == 0:
		return fmt.Errorf("path.mtu %d: 256, 512, 1024, 2048 and 4096 are known", s.Path.MTU)
	case len(s.Nodes) != 2:
		return fmt.Errorf("%d nodes: there must be A and B", len(s.Nodes))
	case len(s.Steps) > maxSteps, len(s.MemoryAfter) > maxMemory, len(s.Frames) > maxFrames:
		return fmt.Errorf("%d steps, %d memory ranges, %d frames: at most %d, %d, %d are taken",
			len(s.Steps), len(s.MemoryAfter), len(s.Frames), maxSteps, maxMemory, maxFrames)
	}
	for name, n := range s.Nodes {
		at, err := sideOf(name)
		if err == nil {
			err = n.check(s.IPVersion)
		}
		if err != nil {
			return fmt.Errorf("nodes.%s: %w", name, err)
		}
		r.nodes[at] = n
	}
	for i := range s.Steps {
		if err := s.Steps[i].check(); err != nil {
			return fmt.Errorf("steps[%d]: %w", i, err)
		}
	}
	for i := range s.MemoryAfter {
		if err := r.checkRange(&s.MemoryAfter[i]); err != nil {
			return fmt.Errorf("memory_after[%d]: %w", i, err)
		}
	}
	for i, f := range s.Frames {
		if f.Dir != "A>B" && f.Dir != "B>A" {
			return fmt.Errorf("frames[%d].dir %q: A>B and B>A are known", i, f.Dir)
		}
		if f.Relay == "" {
			s.Frames[i].Relay = relayPass
		}
	}
	return nil
}

func mtuCode(bytes int) uint8 {
	for code := uint8(1); code <= 5; code++ {
		if bytes == 128<<code {
			return code
		}
	}
	return 0
}

func (n *Node) check(ipVersion int) error {
	if mac, err := net.ParseMAC(n.MAC); err != nil || len(mac) != 6 {
		return fmt.Errorf("mac %q is no MAC of 6 bytes", n.MAC)
	}
	ip, err := netip.ParseAddr(n.IP)
	if err != nil || ip.Zone() != "" || ip.Is4() != (ipVersion == 4) {
		return fmt.Errorf("ip %q is no IPv%d address", n.IP, ipVersion)
	}
	if n.QPN >= 1<<24 || n.SQPSN >= 1<<24 || n.RQPSN >= 1<<24 {
		return fmt.Errorf("qpn %d, sq_psn %d, rq_psn %d: they have 24 bits", n.QPN, n.SQPSN, n.RQPSN)
	}
	c := &n.Caps
	for _, v := range []int{c.MaxSendWR, c.MaxRecvWR, c.MaxSendSGE, c.MaxRecvSGE, c.MaxInline} {
		if v < 0 || v > 1<<20 {
			return fmt.Errorf("caps: %d is out of range", v)
		}
	}
	if len(n.MRs) > maxMRs {
		return fmt.Errorf("%d regions: at most %d are taken", len(n.MRs), maxMRs)
	}
	names := map[string]bool{}
	total := uint64(0)
	for i := range n.MRs {
		m := &n.MRs[i]
		if names[m.Name] {
			return fmt.Errorf("mrs: %q is there twice", m.Name)
		}
		names[m.Name] = true
		if total += m.Len; m.Len > maxMRBytes || total > maxMRBytes {
			return fmt.Errorf("mrs: %q of %d bytes: at most %d bytes are taken of a node", m.Name, m.Len, maxMRBytes)
		}
		if m.Addr+m.Len < m.Addr {
			return fmt.Errorf("mrs: %q at 0x%x, %d bytes: wraps around", m.Name, m.Addr, m.Len)
		}
	}
	return nil
}

func (n *Node) region(name string) *MR {
	for i := range n.MRs {
		if n.MRs[i].Name == name {
			return &n.MRs[i]
		}
	}
	return nil
}

// plain tells whether a text of a file may be shown as it is.
func plain(s string) bool {
	for _, r := range s {
		if !unicode.IsPrint(r) {
			return false
		}
	}
	return s != "" && len(s) <= 200
}

func (s *Step) check() error {
	if _, err := sideOf(s.Node); err != nil {
		return err
	}
	if !plain(s.Action) {
		return fmt.Errorf("action %.40q", s.Action)
	}
	switch s.Action {
	case actionPostRecv:
		return checkSGEs(s.SGEs)
	case actionPostSend:
		if len(s.WRs) == 0 || len(s.WRs) > maxWRs {
			return fmt.Errorf("%d work requests: 1 to %d are taken", len(s.WRs), maxWRs)
		}
		for i := range s.WRs {
			if err := checkSGEs(s.WRs[i].SGEs); err != nil {
				return fmt.Errorf("wrs[%d]: %w", i, err)
			}
		}
	case actionPoll:
		if len(s.Completions) > maxCompletions || s.Expected < 0 || s.Expected > maxCompletions {
			return fmt.Errorf("%d completions, %d expected: at most %d are taken", len(s.Completions), s.Expected, maxCompletions)
		}
	case actionQueryQP:
		if s.Result == nil {
			return errors.New("query_qp has no result")
		}
	}
	return nil
}

func checkSGEs(sges []SGE) error {
	if len(sges) > maxSGEs {
		return fmt.Errorf("%d SGEs: at most %d are taken", len(sges), maxSGEs)
	}
	return nil
}

func (r *Recording) checkRange(m *MemoryRange) error {
	at, err := sideOf(m.Node)
	if err != nil {
		return err
	}
	mr := r.nodes[at].region(m.MR)
	switch {
	case mr == nil:
		return fmt.Errorf("node %s has no region %q", m.Node, m.MR)
	case m.Offset > mr.Len || m.Len > mr.Len-m.Offset:
		return fmt.Errorf("%d bytes at %d are outside %q of %d bytes", m.Len, m.Offset, m.MR, mr.Len)
	case len(m.SHA256) != 64:
		return fmt.Errorf("sha256 %q has not 64 digits", m.SHA256)
	}
	return nil
}
