package conformance

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
)

// TestRecordingAgainstItself: what stands in for the cards does what is expected,
// and every recorded scenario passes, with every frame compared.
func TestRecordingAgainstItself(t *testing.T) {
	dirs, err := Find([]string{goldenDir})
	if err != nil || len(dirs) < 91 {
		t.Fatalf("%d scenarios, %v", len(dirs), err)
	}
	for _, dir := range dirs {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			r, err := Load(dir)
			if err != nil {
				t.Fatal(err)
			}
			if r.usesWindows() {
				t.Skip("the model has no windows")
			}
			x, err := expect(r)
			if err != nil {
				t.Fatal(err)
			}
			frames, err := play(t.Context(), x, newMimic(x).cards())
			if err != nil {
				t.Fatal(err)
			}
			if want := len(x.sent[0]) + len(x.sent[1]); frames != want {
				t.Fatalf("%d frames compared of %d", frames, want)
			}
		})
	}
}

func isDifference(err error) bool {
	d := (*Difference)(nil)
	return errors.As(err, &d)
}

// replayMutated plays a recording with what stands in for the cards changed, and
// wants a difference that says something of it.
func replayMutated(t *testing.T, name string, change func(*expectation, *mimic), want string) {
	t.Helper()
	r := load(t, name)
	x, err := expect(r)
	if err != nil {
		t.Fatal(err)
	}
	m := newMimic(x)
	change(x, m)
	_, err = play(t.Context(), x, m.cards())
	if !isDifference(err) || !strings.Contains(err.Error(), want) {
		t.Errorf("%s: got %v, want a difference with %q", name, err, want)
	}
}

var someScenarios = []string{
	"a_walk", "b_send_imm_only", "d_write_imm", "e_read_scatter", "e_read_then_send", "f_cas_hit", "g_maxsge_256",
	"i_bad_rkey", "i_recv_too_small", "i_rnr_exhaust", "i_lkey_second_packet", "m_ipv6_send", "j_drop_middle", "k_ud_send",
}

// TestFrameMutations changes every byte of the headers and some of the payload
// of frames that we send, once as it is and once with checksum and ICRC made right
// again: each is found, but for the identification, which is an input, and what is
// computed anew.
func TestFrameMutations(t *testing.T) {
	for _, name := range someScenarios {
		x := mustExpect(t, name)
		frames := newMimic(x).frames
		for n := range frames[:min(len(frames), 6)] {
			f := &frames[n]
			size := len(f.data)
			v4 := x.IPVersion == 4
			if err := compareFrame(f, n, f.data); err != nil {
				t.Fatal(err)
			}
			for off := 0; off < size; off++ {
				if off > 90 && off < size-8 && off%997 != 0 || n > 1 && (off+n)%5 != 0 {
					continue
				}
				for _, signed := range []bool{false, true} {
					computed := signed && (off >= size-4 || v4 && (off == 24 || off == 25))
					input := signed && v4 && (off == 18 || off == 19)
					if computed || input {
						continue
					}
					ours := append([]byte(nil), f.data...)
					ours[off] ^= 0x10
					if signed {
						_ = resign(ours) // where it cannot be, the frame no longer parses
					}
					if err := compareFrame(f, n, ours); !isDifference(err) {
						t.Fatalf("%s: frame %d, byte %d, signed anew %v: got %v, want a difference", name, n, off, signed, err)
					}
				}
			}
			replayMutated(t, name, func(_ *expectation, m *mimic) {
				m.onSend = func(i int, b []byte) [][]byte {
					if i == n {
						b[len(b)-6] ^= 0x10
					}
					return [][]byte{b}
				}
			}, "ICRC")
		}
	}
}

// TestFrameLackingOrExtra leaves out, doubles and swaps frames.
func TestFrameLackingOrExtra(t *testing.T) {
	for _, name := range someScenarios {
		x, err := expect(load(t, name))
		if err != nil {
			t.Fatal(err)
		}
		frames := newMimic(x).frames
		for n := range frames {
			replayMutated(t, name, func(_ *expectation, m *mimic) {
				m.onSend = func(i int, b []byte) [][]byte {
					if i == n {
						return nil
					}
					return [][]byte{b}
				}
			}, "frame")
			replayMutated(t, name, func(_ *expectation, m *mimic) {
				m.onSend = func(i int, b []byte) [][]byte {
					if i == n {
						return [][]byte{b, b}
					}
					return [][]byte{b}
				}
			}, "frame")
		}
	}
	replayMutated(t, "d_write_multi", func(_ *expectation, m *mimic) {
		m.frames[1], m.frames[2] = m.frames[2], m.frames[1]
	}, "bth.psn recorded 1714945, ours 1714946")
}

func TestCompletionMutations(t *testing.T) {
	change := func(at side, send bool, f func([]Completion) []Completion) func(*expectation, *mimic) {
		return func(_ *expectation, m *mimic) {
			m.onPoll = func(a side, s bool, list []Completion) []Completion {
				if a == at && s == send {
					return f(list)
				}
				return list
			}
		}
	}
	one := func(f func(*Completion)) func([]Completion) []Completion {
		return func(list []Completion) []Completion { f(&list[0]); return list }
	}
	for _, c := range []struct {
		scenario string
		at       side
		send     bool
		change   func([]Completion) []Completion
		want     string
	}{
		{"a_walk", sideA, true, one(func(c *Completion) { c.WRID++ }), "wr_id recorded 1001, ours 1002"},
		{"a_walk", sideA, true, one(func(c *Completion) { c.Status = statusFlushed }), "status recorded SUCCESS, ours WR_FLUSH_ERR"},
		{"a_walk", sideA, true, one(func(c *Completion) { c.QPN++ }), "qp_num"},
		{"a_walk", sideA, true, one(func(c *Completion) { c.Opcode = wcRead }), "opcode"},
		{"a_walk", sideB, false, one(func(c *Completion) { c.ByteLen++ }), "byte_len"},
		{"a_walk", sideB, false, one(func(c *Completion) { c.Flags |= wcFlagImm }), "wc_flags"},
		{"b_send_imm_only", sideB, false, one(func(c *Completion) { c.Imm++ }), "imm"},
		{"b_send_imm_only", sideB, false, one(func(c *Completion) { c.Flags &^= wcFlagImm }), "wc_flags"},
		{"e_read_single", sideA, true, one(func(c *Completion) { c.ByteLen = 0 }), "byte_len"},
		{"f_cas_hit", sideA, true, one(func(c *Completion) { c.ByteLen = 0 }), "byte_len"},
		{"i_bad_rkey", sideA, true, one(func(c *Completion) { c.Status = statusRemOp }), "REM_ACCESS_ERR"},
		{"i_lkey_after_good", sideA, true, func(l []Completion) []Completion { return l[1:] }, "2 of 3 completions came"},
		{"a_walk", sideA, true, func([]Completion) []Completion { return nil }, "0 of 1 completions came"},
		{"a_walk", sideA, true, func(l []Completion) []Completion { return append(l, l[0]) }, "left over in the send CQ of A"},
		{"a_walk", sideB, false, func(l []Completion) []Completion { return append(l, l[0]) }, "left over in the receive CQ of B"},
	} {
		replayMutated(t, c.scenario, change(c.at, c.send, c.change), c.want)
	}
	// Not defined, so not compared: length and flags of a sender's SEND, the
	// opcode and length of an error.
	for name, f := range map[string]func(*Completion){
		"b_send_imm_only": func(c *Completion) { c.ByteLen, c.Flags = 0, 0 },
		"i_bad_rkey":      func(c *Completion) { c.ByteLen, c.Opcode = 77, wcWrite },
	} {
		x, err := expect(load(t, name))
		if err != nil {
			t.Fatal(err)
		}
		m := newMimic(x)
		change(sideA, true, one(f))(x, m)
		if _, err := play(t.Context(), x, m.cards()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestStateMutations(t *testing.T) {
	replayMutated(t, "i_bad_rkey", func(_ *expectation, m *mimic) {
		m.onQuery = func(q *QPState) { q.State = stateRTS }
	}, "state recorded ERR, ours RTS")
	replayMutated(t, "i_bad_rkey", func(_ *expectation, m *mimic) {
		m.onQuery = func(q *QPState) { q.SQPSN++ }
	}, "sq_psn recorded 1714948, ours 1714949")
}

func TestPostMutations(t *testing.T) {
	replayMutated(t, "a_walk", func(_ *expectation, m *mimic) {
		m.onPost = func() error { return errRefused }
	}, "recorded 1 of 1 requests accepted")
	// Accepted where soft-RoCE refused.
	x, err := expect(load(t, "f_atomic_misaligned"))
	if err != nil {
		t.Fatal(err)
	}
	y, err := expect(load(t, "f_atomic_misaligned"))
	if err != nil {
		t.Fatal(err)
	}
	y.Steps[0].RC = 0
	if _, err := play(t.Context(), x, newMimic(y).cards()); !isDifference(err) || !strings.Contains(err.Error(), "ours 1 (accepted)") {
		t.Errorf("got %v", err)
	}
}

// TestMemoryMutations changes the first and the last byte of every range, and the
// content of the whole soak's ranges in the middle of it.
func TestMemoryMutations(t *testing.T) {
	for _, name := range append([]string{"l_soak"}, someScenarios...) {
		x, err := expect(load(t, name))
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range x.MemoryAfter {
			if r.Len == 0 || i > 2 && i%117 != 0 {
				continue
			}
			for _, off := range []uint64{r.Offset, r.Offset + r.Len - 1} {
				m := newMimic(x)
				m.onMemory = func(at side, mr string, b []byte) {
					if at.String() == r.Node && mr == r.MR {
						b[off] ^= 1
					}
				}
				if _, err := play(t.Context(), x, m.cards()); !isDifference(err) || !strings.Contains(err.Error(), "memory of "+r.Node) {
					t.Fatalf("%s: range %d, byte %d: %v", name, i, off, err)
				}
			}
		}
	}
}
