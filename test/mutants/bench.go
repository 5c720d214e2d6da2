package main

func init() { mutants = append(mutants, benchMutants...) }

// benchMutants are defects that would make the figures of `make bench` worth nothing, and
// of what was made fast for their sake.
var benchMutants = []mutant{
	{rule: "P01", what: "the driver does not write what its twin in C writes", file: "queues/sq.go", pkg: "./test/bench", test: "TestP01_TwinWritesTheSame",
		old: "&q.data[at&q.mask] // a WQE may wrap at the ring's end", new: "&q.data[(at^1)&q.mask]"},
	{rule: "P01", what: "the bench's request is not the twin's", file: "test/bench/verbs.go", pkg: "./test/bench", test: "TestP01_TwinWritesTheSame",
		old: "Length: uint32(64 + i)", new: "Length: 64"},
	{rule: "P02", what: "a doorbell without a full fence", file: "hw/mmio/inplace_amd64.go", pkg: "./hw/mmio", test: "TestP02_DoorbellForbidsBothOld",
		old: "	atomic.AddUint32(&own, 0)\n", new: "	_ = own\n"},
	{rule: "P03", what: "a poll allocates", file: "driver/cq.go", pkg: "./test/bench", test: "TestP03_Quick",
		old: "qp := c.last; qp != nil {", new: "qp := c.last; qp != nil && fmt.Sprint(len(wc)) != \"\" {"},
}
