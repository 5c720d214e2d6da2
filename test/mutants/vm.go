package main

// Where the virtual machine's preparation keeps what it promises, and the soft card what a kernel needs of it.
const (
	vmLib     = "./test/vm/vm"
	vmDebian  = "./test/vm/debian"
	prepareGo = "test/vm/vm/prepare.go"
	checkGo   = "test/vm/vm/check.go"
	aptGo     = "test/vm/debian/apt.go"
	unpackGo  = "test/vm/debian/unpack.go"
	functGo   = "hw/softcard/function.go"
)

func init() { mutants = append(mutants, vmMutants...) }

// vmMutants are defects by which a guest would run something else than Debian's packages, or be skipped without a reason.
var vmMutants = []mutant{
	{rule: "Prep", what: "a changed file is used", file: prepareGo, pkg: vmLib, test: "TestPrep_MadeAnew",
		old: "		if files[name] != want {\n", new: "		if has, there := files[name]; !there && has != want {\n"},
	{rule: "Prep", what: "a file too many is used", file: prepareGo, pkg: vmLib, test: "TestPrep_MadeAnew",
		old: "if len(files) != len(m.Files) {", new: "if len(files) < len(m.Files) {"},
	{rule: "Prep", what: "a part is made in its place", file: prepareGo, pkg: vmLib, test: "TestPrep_Interrupted",
		old: "work, fresh := dest+\".work\", dest+\".work/tree\"", new: "work, fresh := dest+\".work\", dest"},
	{rule: "Prep", what: "what an interrupted preparation left is kept", file: prepareGo, pkg: vmLib, test: "TestPrep_Interrupted",
		old: "errors.Join(os.RemoveAll(fresh), os.MkdirAll(fresh, 0o755))", new: "os.MkdirAll(fresh, 0o755)"},
	{rule: "Prep", what: "two prepare one part at a time", file: prepareGo, pkg: vmLib, test: "TestPrep_TwoMakeOnePart",
		old: "syscall.LOCK_EX|syscall.LOCK_NB", new: "syscall.LOCK_SH|syscall.LOCK_NB"},
	{rule: "Prep", what: "CI passes without a compiler", file: checkGo, pkg: vmLib, test: "TestPrep_WhatCannotBeHad",
		old: "(os.Getenv(\"CI\") == \"\" || onlyMirror(err))", new: "(os.Getenv(\"CI\") == \"\" || err != nil)"},
	{rule: "Prep", what: "a mirror that was not reached counts as one that lacks something", file: aptGo, pkg: vmDebian, test: "TestPrep_OnlyTheMirrorsLack",
		old: "lacks.MatchString(all) && !unreachable.MatchString(all)", new: "all != \"\""},
	{rule: "Prep", what: "sources are known only after an apt-get update", file: aptGo, pkg: vmDebian, test: "TestPrep_Mirrors",
		old: "\"-o\", \"APT::Get::IndexTargets::ReleaseInfo=false\", ", new: ""},
	{rule: "Prep", what: "a package writes outside", file: unpackGo, pkg: vmDebian, test: "TestPrep_UntarStaysInside",
		old: "	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {\n		return err\n	}\n	if err := root.RemoveAll(name); err != nil {\n		return err\n	}\n	switch h.Typeflag {\n",
		new: "	if h.Typeflag == tar.TypeReg {\n		text, _ := io.ReadAll(t)\n		return os.WriteFile(root.Name()+\"/\"+name, text, 0o644)\n	}\n	switch h.Typeflag {\n"},
	{rule: "FLR", what: "a function level reset leaves memory decoding on", file: functGo, pkg: card, test: "TestFLR_",
		old: "		c.functionReset(c.attached(), 0)\n", new: "		c.Reset()\n"},
}
