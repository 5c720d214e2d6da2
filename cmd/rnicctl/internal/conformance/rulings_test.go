package conformance

import (
	"fmt"
	"testing"

	"rnic/hw/roce"
)

// TestEachRulingApplies: no ruling is dead, and none applies to a scenario that
// REPLAY.md's table does not name.
func TestEachRulingApplies(t *testing.T) {
	dirs, err := Find([]string{goldenDir})
	if err != nil {
		t.Fatal(err)
	}
	edited := map[int][]string{}
	for _, dir := range dirs {
		r, err := Load(dir)
		if err != nil {
			t.Fatal(err)
		}
		for i := range rulings {
			if !rulings[i].appliesTo(r.Name) {
				continue
			}
			x, err := expect(r)
			if err != nil {
				t.Fatal(err)
			}
			if len(x.ruled) > 0 {
				edited[i] = append(edited[i], r.Name)
			}
		}
	}
	for i := range rulings {
		if len(edited[i]) == 0 {
			t.Errorf("ruling on %v, %s: changes nothing in any recording", rulings[i].scenarios, rulings[i].object)
		}
	}
	for _, name := range []string{"a_walk", "i_bad_rkey", "i_read_sink_lkey", "l_soak", "i_psn_wrap", "i_qp_to_err"} {
		x, err := expect(load(t, name))
		if err != nil || len(x.ruled) != 0 {
			t.Errorf("%s: ruled %v, %v; want as recorded", name, x.ruled, err)
		}
	}
}

// TestRulings checks what each ruling expects instead against REPLAY.md's table.
func TestRulings(t *testing.T) {
	statusesOf := func(x *expectation) string {
		s := ""
		for i := range x.Steps {
			if st := &x.Steps[i]; st.Action == actionPoll {
				s += st.Node + st.CQ[:1] + "["
				for _, c := range x.completions[i] {
					s += fmt.Sprintf(" %d:%s", c.WRID, statusName(c.Status))
				}
				s += " ] "
			}
		}
		return s
	}
	framesOf := func(x *expectation) string {
		s := ""
		for _, f := range x.frames {
			if f.dropped {
				continue
			}
			if a := aeth(f.data); a != nil {
				s += fmt.Sprintf("%v:%02x ", f.from, uint8(a.Syndrome()))
			} else {
				s += f.from.String() + " "
			}
		}
		return s
	}
	for name, want := range map[string][2]string{
		"i_lkey_first":           {"As[ 1002:LOC_PROT_ERR 1003:WR_FLUSH_ERR 1004:WR_FLUSH_ERR ] Br[ ] ", ""},
		"i_lkey_second_sge":      {"As[ 1001:LOC_PROT_ERR 1002:WR_FLUSH_ERR ] Br[ ] ", ""},
		"i_lkey_second_packet":   {"As[ 1002:LOC_PROT_ERR 1003:WR_FLUSH_ERR 1004:WR_FLUSH_ERR ] Br[ ] ", "A "},
		"i_lkey_unsignaled":      {"As[ 1001:LOC_PROT_ERR ] ", ""},
		"i_local_oob":            {"As[ 1001:LOC_PROT_ERR ] ", ""},
		"i_lkey_after_good":      {"As[ 1003:SUCCESS 1004:LOC_PROT_ERR 1005:WR_FLUSH_ERR ] Br[ 1000:SUCCESS ] ", "A B:1f "},
		"i_unsignaled_fail":      {"As[ 1004:LOC_PROT_ERR 1005:WR_FLUSH_ERR ] Br[ 1000:SUCCESS ] ", "A B:1f "},
		"i_recv_too_small":       {"As[ 1002:REM_INV_REQ_ERR 1003:WR_FLUSH_ERR ] Br[ 1000:LOC_LEN_ERR 1001:WR_FLUSH_ERR ] ", "A A B:61 "},
		"i_recv_too_small_multi": {"As[ 1001:REM_INV_REQ_ERR ] Br[ 1000:LOC_LEN_ERR ] ", "A A A B:61 "},
		"i_rem_op_err":           {"As[ 1001:REM_OP_ERR 1002:WR_FLUSH_ERR ] Br[ 1000:LOC_PROT_ERR ] ", "A A B:63 "},
		"b_send_inv_mr":          {"As[ 1001:REM_ACCESS_ERR ] Br[ 1000:REM_INV_REQ_ERR ] ", "A B:62 "},
		"i_rnr_exhaust":          {"As[ 1000:RNR_RETRY_EXC_ERR 1001:WR_FLUSH_ERR ] ", "A A B:34 A A B:34 A A B:34 "},
		"i_rnr_recover":          {"As[ 1000:SUCCESS ] Br[ 1001:SUCCESS ] ", "A A B:3c A A B:1f "},
		"k_uc_send_drop":         {"As[ 1002:SUCCESS 1003:SUCCESS ] Br[ 1000:SUCCESS ] ", "A A A A "},
	} {
		x, err := expect(load(t, name))
		if err != nil {
			t.Fatal(err)
		}
		if got := statusesOf(x); got != want[0] {
			t.Errorf("%s: completions %q, want %q", name, got, want[0])
		}
		if got := framesOf(x); got != want[1] {
			t.Errorf("%s: frames %q, want %q", name, got, want[1])
		}
		for i, s := range x.states { // a side whose request fails ends in ERR
			if x.Steps[i].Node == "A" && (len(name) > 6 && name[:6] == "i_lkey" || name == "i_unsignaled_fail") && s.State != stateErr {
				t.Errorf("%s: state of A expected to be %s", name, stateName(s.State))
			}
		}
	}
	x, err := expect(load(t, "k_uc_gap_then_sends"))
	if err != nil {
		t.Fatal(err)
	}
	var lens []uint32
	for i := range x.Steps {
		if x.Steps[i].CQ == "recv" {
			for _, c := range x.completions[i] {
				lens = append(lens, c.ByteLen)
			}
		}
	}
	if fmt.Sprint(lens) != "[60 61 62 63]" {
		t.Errorf("UC behind a gap: %v received, want all whole messages", lens)
	}
	// An edited frame is sound.
	for _, f := range mustExpect(t, "i_recv_too_small").frames {
		var p roce.Packet
		if err := roce.Parse(f.data, &p); err != nil {
			t.Errorf("edited frame: %v", err)
		}
	}
}

func mustExpect(t *testing.T, name string) *expectation {
	t.Helper()
	x, err := expect(load(t, name))
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// TestTurnsAndWire: turns as the recordings show them, and what the wire did.
func TestTurnsAndWire(t *testing.T) {
	for name, want := range map[string]string{
		"a_walk":              "A2 B1 | [0 1] [0]",
		"e_read_send_nofence": "A2 B4 | [0 1] [0 1 2 3]",
		"i_rnr_recover":       "A2 B1 A4 B2 | [0 1 2 3] [0 1]", // the ends count all frames so far
		"j_drop_middle":       "A4 B1 A7 B2 | [0 2 3 4 5 6] [0 1]",
		"j_reorder":           "A4 B2 A7 B4 | [0 2 1 3 4 5 6] [0 1 2 3]",
		"j_corrupt":           "A4 B1 A7 B2 | [0 1^200/01 2 3 4 5 6] [0 1]",
		"j_dead_wire":         "A6 | [] []",
		"j_drop_nak":          "A4 B1 A8 B3 | [0 2 3 4 5 6 7] [1 2]",
	} {
		x := mustExpect(t, name)
		got := ""
		for _, u := range x.turns {
			got += fmt.Sprintf("%v%d ", u.from, u.end)
		}
		got += "|"
		for _, list := range x.arrive {
			s := []string{}
			for _, d := range list {
				one := fmt.Sprint(d.frame)
				if d.corrupt != nil {
					one += fmt.Sprintf("^%d/%02x", d.corrupt.offset, d.corrupt.xor)
				}
				s = append(s, one)
			}
			got += fmt.Sprint(" ", s)
		}
		if got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func TestNeeds(t *testing.T) {
	for name, want := range map[string]string{
		"a_walk": "[]", "i_rnr_exhaust": "[]", "i_rnr_recover": "[]", "j_drop_ack_of_3": "[]",
		"b_send_inv_mr": "[memory windows or invalidation]", "b_send_inv_only": "[memory windows or invalidation]",
		"m_ipv6_ud": "[UD]", "k_uc_send": "[UC]", "k_uc_send_drop": "[UC]", "k_ud_send": "[UD]",
		"j_drop_middle": "[retransmission]", "j_dead_wire": "[retransmission]", "j_read_drop_middle": "[retransmission]", "l_soak": "[]",
	} {
		if got := fmt.Sprint(load(t, name).needs()); got != want {
			t.Errorf("%s needs %s, want %s", name, got, want)
		}
	}
}

// TestRereadMayBeginAnew: the rest of a READ may come as a new response, whole
// and sound, and nothing else may.
func TestRereadMayBeginAnew(t *testing.T) {
	x := mustExpect(t, "j_read_drop_middle")
	send := func(change func(f, or []byte) []byte) error {
		m := newMimic(x)
		m.onSend = func(i int, b []byte) [][]byte {
			if or := m.frames[i].or; or != nil {
				b = change(b, append([]byte(nil), or...))
			}
			return [][]byte{b}
		}
		_, err := play(t.Context(), x, m.cards())
		return err
	}
	n := 0
	if err := send(func(_, or []byte) []byte {
		n++
		var p, was roce.Packet
		if err := roce.Parse(or, &p); err != nil {
			t.Fatal(err)
		}
		if err := roce.Parse(x.capture[6].data, &was); err != nil {
			t.Fatal(err)
		}
		if a := p.AETH().Fields(); p.Opcode() != roce.RCReadResponseFirst || a.MSN != 1 || a.Syndrome != 31 ||
			p.BTH().PSN() != was.BTH().PSN() || string(p.Payload()) != string(was.Payload()) {
			t.Errorf("%s", summary(or))
		}
		return or
	}); err != nil || n != 1 {
		t.Errorf("%d frames, %v", n, err)
	}
	if err := send(func(_, or []byte) []byte {
		or[60] ^= 1
		_ = resign(or)
		return or
	}); !isDifference(err) {
		t.Errorf("got %v", err)
	}
}
