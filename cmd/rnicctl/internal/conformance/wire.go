package conformance

import (
	"fmt"
	"math/bits"

	"rnic/hw/roce/rocetest"
)

// delivery is one frame that the receiving side gets.
type delivery struct {
	frame   int // number among the frames of its direction
	corrupt *corruption
}

// corruption is one byte that the wire changed.
type corruption struct {
	offset int
	xor    byte
}

// deliveries finds out what the wire did to the frames of each sender, from the
// content of the frames that were delivered. The numbers count the frames of one
// direction in capture order.
func (r *Recording) deliveries() ([2][]delivery, error) {
	var out [2][]delivery
	var sent [2][]recorded
	for _, f := range r.capture {
		if r.delivered == nil {
			out[f.from] = append(out[f.from], delivery{frame: len(sent[f.from])})
		}
		sent[f.from] = append(sent[f.from], f)
	}
	type ref struct {
		from side
		n    int
	}
	byContent := map[string][]ref{}
	for from := range sent {
		for n, f := range sent[from] {
			byContent[string(f.data)] = append(byContent[string(f.data)], ref{side(from), n})
		}
	}
	for i, got := range r.delivered {
		if same := byContent[string(got)]; len(same) > 0 {
			out[same[0].from] = append(out[same[0].from], delivery{frame: same[0].n})
			if len(same) > 1 { // sent again as it was: the next copy is the next one sent
				byContent[string(got)] = same[1:]
			}
			continue
		}
		d, from, err := altered(&sent, got)
		if err != nil {
			return out, fmt.Errorf("delivered.pcap, frame %d: %w", i, err)
		}
		out[from] = append(out[from], d)
	}
	return out, nil
}

// altered finds the frame of which got is a changed copy: the one marked so that
// differs in the fewest bits.
func altered(sent *[2][]recorded, got []byte) (delivery, side, error) {
	best, at, least := -1, sideA, len(got)*8+1
	for from := range sent {
		for n, f := range sent[from] {
			if f.relay != relaySubst || len(f.data) != len(got) {
				continue
			}
			distance := 0
			for i := range got {
				distance += bits.OnesCount8(f.data[i] ^ got[i])
			}
			if distance < least {
				best, at, least = n, side(from), distance
			}
		}
	}
	if best < 0 {
		return delivery{}, 0, fmt.Errorf("it is no frame of capture.pcap, nor one that the wire changed")
	}
	if icrc, err := rocetest.ICRC(got); err == nil {
		if stored, err := rocetest.Stored(got); err == nil && stored == icrc {
			return delivery{}, 0, fmt.Errorf("the wire changed frame %d of %s and gave it a right ICRC: not replayed", best, at.direction())
		}
	}
	// Any changed byte does: the receiver finds the ICRC wrong and drops it whole.
	for i, b := range got {
		if x := b ^ sent[at][best].data[i]; x != 0 {
			return delivery{best, &corruption{i, x}}, at, nil
		}
	}
	return delivery{frame: best}, at, nil
}

// checkICRC holds each recorded frame to the independent ICRC, so that the code
// that rewrites our frames is known to be right on these very ones.
func (r *Recording) checkICRC() error {
	for i, f := range r.capture {
		if ok := r.Frames[i].ICRCOK; ok != nil && !*ok {
			continue
		}
		icrc, err := rocetest.ICRC(f.data)
		if err != nil {
			return fmt.Errorf("capture.pcap, frame %d: %w", i, err)
		}
		if stored, err := rocetest.Stored(f.data); err != nil || stored != icrc {
			return fmt.Errorf("capture.pcap, frame %d: its ICRC is %08x, of its bytes %08x: the recording is damaged", i, stored, icrc)
		}
	}
	return nil
}
