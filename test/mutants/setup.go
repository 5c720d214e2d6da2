package main

// Where the setup of PCI functions keeps what it promises.
const (
	pcidevPkg = "./vfio/pcidev"
	doctorPkg = "./cmd/rnicctl/internal/doctor"
	bindGo    = "vfio/pcidev/bind.go"
	groupGo   = "vfio/pcidev/group.go"
	recordGo  = "vfio/pcidev/record.go"
	resetGo   = "vfio/pcidev/reset.go"
	pcidevGo  = "vfio/pcidev/pcidev.go"
	machineGo = "cmd/rnicctl/internal/doctor/machine.go"
)

func init() { mutants = append(mutants, setupMutants...) }

// setupMutants are defects that would take a function from somebody, or leave it without its driver.
var setupMutants = []mutant{
	{rule: "SET", what: "a failure half-way is not undone", file: bindGo, pkg: pcidevPkg, test: "TestSET_FailureHalfWay",
		old: "for ; i >= 0 && !o.DryRun; i-- {", new: "for ; i > 0 && !o.DryRun; i-- {"},
	{rule: "SET", what: "a dry run does it", file: bindGo, pkg: pcidevPkg, test: "TestSET_DryRun",
		old: "if err == nil && !o.DryRun {\n\t\t\terr = t.run", new: "if err == nil {\n\t\t\terr = t.run"},
	{rule: "SET", what: "what it had is recorded elsewhere", file: bindGo, pkg: pcidevPkg, test: "TestSET_KilledHalfWay",
		old: "step{file: t.recordPath(c.Address), text: b}, ", new: "step{file: t.recordPath(c.Address) + \"2\", text: b}, "},
	{rule: "SET", what: "the first driver that knows the card gets it", file: bindGo, pkg: pcidevPkg, test: "TestSET_BindAndUnbind",
		old: "step{attr: filepath.Join(t.drivers(), r.Driver, \"bind\"), text: addr, unless: r.Driver}", new: "step{attr: filepath.Join(t.Sys, \"bus/pci/drivers_probe\"), text: addr}"},
	{rule: "SET", what: "a bridge goes with its group", file: pcidevGo, pkg: pcidevPkg, test: "TestSET_Group",
		old: "return slices.Contains(bridges, f.Class>>8)", new: "return len(bridges) == 0"},
	{rule: "SET", what: "the group is not looked at", file: groupGo, pkg: pcidevPkg, test: "TestSET_Refusals",
		old: "return m.Address == f.Address || !t.InTheWay(&m)", new: "return true"},
	{rule: "SET", what: "any word is believed as a driver's name", file: recordGo, pkg: pcidevPkg, test: "TestSET_HostileRecord",
		old: "if s != \"\" && (!word.MatchString(s) || len(s) > 64) {", new: "if len(s) > 64 {"},
	{rule: "SET", what: "a function that is held is unbound", file: bindGo, pkg: pcidevPkg, test: "TestSET_Held",
		old: "case f.State == Held && !o.Force:", new: "case f.State == Broken && !o.Force:"},
	{rule: "SET", what: "a reset is believed that the function does not answer after", file: resetGo, pkg: pcidevPkg, test: "TestSET_ResetBelieves",
		old: "\t\terr = t.answers(f)\n", new: "\t\t_ = t.answers(f)\n"},
	{rule: "SET", what: "the choice of reset methods is left changed", file: resetGo, pkg: pcidevPkg, test: "TestSET_ResetLadder",
		old: "_ = t.write(ctx, path, all+\"\\n\")", new: "_ = ctx"},
	{rule: "SET", what: "a window of interrupts that can be mapped is not found", file: "cmd/rnicctl/internal/doctor/function.go", pkg: doctorPkg, test: "TestSET_Checks",
		old: "return w.First <= can.Last && can.First <= w.Last", new: "return w.Last <= can.Last && can.First <= w.First"},
	{rule: "SET", what: "the limit of mappings is not compared", file: machineGo, pkg: doctorPkg, test: "TestSET_Checks",
		old: "if n >= NeedMappings {", new: "if n >= 1 {"},
	{rule: "SET", what: "the hard limit of locked memory is taken for the soft one", file: machineGo, pkg: doctorPkg, test: "TestSET_Checks",
		old: "case soft >= NeedLocked:", new: "case hard >= NeedLocked:"},
}
