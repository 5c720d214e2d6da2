package main

func init() { mutants = append(mutants, imageMutants...) }

const (
	loadGo      = "hw/image/load.go"
	slotsGo     = "hw/image/slots.go"
	manifestGo  = "hw/image/manifest.go"
	flashGo     = "hw/softcard/flash.go"
	imagePkg    = "./hw/image"
	softcardPkg = "./hw/softcard"
	cliPkg      = "./cmd/rnicctl/internal/cli"
)

// imageMutants are defects that would leave a card without an image to start, or with one that is not its own.
var imageMutants = []mutant{
	{rule: "BIT", what: "the slot that the card falls back to is written", file: loadGo, pkg: softcardPkg, test: "TestBIT_PullAtEveryByte",
		old: "base := p.Slot * g.Slot()\n\tsectors", new: "base := max(p.Keep, 0) * g.Slot()\n\tsectors"},
	{rule: "BIT", what: "the older image is started", file: slotsGo, pkg: softcardPkg, test: "TestBIT_PullAtEveryByte",
		old: "return int32(a-b) > 0", new: "return int32(a-b) < 0"},
	{rule: "BIT", what: "the slot that runs may be named", file: loadGo, pkg: imagePkg, test: "TestBIT_Turns",
		old: "case p.Slot == p.Keep:", new: "case p.Slot == p.Keep && slot == AnySlot:"},
	{rule: "BIT", what: "the image is erased before its header", file: loadGo, pkg: imagePkg, test: "TestBIT_Cancelled",
		old: "f.Erase(base + i*g.Sector)", new: "f.Erase(base + (sectors-1-i)*g.Sector)"},
	{rule: "BIT", what: "what is read back is not compared", file: loadGo, pkg: imagePkg, test: "TestBIT_Verify",
		old: "if p[i] != data[n+i] {", new: "if p[i] != p[i] {"},
	{rule: "BIT", what: "an image for another part is loaded", file: manifestGo, pkg: cliPkg, test: "TestBIT_Refusals",
		old: "case m.Part != part:", new: "case m.Part == \"\":"},
	{rule: "BIT", what: "a card with another contract than its image's is opened", file: manifestGo, pkg: cliPkg, test: "TestBIT_CardDisagrees",
		old: "|| id.Minor != h.ContractMinor:", new: ":"},
	{rule: "BIT", what: "a program sets bits", file: flashGo, pkg: softcardPkg, test: "TestBIT_Window",
		old: "left[i] = f.mem[at+i] & p[i]", new: "left[i] = p[i]"},
	{rule: "BIT", what: "a key allows more than one command", file: flashGo, pkg: softcardPkg, test: "TestBIT_Window",
		old: "\t\tr.flash.enabled = false\n", new: ""},
}
