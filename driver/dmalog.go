package driver

import (
	"context"
	"fmt"

	"rnic/hw"
	"rnic/queues"
	"rnic/vfio"
)

// DMALogOptions say what a DMA log gives.
type DMALogOptions struct {
	Count int // the stream ends after so many; 0: it does not end by itself
	// Entries is for how many records the card's ring and the stream shall have room, rounded up to a power of
	// two of at most 2^20. 0: 2^13. A ring that runs for others stays as it is.
	Entries int
}

// DMARecord is a DMA access of the card.
type DMARecord struct {
	Time      uint64 // card time, ns
	Sequence  uint64 // accesses so far, this one included
	IOVA      uint64 // of the first byte
	Length    int    // bytes that were asked for
	Direction hw.DMADirection
	Reason    Reason // why it failed, or ReasonNone
	Key       uint32 // payload: the key that was translated; 0 where there is none or it is not known
	QPN       uint32 // payload: the queue pair; 0 where it is not known
	Lost      uint32 // records that did not fit since the one before
}

// DMALog has the card report each of its DMA accesses from now on, but those to
// the log itself. Records that a reader does not take in time are dropped and
// counted. Close the stream.
func (g *Debug) DMALog(ctx context.Context, o DMALogOptions) (Stream[DMARecord], error) {
	const op = "start DMA log"
	d := g.d
	ctx, cancel := bound(ctx)
	defer cancel()
	if o.Entries < 0 || o.Entries > maxRecords {
		return nil, d.fail(op, "", fmt.Errorf("a log of %d records, at most %d: %w", o.Entries, maxRecords, ErrInvalid))
	}
	entries := traceEntries
	if o.Entries != 0 {
		entries = roundUp(max(o.Entries, 2))
	}
	s, err := d.dmaLog.open(ctx, 0, o.Count, entries)
	if err != nil {
		return nil, d.fail(op, "", err)
	}
	return s, nil
}

// DMASequence is the number of DMA accesses of the card so far, those to the DMA
// log not among them: DMARecord.Sequence of the last one.
func (g *Debug) DMASequence() (uint64, error) { return g.get64(hw.RegDebugDMASequence) }

// FencedAt is DMASequence of the moment when the card confirmed, for Dereg, that it
// uses the region no more: an access of the region with a higher number breaks that
// promise. It is 0 until then.
func (g *Debug) FencedAt(m *MR) uint64 { return m.fencedAt.Load() }

// initDMALog prepares the DMA log.
func (d *Device) initDMALog() {
	var mem vfio.Block
	d.dmaLog = recorder[DMARecord]{
		d: d, ctl: newCtlLock(), of: func(r *DMARecord) (uint32, *uint32) { return r.QPN, &r.Lost }, stop: d.stopRing(hw.CommandSetDMALog),
		start: func(ctx context.Context, entries int, _ bool, _ uint32, _ int) (recordRing[DMARecord], error) {
			word, err := d.word(hw.DomainDMALogCI)
			if err != nil {
				return nil, err
			}
			if err := d.startRing(ctx, hw.CommandSetDMALog, &mem, entries*hw.DMARecordSize, entries, 6, true, 0, 0); err != nil {
				return nil, err
			}
			q, err := queues.NewDMALog(mem.Bytes[:entries*hw.DMARecordSize], word)
			return dmaRing{q}, err
		},
	}
}

type dmaRing struct{ q *queues.Records[hw.DMARecord] }

func (r dmaRing) publish() { r.q.Publish() }

func (r dmaRing) next() (DMARecord, bool) {
	var h hw.DMARecord
	if !r.q.Next(&h) {
		return DMARecord{}, false
	}
	return DMARecord{
		Time: h.Time, Sequence: h.Sequence, IOVA: h.IOVA, Length: int(h.Length), Direction: h.Direction, Reason: h.Reason, Key: h.Key, QPN: h.QPN, Lost: h.Lost,
	}, true
}
