package driver

import (
	"testing"
	"time"

	"rnic/queues"
)

// benchQP is a queue pair whose rings and doorbells are plain memory: what a
// post costs without a card that competes for the caches.
func benchQP(b *testing.B, wrs int) *QP {
	b.Helper()
	d := &Device{addr: "bench"}
	q := &QP{pd: &PD{d: d}, n: 2, init: QPInit{MaxSendWR: wrs, MaxSendSGE: 63, MaxInline: 400}, ctl: newCtlLock()}
	blocks := roundUp(wrs * q.init.sendBlocks())
	words := make([]uint32, 2048) // each word in a page of its own
	d.domain = queues.Domain{Sleep: &words[0], Kick: func() { b.Fatal("kick") }}
	var err error
	if q.sq, err = queues.NewSQ(make([]byte, blocks*64), &words[1024], &d.domain); err != nil {
		b.Fatal(err)
	}
	q.sends, q.sendMask, q.sendLimit = make([]sendRecord, blocks), uint32(blocks-1), uint32(wrs)
	return q
}

func BenchmarkPostSend(b *testing.B) {
	const wrs = 1024
	q := benchQP(b, wrs)
	sges := make([]SGE, 63)
	for _, c := range []struct {
		name string
		wr   SendWR
	}{
		{"1", SendWR{Opcode: Send, SGEs: sges[:1]}},
		{"3", SendWR{Opcode: Send, SGEs: sges[:3]}},
		{"63", SendWR{Opcode: Send, SGEs: sges}},
		{"inline64", SendWR{Opcode: Send, Inline: [][]byte{make([]byte, 64)}}},
	} {
		b.Run(c.name, func(b *testing.B) {
			best := time.Hour
			for n := 0; n < b.N; n += wrs {
				q.sq.Reset()
				q.sendNext, q.sendDone = 0, 0
				start := time.Now()
				for range wrs {
					if err := q.PostSend(&c.wr); err != nil {
						b.Fatal(err)
					}
				}
				best = min(best, time.Since(start))
			}
			b.ReportMetric(float64(best)/wrs, "best-ns/op")
		})
	}
}
