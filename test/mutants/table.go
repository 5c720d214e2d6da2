package main

// The packages that keep the rules.
const (
	gather   = "./hw/gather"
	walkGo   = "hw/gather/walk.go"
	keyGo    = "hw/gather/key.go"
	cacheGo  = "hw/gather/cache.go"
	msgGo    = "hw/gather/message.go"
	segGo    = "hw/gather/segment.go"
	lookupGo = "hw/gather/lookup.go"
	scatter  = "hw/gather/scatter.go"
)

// mutants are in the order of the rules. Another part of the tree adds its own here.
var mutants = []mutant{
	{rule: "G01", what: "a READ response does not gather", file: msgGo, pkg: gather, test: "TestG01_",
		old: "o == Send || o == Write || o == ReadResponse", new: "o == Send || o == Write"},
	{rule: "G01", what: "a packet is handed over though a read failed", file: walkGo, pkg: gather, test: "TestG01_",
		old: "if m.Read(iova, dst[done:done+take]) != nil {", new: "if m.Read(iova, dst[done:done+take]) != nil && done == 0 {"},
	{rule: "G02", what: "a result is placed without the right to write", file: keyGo, pkg: gather, test: "TestG02_",
		old: "if k.Access&who.Access != who.Access ||", new: "if k.Access&who.Access&remote != who.Access&remote ||"},
	{rule: "G02", what: "a result longer than its segments is placed", file: scatter, pkg: gather, test: "TestG02_",
		old: "uint64(len(src)) > uint64(c.Left)", new: "uint64(len(src)) > uint64(c.Left)+8"},
	{rule: "G03", what: "an inline packet starts at the WQE's first byte again", file: walkGo, pkg: gather, test: "TestG03_",
		old: "copy(dst[:want], inline[c.Offset:])", new: "copy(dst[:want], inline)"},
	{rule: "G04", what: "a READ response needs no remote-read right", file: msgGo, pkg: gather, test: "TestG04_",
		old: "return hw.AccessRemoteRead", new: "return LocalRead"},
	{rule: "G05", what: "a READ response is cut to one packet", file: msgGo, pkg: gather, test: "TestG05_",
		old: "Length: length, Key: rkey}", new: "Length: min(length, 256), Key: rkey}"},
	{rule: "G06", what: "64 segments are taken", file: segGo, pkg: gather, test: "TestG06_",
		old: "MaxSegments = 63", new: "MaxSegments = 64"},
	{rule: "G07", what: "a packet ends with its buffer", file: walkGo, pkg: gather, test: "TestG07_",
		old: "want := min(mtu, c.Left)\n\tif mtu == 0 || c.Segment < 0", new: "want := min(mtu, c.Left)\n\tif c.Segment >= 0 && c.Segment < len(segs) && segs[c.Segment].Length > c.Offset {\n\t\twant = min(want, segs[c.Segment].Length-c.Offset)\n\t}\n\tif mtu == 0 || c.Segment < 0"},
	{rule: "G07", what: "a message without bytes has no packet", file: segGo, pkg: gather, test: "TestG07_",
		old: "if length == 0 {\n\t\treturn 1", new: "if length == 0 {\n\t\treturn 0"},
	{rule: "G08", what: "the cursor stays on an ended segment", file: segGo, pkg: gather, test: "TestG08_",
		old: "c.Offset == segs[c.Segment].Length {", new: "c.Offset == segs[c.Segment].Length && c.Offset == 0 {"},
	{rule: "G08", what: "the end is not (count, 0, 0)", file: segGo, pkg: gather, test: "TestG08_",
		old: "*c = Cursor{Segment: len(segs)}", new: "*c = Cursor{Segment: len(segs), Offset: c.Offset}"},
	{rule: "G09", what: "the same lkey as before is not looked up", file: walkGo, pkg: gather, test: "TestG09_",
		old: "func lookup(t Translator, tr Tracer, s *Segment, who Who, at Cursor, n uint32) (iova uint64, r hw.Reason) {\n\taddr := s.Addr + uint64(at.Offset)\n",
		new: "var lastKey uint32\nvar lastIOVA uint64\n\nfunc lookup(t Translator, tr Tracer, s *Segment, who Who, at Cursor, n uint32) (iova uint64, r hw.Reason) {\n\taddr := s.Addr + uint64(at.Offset)\n" +
			"\tif lastKey == s.Key {\n\t\treturn lastIOVA + addr, hw.ReasonNone\n\t}\n\tdefer func() { lastKey, lastIOVA = s.Key, iova-addr }()\n"},
	{rule: "G10", what: "the domain is looked at before the tag", file: keyGo, pkg: gather, test: "TestG10_",
		old: "if k.Tag != TagOf(key) {", new: "if k.PD != who.PD {\n\t\treturn 0, hw.ReasonPD\n\t}\n\tif k.Tag != TagOf(key) {"},
	{rule: "G10", what: "address plus length may wrap around", file: keyGo, pkg: gather, test: "TestG10_",
		old: "if n != 0 && addr+uint64(n-1) < addr {", new: "if n == 1 && addr+uint64(n-1) < addr {"},
	{rule: "G10", what: "one byte behind the region is inside", file: keyGo, pkg: gather, test: "TestG10_",
		old: "uint64(n) > k.Length-off", new: "uint64(n) > k.Length-off+1"},
	{rule: "G11", what: "a fill that raced an invalidation is kept", file: cacheGo, pkg: gather, test: "TestG11_",
		old: "if f.gen != c.gen[c.setOf(f.index)] {", new: "if f.gen > c.gen[c.setOf(f.index)] {"},
	{rule: "G11", what: "the most recently used way is replaced", file: cacheGo, pkg: gather, test: "TestG11_",
		old: "if set[i].used < victim.used {", new: "if set[i].used > victim.used {"},
	{rule: "G11", what: "evictions are not counted", file: cacheGo, pkg: gather, test: "TestG11_",
		old: "c.stats.Evictions++", new: "c.stats.Evictions += 0"},
	{rule: "G12", what: "an empty segment is looked up", file: walkGo, pkg: gather, test: "TestG12_",
		old: "\t\tif take == 0 {\n\t\t\tcontinue\n\t\t}\n\t\tiova, r := lookup(t, tr, s, who, at, take)\n\t\tif r == hw.ReasonNone {\n\t\t\tif m.Read",
		new: "\t\tif take == 0 {\n\t\t\tif s.Length == 0 {\n\t\t\t\tlookup(t, tr, s, who, at, 0)\n\t\t\t}\n\t\t\tcontinue\n\t\t}\n\t\tiova, r := lookup(t, tr, s, who, at, take)\n\t\tif r == hw.ReasonNone {\n\t\t\tif m.Read"},
	{rule: "G13", what: "the last packet does not ask", file: msgGo, pkg: gather, test: "TestG13_",
		old: "return packet+1 == packets || every", new: "return packets == 1 || every"},
	{rule: "G13", what: "UC asks for an acknowledgement", file: msgGo, pkg: gather, test: "TestG13_",
		old: "if !reliable {", new: "if !reliable && o != Write {"},
	{rule: "G14", what: "each buffer begins on an even byte of the payload", file: walkGo, pkg: gather, test: "TestG14_",
		old: "\t\tdone += take\n", new: "\t\tdone += take + take&1*min(1, want-done-take)\n"},
	{rule: "G17", what: "the cursor moves though the packet failed", file: walkGo, pkg: gather, test: "TestG17_",
		old: "return 0, Fault{Segment: at.Segment, Key: s.Key, Offset: at.Offset, Reason: r}, false", new: "f = Fault{Segment: at.Segment, Key: s.Key, Offset: at.Offset, Reason: r}\n\t\t\t*c = at\n\t\t\treturn 0, f, false"},
	{rule: "G17", what: "the part before the fault is sent as a short packet", file: walkGo, pkg: gather, test: "TestG17_",
		old: "\t\tif r != hw.ReasonNone {\n\t\t\treturn 0, Fault", new: "\t\tif r != hw.ReasonNone && done > 0 {\n\t\t\t*c = at\n\t\t\treturn int(done), Fault{}, true\n\t\t}\n\t\tif r != hw.ReasonNone {\n\t\t\treturn 0, Fault"},
	{rule: "G18", what: "a sum over the maximum is taken", file: segGo, pkg: gather, test: "TestG18_",
		old: "sum > MaxMessage {", new: "sum > 2*MaxMessage {"},
	{rule: "G18", what: "the fault does not name the segment", file: segGo, pkg: gather, test: "TestG18_",
		old: "Fault{Segment: i, Key: segs[i].Key, Reason: hw.ReasonLength}", new: "Fault{Key: segs[i].Key, Reason: hw.ReasonLength}"},
	{rule: "G19", what: "a key that is gone in mid-response still reads", file: keyGo, pkg: gather, test: "TestG19_",
		old: "if k == nil || k.State != hw.KeyStateValid {", new: "if k == nil || k.State != hw.KeyStateValid && who.Access == LocalRead {"},
	{rule: "G22", what: "a lookup that failed is not reported", file: walkGo, pkg: gather, test: "TestG22_",
		old: "\tif tr != nil {\n\t\ttr.Lookup", new: "\tif tr != nil && r == hw.ReasonNone {\n\t\ttr.Lookup"},
}
