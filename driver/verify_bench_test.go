package driver_test

import (
	"testing"

	"rnic/driver"
)

// BenchmarkVerify is the cost of verification to a program that keeps a window of
// WRITEs of three segments in flight: card, driver and comparison share the
// processors here.
func BenchmarkVerify(b *testing.B) {
	for _, c := range []struct {
		name string
		mode driver.VerifyMode
	}{{"off", driver.Off}, {"sample16", driver.Sample(16)}, {"always", driver.Always}} {
		b.Run(c.name, func(b *testing.B) {
			x, y := hosted(b, smallQP, "", driver.WithVerify(c.mode), driver.WithVerifyDir(b.TempDir()))
			wr := driver.SendWR{Opcode: driver.Write, Flags: driver.Signaled, Remote: y.mr.Remote(),
				SGEs: []driver.SGE{x.mr.SGE(0, 1024), x.mr.SGE(8192, 6144), x.mr.SGE(2048, 512)}}
			ctx := b.Context()
			wc := make([]driver.WC, 64)
			b.SetBytes(7680)
			b.ResetTimer()
			for posted, done := 0, 0; done < b.N; {
				for posted < b.N && posted-done < 48 {
					if err := x.qp.PostSend(&wr); err != nil {
						b.Fatal(err)
					}
					posted++
				}
				n, err := x.cq.Wait(ctx, wc)
				if err != nil {
					b.Fatal(err)
				}
				for i := range wc[:n] {
					if err := wc[i].Err(); err != nil {
						b.Fatal(err)
					}
				}
				done += n
			}
			b.StopTimer()
			if s := x.d.Verification(); s.Mismatches != 0 {
				b.Fatalf("%+v", s)
			} else if c.mode != driver.Off {
				b.ReportMetric(float64(s.Packets)/float64(2*b.N), "verified/packet")
				b.ReportMetric(float64(s.Lost)/float64(2*b.N), "lost/packet")
			}
		})
	}
}
