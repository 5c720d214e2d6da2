package main

// Where hardware in the loop keeps what it promises.
const (
	hil         = "./test/hil"
	leaseGo     = "test/hil/lease.go"
	hilRunGo    = "test/hil/run.go"
	healthGo    = "test/hil/health.go"
	ladderGo    = "test/hil/ladder.go"
	suitesGo    = "test/hil/suites.go"
	inventoryGo = "test/hil/inventory.go"
)

func init() { mutants = append(mutants, hilMutants...) }

// hilMutants are defects that would let two runners have a card, or an ill one pass.
var hilMutants = []mutant{
	{rule: "HIL", what: "a lease is taken over before its time has passed", file: leaseGo, pkg: hil, test: "TestHIL_Lease",
		old: "if time.Now().Before(at.Until) {", new: "if time.Now().Add(l.ttl).Before(at.Until) {"},
	{rule: "HIL", what: "the lease of a stopped runner is taken over", file: leaseGo, pkg: hil, test: "TestHIL_Lease",
		old: "stale = known && running", new: "stale = known && running && time.Since(at.Until) < time.Minute"},
	{rule: "HIL", what: "a release takes away another's lease", file: leaseGo, pkg: hil, test: "TestHIL_Lease",
		old: "if err != nil || now == nil || now.Token != h.lease.Token {\n\t\t\treturn err", new: "if err != nil || now == nil {\n\t\t\treturn err"},
	{rule: "HIL", what: "a lost lease is renewed", file: leaseGo, pkg: hil, test: "TestHIL_Lease",
		old: "case now == nil || now.Token != h.lease.Token:", new: "case now == nil:"},
	{rule: "HIL", what: "two take a free lease without the folder's lock", file: leaseGo, pkg: hil, test: "TestHIL_Lease",
		old: "syscall.LOCK_EX|syscall.LOCK_NB", new: "syscall.LOCK_SH|syscall.LOCK_NB"},
	{rule: "HIL", what: "another image is tested", file: healthGo, pkg: hil, test: "TestHIL_Board",
		old: "if v.has != v.want {", new: "if v.has != v.want && v.what != \"bitstream\" {"},
	{rule: "HIL", what: "a PCIe error during the suites passes", file: healthGo, pkg: hil, test: "TestHIL_Board",
		old: "grown != nil && before != nil {", new: "grown != nil && before == nil {"},
	{rule: "HIL", what: "a quarantined card is tested", file: hilRunGo, pkg: hil, test: "TestHIL_Board",
		old: "if q := r.inv.quarantined(m.Address); q != nil {", new: "if q := r.inv.quarantined(m.Address); q != nil && q.Reason == \"\" {"},
	{rule: "HIL", what: "an interruption is taken for an illness", file: hilRunGo, pkg: hil, test: "TestHIL_Board",
		old: "	if ctx.Err() != nil {\n\t\tsr.Cases = append", new: "	if ctx.Err() != nil {\n\t\t_ = r.putAside(s.card, res, errIll)\n\t\tsr.Cases = append"},
	{rule: "HIL", what: "an interrupted run does not give the function back", file: hilRunGo, pkg: hil, test: "TestHIL_Board",
		old: "late, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackTime)", new: "late, cancel := context.WithTimeout(ctx, giveBackTime)"},
	{rule: "HIL", what: "the ladder's rungs all begin with the lowest", file: ladderGo, pkg: hil, test: "TestHIL_Board",
		old: `"--from", name, "--max", name`, new: `"--max", name`},
	{rule: "HIL", what: "a defect that verification does not find passes", file: suitesGo, pkg: hil, test: "TestHIL_Fault",
		old: "if v == nil || v.Mismatches == 0 || v.Mismatch == nil {", new: "if v == nil {"},
	{rule: "HIL", what: "a name of the inventory may leave the folder", file: inventoryGo, pkg: hil, test: "TestHIL_Inventory",
		old: "if !cardName.MatchString(name) {", new: "if len(name) > 63 {"},
}
