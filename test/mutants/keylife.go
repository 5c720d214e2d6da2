package main

func init() { mutants = append(mutants, keyLifeMutants...) }

// keyLifeMutants are defects of a key's life, from registration to re-use, as the driver
// and the soft card keep it together.
var keyLifeMutants = []mutant{
	{rule: "G11", what: "the fence does not discard the fill that it finds under way", file: "hw/gather/cache.go", pkg: driverPkg, test: "TestG11_DeregDiscardsHeldFill",
		old: "	c.gen[c.setOf(index)]++\n	set := c.set(index)", new: "	set := c.set(index)"},
	{rule: "G11", what: "a fence ends what the one before it was for: accesses under the key go on", file: keyCacheGo, pkg: driverPkg, test: "TestG11_DeregRace",
		old: "func (k *keyCache) fence(index uint32) {\n", new: "var late uint32\n\nfunc (k *keyCache) fence(index uint32) {\n	index, late = late, index\n"},
	{rule: "G11", what: "the memory is unmapped before the key is revoked and fenced", file: "driver/mr.go", pkg: driverPkg, test: "TestG11_DeregRace",
		old: "	goneErr := d.alive()\n	if goneErr == nil && m.stage == mrLive {", new: "	if m.mem != nil {\n		_ = m.dma.Unmap()\n	}\n	goneErr := d.alive()\n	if goneErr == nil && m.stage == mrLive {"},
	{rule: "G11", what: "Dereg does not wait for the fence", file: "driver/mr.go", pkg: driverPkg, test: "TestG11_DeregDiscardsHeldFill",
		old: "	if goneErr == nil && m.stage == mrRevoked {", new: "	if goneErr == nil && m.stage == mrRevoked && false {"},
	{rule: "G11", what: "the tag is the same at the next use", file: "driver/keytags.go", pkg: driverPkg, test: "TestG11_KeysDoNotRepeat",
		old: "		t++\n", new: ""},
	{rule: "G11", what: "a chosen tag comes again at once", file: "driver/keytags.go", pkg: driverPkg, test: "TestG11_KeysDoNotRepeat",
		old: "		o[255] = tag\n", new: "		copy(o[1:], o[:255])\n		o[0] = tag\n"},
	{rule: "G11", what: "a freed index is the next that is used", file: "driver/numbers.go", pkg: driverPkg, test: "TestG11_KeysDoNotRepeat",
		old: "	n.freed = append(n.freed, v)\n", new: "	n.freed = append([]uint32{v}, n.freed...)\n"},
	{rule: "Scrub", what: "the scrub passes over the reserved bits", file: scrubGo, pkg: driverPkg, test: "TestScrub_Table",
		old: "	for at := 24; at < hw.KeyEntrySize; at += 4 {", new: "	for at := 24; at < 24; at += 4 {"},
	{rule: "Scrub", what: "a flip of the table is put on the shadow", file: scrubGo, pkg: driverPkg, test: "TestScrub_Table",
		old: "m.Where, m.Why = ScrubTable,", new: "m.Where, m.Why = ScrubShadow,"},
	{rule: "Scrub", what: "the shadow is not compared while the cache has the key", file: scrubGo, pkg: driverPkg, test: "TestScrub_Shadow",
		old: "		case m.Table == m.Cache:\n", new: "		case m.Table == m.Cache:\n			continue\n"},
	{rule: "Scrub", what: "a key that moves is a mismatch", file: scrubGo, pkg: driverPkg, test: "TestScrub_Moving",
		old: "moving || m || after != shadow", new: "m && moving && after != shadow"},
	{rule: "Scrub", what: "a bind of a window is a mismatch", file: scrubGo, pkg: driverPkg, test: "TestScrub_Window",
		old: "if window && cardOwns[f.name] {", new: "if window && cardOwns[f.name] && f.name == \"type\" {"},
}

const scrubGo = "driver/scrub.go"
