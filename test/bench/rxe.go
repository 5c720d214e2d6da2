package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"rnic/test/vm/vm"
)

// perGuest is what the guest's end of the row prints: GB/s of both, the best of its turns.
type perGuest struct {
	RXE  float64 `json:"rxe"`
	Soft float64 `json:"soft"`
}

// measureRXE is the row "rxe". It wants a virtual machine (docs/vm.md), and runs only where it was asked for: a guest takes a minute, and its
// preparation downloads.
func measureRXE(ctx context.Context, b *bench) error {
	const floor, aim = 3, 10
	const figure = "soft cards against rdma_rxe over loopback in one guest, 64 KiB RDMA WRITE"
	if !slices.Contains(b.only, "rxe") {
		b.rows = append(b.rows, row{Name: "rxe", Figure: figure, Unit: "ratio", Better: more, Floor: at(floor), Aim: at(aim), Result: notHere,
			Note: "-only rxe measures it, in a guest (docs/vm.md)"})
		return nil
	}
	say := func(line string) { fmt.Fprintln(b.log, line) }
	peer, err := vm.Part(ctx, vm.Perftest, say)
	if err != nil {
		return err
	}
	program, err := vm.Build(ctx, "./test/bench")
	if err != nil {
		return err
	}
	r, err := vm.Run(ctx, vm.Config{
		Kernel: vm.Kernel61, IOMMU: vm.None, CPUs: 2, MemoryMB: 768, Limit: 15 * time.Minute, Say: say,
		Modules: []string{"crc32_generic", "crc32-pclmul", "dummy", "ib_uverbs", "rdma_rxe"},
		Binary:  program, Args: []string{"-in-guest", fmt.Sprint(b.atScale(5, 1))}, Files: map[string]string{"/": peer},
	})
	if err != nil {
		return err
	}
	var g perGuest
	if err := json.Unmarshal(r.Stdout, &g); err != nil || !r.Passed() || g.RXE <= 0 || g.Soft <= 0 {
		return fmt.Errorf("the guest ended with %d %s and said %q, %q; its kernel:\n%s", r.Exit, r.Signal, r.Stdout, r.Stderr, r.Log())
	}
	b.add("rxe", figure, "ratio", more, floor, aim, g.Soft/g.RXE, "a guest of 2 CPUs that QEMU interprets: the ratio is the figure",
		absolute{"soft cards", g.Soft, "GB/s"}, absolute{"rdma_rxe", g.RXE, "GB/s"})
	return nil
}

func at(v float64) *float64 { return &v }
