package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// maxInventory bounds the file in bytes.
const maxInventory = 1 << 20

// inventory is the cards of a laboratory and where their state is kept.
type inventory struct {
	State string        `yaml:"state"`      // folder of leases and last results; all runners of these cards must share it
	TTL   time.Duration `yaml:"lease_time"` // of a lease that is not renewed
	Cards map[string]*card
}

// card is one entry. What its runs need is here, and nothing else is.
type card struct {
	Name     string   `yaml:"-"`
	Address  string   `yaml:"address"`
	Identity identity `yaml:"identity"`
	Peer     string   `yaml:"peer"`    // name of another card, or an address; "" for none
	Restore  string   `yaml:"restore"` // kernel driver of a PCI function after a run: a name, or "none"
	Suites   []string `yaml:"suites"`
	Timeouts timeouts `yaml:"timeouts"`

	peer *card // of the inventory, nil where Peer is an address or empty
}

// identity is what the card must say of itself.
type identity struct {
	Bitstream string `yaml:"bitstream"` // SHA-256 in hex; "none" for a card without an image
	Engine    string `yaml:"engine"`    // none, go, rtl, fpga
	Contract  string `yaml:"contract"`  // MAJOR.MINOR
}

type timeouts struct {
	Wait   time.Duration `yaml:"wait"`   // longest wait for the card's lease
	Suite  time.Duration `yaml:"suite"`  // longest run of a suite
	Answer time.Duration `yaml:"answer"` // longest wait for one answer of the card
}

// What an entry does not say.
const (
	defaultState  = "/var/lib/rnic/hil"
	defaultTTL    = 30 * time.Second
	defaultWait   = 10 * time.Minute
	defaultSuite  = 10 * time.Minute
	defaultAnswer = 5 * time.Second
	maxTime       = 24 * time.Hour // of every one of them
)

var (
	cardName   = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)
	pciAddress = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$`)
	address    = regexp.MustCompile(`^[a-z][a-z0-9+.-]*:[ -~]{0,1000}$`)
	driverName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)
	digest     = regexp.MustCompile(`^(none|[0-9a-f]{64})$`)
	contract   = regexp.MustCompile(`^[0-9]{1,5}\.[0-9]{1,5}$`)
)

// isPCI tells whether the address is that of a function of the kernel's VFIO.
func isPCI(addr string) bool { return pciAddress.MatchString(addr) }

// pci tells whether the card is such a function.
func (c *card) pci() bool { return isPCI(c.Address) }

func readInventory(file string) (*inventory, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxInventory+1))
	if err != nil {
		return nil, err
	}
	inv, err := parseInventory(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return inv, nil
}

// parseInventory reads an inventory, all of it or an error that names lines.
func parseInventory(text []byte) (*inventory, error) {
	if len(text) > maxInventory {
		return nil, fmt.Errorf("longer than %d bytes", maxInventory)
	}
	var root yaml.Node
	d := yaml.NewDecoder(bytes.NewReader(text))
	switch err := d.Decode(&root); {
	case errors.Is(err, io.EOF):
		return nil, errors.New("it is empty")
	case err != nil:
		return nil, err
	}
	if err := plain(&root); err != nil {
		return nil, err
	}
	if d.Decode(new(yaml.Node)) != io.EOF {
		return nil, errors.New("more than one document")
	}
	inv := &inventory{}
	strict := yaml.NewDecoder(bytes.NewReader(text))
	strict.KnownFields(true)
	if err := strict.Decode(inv); err != nil {
		return nil, plainError(err)
	}
	if err := inv.check(&root); err != nil {
		return nil, err
	}
	return inv, nil
}

// plain refuses what an inventory has no use for, and what can make a small file large.
func plain(n *yaml.Node) error {
	if n.Kind == yaml.AliasNode || n.Anchor != "" {
		return fmt.Errorf("line %d: anchors and aliases are not wanted here", n.Line)
	}
	for _, c := range n.Content {
		if err := plain(c); err != nil {
			return err
		}
	}
	return nil
}

// plainError words the library's errors without the names of Go types.
func plainError(err error) error {
	var all *yaml.TypeError
	if !errors.As(err, &all) {
		return err
	}
	text := strings.Join(all.Errors, "; ")
	text = notFound.ReplaceAllString(text, " is not known here")
	text = strings.ReplaceAll(text, "time.Duration", "a time such as 30s")
	return errors.New(goType.ReplaceAllString(text, "what is wanted here"))
}

var (
	notFound = regexp.MustCompile(` not found in type main\.[a-z]+`)
	goType   = regexp.MustCompile(`(\*|\[\]|map\[string\])*\b(main\.[a-z]+|string)\b`)
)

// line is where a key of the file stands, by its path from the top; 0 where it is not there.
func line(n *yaml.Node, path ...string) int {
	if n.Kind == yaml.DocumentNode {
		return line(n.Content[0], path...)
	}
	if len(path) == 0 {
		return n.Line
	}
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == path[0] {
			if at := line(n.Content[i+1], path[1:]...); at != 0 {
				return at
			}
			return n.Content[i].Line
		}
	}
	return 0
}

// check fills in what is not said, and refuses what cannot be.
func (inv *inventory) check(root *yaml.Node) error {
	var wrong []error
	bad := func(path []string, format string, a ...any) {
		wrong = append(wrong, fmt.Errorf("line %d: %s: %w", line(root, path...), strings.Join(path, "."), fmt.Errorf(format, a...)))
	}
	span := func(d *time.Duration, otherwise time.Duration, path ...string) {
		switch {
		case *d == 0:
			*d = otherwise
		case *d < 0 || *d > maxTime:
			bad(path, "%v is not between 0 and %v", *d, maxTime)
		}
	}
	if inv.State == "" {
		inv.State = defaultState
	}
	if !filepath.IsAbs(inv.State) {
		bad([]string{"state"}, "%q is not an absolute path", inv.State)
	}
	span(&inv.TTL, defaultTTL, "lease_time")
	if len(inv.Cards) == 0 {
		return errors.Join(append(wrong, errors.New("there is no card under cards"))...)
	}
	at := map[string]string{}
	for _, name := range inv.names() {
		c, path := inv.Cards[name], []string{"cards", name}
		if c == nil {
			bad(path, "there is nothing in it")
			continue
		}
		c.Name = name
		if !cardName.MatchString(name) {
			bad(path, "a name has up to 63 letters a-z, digits, '.', '_' and '-'")
		}
		if !isPCI(c.Address) && !address.MatchString(c.Address) {
			bad(append(path, "address"), "%q is no address: 0000:03:00.0, vfio-user:/PATH or soft:NAME", c.Address)
		}
		if other := at[c.Address]; other != "" {
			bad(append(path, "address"), "%s has it too", other)
		}
		at[c.Address] = name
		if !digest.MatchString(c.Identity.Bitstream) {
			bad(append(path, "identity", "bitstream"), "%q is no SHA-256 of 64 hex digits, nor none", c.Identity.Bitstream)
		}
		if !slices.Contains([]string{"none", "go", "rtl", "fpga"}, c.Identity.Engine) {
			bad(append(path, "identity", "engine"), "%q is not one of none, go, rtl, fpga", c.Identity.Engine)
		}
		if !contract.MatchString(c.Identity.Contract) {
			bad(append(path, "identity", "contract"), "%q is no MAJOR.MINOR", c.Identity.Contract)
		}
		switch {
		case c.Restore == "":
		case !c.pci():
			bad(append(path, "restore"), "only a PCI function has a kernel driver")
		case !driverName.MatchString(c.Restore):
			bad(append(path, "restore"), "%q is no name of a driver, nor none", c.Restore)
		}
		if c.Suites == nil {
			c.Suites = suiteNames()
		}
		for i, s := range c.Suites {
			if !slices.Contains(suiteNames(), s) {
				bad(append(path, "suites"), "there is no suite %q; there are %s", s, strings.Join(suiteNames(), ", "))
			} else if slices.Contains(c.Suites[:i], s) {
				bad(append(path, "suites"), "%s is there twice", s)
			}
		}
		span(&c.Timeouts.Wait, defaultWait, append(path, "timeouts", "wait")...)
		span(&c.Timeouts.Suite, defaultSuite, append(path, "timeouts", "suite")...)
		span(&c.Timeouts.Answer, defaultAnswer, append(path, "timeouts", "answer")...)
	}
	for _, name := range inv.names() {
		c := inv.Cards[name]
		if c == nil || c.Peer == "" {
			continue
		}
		path := []string{"cards", name, "peer"}
		c.peer = inv.Cards[c.Peer]
		if c.peer == nil { // an address: perhaps that of a card of the inventory
			c.peer = inv.Cards[at[c.Peer]]
		}
		switch {
		case c.peer == c:
			bad(path, "a card is not its own peer; leave it out for a card that has none")
		case c.peer == nil && !isPCI(c.Peer) && !address.MatchString(c.Peer):
			bad(path, "%q is neither a card of this inventory nor an address", c.Peer)
		}
	}
	return errors.Join(wrong...)
}

// names are the cards' names, sorted.
func (inv *inventory) names() []string { return slices.Sorted(maps.Keys(inv.Cards)) }

// choose gives the cards that a list with commas names, all for an empty one.
func (inv *inventory) choose(list string) ([]*card, error) {
	names := inv.names()
	if list != "" {
		names = strings.Split(list, ",")
	}
	var cards []*card
	for _, n := range names {
		c := inv.Cards[n]
		switch {
		case c == nil:
			return nil, fmt.Errorf("--card: there is no card %q in the inventory; there are %s", n, strings.Join(inv.names(), ", "))
		case slices.Contains(cards, c):
			return nil, fmt.Errorf("--card: %s is there twice", n)
		}
		cards = append(cards, c)
	}
	return cards, nil
}

// peerAddress is the address of the card's peer, "" where it has none.
func (c *card) peerAddress() string {
	if c.peer != nil {
		return c.peer.Address
	}
	return c.Peer
}
