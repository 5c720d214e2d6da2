package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"rnic/hw/roce"
)

// card is one side of a replay: the verbs of a QP whose attributes are the
// recorded ones, and the control of its card's time, run and port.
type card interface {
	// PostSend posts a chain and tells how many requests of it were queued; the
	// error is about the next one.
	PostSend(wrs []WR) (int, error)
	PostRecv(s *Step) error
	// Poll takes all completions that are in the send or receive CQ.
	Poll(send bool) ([]Completion, error)
	Query(ctx context.Context) (QPState, error)
	Modify(ctx context.Context, state string) error
	// Memory is the content of a region.
	Memory(mr string) []byte

	// Receive lets the card take in every frame delivered to it.
	Receive(ctx context.Context) error
	// Transmit lets the card work until only timers are left to it, and gives the
	// frames that it sent meanwhile. They wait at the peer's port.
	Transmit(ctx context.Context) ([][]byte, error)
	// Take acts on the index-th of the frames that wait at this card's port:
	// delivers it, a changed copy if corrupt is not nil, removes it, or both.
	Take(ctx context.Context, index int, deliver, remove bool, corrupt *corruption) error
	// NextTimer is the time until the card's next timer; false if none runs.
	NextTimer(ctx context.Context) (time.Duration, bool, error)
	// Advance moves the card's clock.
	Advance(ctx context.Context, d time.Duration) error
}

// Bounds on a replay. The longest recorded wait is that of a dead wire with all
// its retries, well below a minute.
const (
	maxVirtual = time.Hour // of the cards' time
	maxTimers  = 1 << 16
)

// player runs one scenario on two cards.
type player struct {
	x     *expectation
	cards [2]card

	stirred [2]bool // sides that may have something to do since they last came to rest
	turn    int
	sent    [2]int             // frames seen of each sender
	next    [2]int             // deliveries made of each sender
	waiting [2][]int           // by receiver: numbers of the sender's frames at its port, oldest first
	got     [2][2][]Completion // by side, then send CQ and receive CQ: not yet polled for
	memory  int                // ranges found
	foundAt []int              // by range: the step after which it was found
	elapsed time.Duration
	timers  int
}

// play replays a scenario. The error Is a *Difference where the cards did something
// else than expected; any other means that the replay could not be run. frames
// is how many frames were compared.
func play(ctx context.Context, x *expectation, cards [2]card) (frames int, err error) {
	p := &player{x: x, cards: cards}
	for i := range x.Steps {
		if err = ctx.Err(); err != nil {
			return p.frames(), p.at(i, err)
		}
		if err = p.step(ctx, i); err != nil {
			return p.frames(), p.at(i, err)
		}
		if err = p.settle(ctx, i+1); err != nil {
			return p.frames(), p.at(i, err)
		}
		p.lookAtMemory(i)
	}
	return p.frames(), p.finish()
}

func (p *player) frames() int { return p.sent[sideA] + p.sent[sideB] }

// at says at which step something was found.
func (p *player) at(i int, err error) error {
	s := &p.x.Steps[i]
	where := fmt.Sprintf("step %d (%s %s", i, s.Node, s.Action)
	if s.CQ != "" {
		where += " " + s.CQ
	}
	if d := (*Difference)(nil); errors.As(err, &d) {
		return &Difference{What: where + "): " + d.What, Fields: d.Fields}
	}
	return fmt.Errorf("%s): %w", where, err)
}

// step does one step. The cards are at rest.
func (p *player) step(ctx context.Context, i int) error {
	s := &p.x.Steps[i]
	at, err := sideOf(s.Node)
	if err != nil {
		return err
	}
	c := p.cards[at]
	if s.Action != actionPoll && s.Action != actionQueryQP {
		p.stirred[at] = true
	}
	switch s.Action {
	case actionPostRecv:
		if err := p.letRNRPass(ctx, at); err != nil {
			return err
		}
		err := c.PostRecv(s)
		if (err == nil) != (s.RC == 0) {
			return differ("recorded %s, ours %s", outcome(s.RC, s.Err), outcomeOf(err))
		}
	case actionPostSend:
		n, err := c.PostSend(s.WRs)
		if want := acceptedWRs(s); n != want || (err == nil) != (s.RC == 0) {
			return differ("recorded %d of %d requests accepted (%s), ours %d (%s)",
				want, len(s.WRs), outcome(s.RC, s.Err), n, outcomeOf(err))
		}
	case actionPoll:
		return p.poll(ctx, i, at)
	case actionQueryQP:
		want := p.x.states[i]
		got, err := c.Query(ctx)
		if err != nil {
			return err
		}
		return compareState(&want, &got)
	case actionModifyQP:
		if err := c.Modify(ctx, s.State); err != nil {
			return differ("modify to %s: %v", s.State, err)
		}
	case actionAsyncEvents: // not compared: soft-RoCE raises none for any fault
	}
	return nil
}

func outcome(rc int, text string) string {
	if rc == 0 {
		return "accepted"
	}
	return fmt.Sprintf("refused with %d, %q", rc, text)
}

func outcomeOf(err error) string {
	if err == nil {
		return "accepted"
	}
	return fmt.Sprintf("refused: %v", err)
}

// settle lets both cards work and the wire carry until nothing is left to do but
// timers. next is the step that will be taken then; the number of steps if it is
// not near.
func (p *player) settle(ctx context.Context, next int) error {
	for {
		for at := range p.cards {
			if err := p.transmit(ctx, side(at)); err != nil {
				return err
			}
		}
		moved, err := p.carry(ctx, next)
		if err != nil || !moved {
			return err
		}
	}
}

// transmit lets a card work and compares what it sends.
func (p *player) transmit(ctx context.Context, at side) error {
	if !p.stirred[at] {
		return nil
	}
	p.stirred[at] = false
	frames, err := p.cards[at].Transmit(ctx)
	if err != nil {
		return err
	}
	for _, f := range frames {
		n := p.sent[at]
		p.sent[at]++
		p.waiting[at.peer()] = append(p.waiting[at.peer()], n)
		if p.x.loose {
			continue
		}
		if n >= len(p.x.sent[at]) {
			return differ("frame %d of %s is one too many: %s", n, at.direction(), summary(f))
		}
		if err := compareFrame(&p.x.sent[at][n], n, f); err != nil {
			return err
		}
	}
	return nil
}

// carry brings the frames of the next turn to the other side, once the turn is
// whole; failing that, the part of it that was sent, since nothing may be in
// flight when a step is taken. It tells whether anything was brought.
func (p *player) carry(ctx context.Context, next int) (bool, error) {
	if p.x.loose {
		return p.carryLoose(ctx)
	}
	if p.turn == len(p.x.turns) {
		return false, nil
	}
	t := p.x.turns[p.turn]
	if p.held(next, t.from.peer()) {
		return false, nil
	}
	end := min(t.end, p.sent[t.from])
	moved, err := p.bring(ctx, t.from, end)
	if end == t.end {
		p.turn++
		moved = true
	}
	return moved, err
}

// held tells whether a side must post what it is about to post before it may see
// more: its next frame in the recording is the first of that. The two directions
// race, and there the post was first.
func (p *player) held(next int, at side) bool {
	for ; next < len(p.x.Steps); next++ {
		s := &p.x.Steps[next]
		if s.Action != actionPostRecv && s.Action != actionPostSend {
			return false
		}
		if n, ok := p.x.opening[next]; ok && s.Node == at.String() && n == p.sent[at] {
			return true
		}
	}
	return false
}

// bring delivers what the wire delivered of the first end frames of a sender, and
// removes what it lost.
func (p *player) bring(ctx context.Context, from side, end int) (bool, error) {
	to := from.peer()
	list := p.x.arrive[from]
	again := map[int]int{} // deliveries still to come, by frame
	for _, d := range list[p.next[from]:] {
		again[d.frame]++
	}
	delivered := false
	for p.next[from] < len(list) && list[p.next[from]].frame < end {
		d := list[p.next[from]]
		p.next[from]++
		again[d.frame]--
		if err := p.take(ctx, to, d.frame, true, again[d.frame] == 0, d.corrupt); err != nil {
			return false, err
		}
		delivered = true
	}
	for _, n := range append([]int(nil), p.waiting[to]...) {
		if n < end && again[n] == 0 {
			if err := p.take(ctx, to, n, false, true, nil); err != nil {
				return false, err
			}
		}
	}
	if delivered {
		p.stirred[to] = true
		return true, p.cards[to].Receive(ctx)
	}
	return false, nil
}

// take acts on a frame that waits at a side's port.
func (p *player) take(ctx context.Context, to side, frame int, deliver, remove bool, c *corruption) error {
	for i, n := range p.waiting[to] {
		if n != frame {
			continue
		}
		if remove {
			p.waiting[to] = append(p.waiting[to][:i:i], p.waiting[to][i+1:]...)
		}
		return p.cards[to].Take(ctx, i, deliver, remove, c)
	}
	return fmt.Errorf("frame %d of %s does not wait at the port", frame, to.peer().direction())
}

// carryLoose delivers everything that waits but what the wire lost by its number.
func (p *player) carryLoose(ctx context.Context) (bool, error) {
	moved := false
	for at := range p.cards {
		to := side(at)
		if len(p.waiting[to]) == 0 {
			continue
		}
		moved = true
		lost := p.x.lost(to.peer())
		for len(p.waiting[to]) > 0 {
			n := p.waiting[to][0]
			if err := p.take(ctx, to, n, !lost[n], true, nil); err != nil {
				return false, err
			}
		}
		p.stirred[to] = true
		if err := p.cards[to].Receive(ctx); err != nil {
			return false, err
		}
	}
	return moved, nil
}

// poll waits for the completions that are expected, moving the clock while some
// are lacking.
func (p *player) poll(ctx context.Context, i int, at side) error {
	send := 0
	if p.x.Steps[i].CQ != "send" {
		send = 1
	}
	want := p.x.completions[i]
	queue := &p.got[at][send]
	for {
		if err := p.drain(at, send); err != nil {
			return err
		}
		if len(*queue) >= len(want) {
			break
		}
		moved, err := p.passTime(ctx)
		if err != nil {
			return err
		}
		if !moved {
			return differ("%d of %d completions came%s, and no timer runs%s",
				len(*queue), len(want), p.statuses(*queue), p.lacking())
		}
		if err := p.settle(ctx, len(p.x.Steps)); err != nil {
			return err
		}
	}
	got := (*queue)[:len(want)]
	*queue = (*queue)[len(want):]
	for n := range want {
		if err := compareCompletion(&want[n], &got[n]); err != nil {
			return differ("completion %d of %d: %v", n, len(want), err)
		}
	}
	return nil
}

func (p *player) drain(at side, cq int) error {
	more, err := p.cards[at].Poll(cq == 0)
	if err != nil {
		return err
	}
	p.got[at][cq] = append(p.got[at][cq], more...)
	return nil
}

func (p *player) statuses(list []Completion) string {
	s := ""
	for _, c := range list[:min(len(list), 8)] {
		s += fmt.Sprintf(" %d:%s", c.WRID, statusName(c.Status))
	}
	if s != "" {
		s = " (" + s[1:] + ")"
	}
	return s
}

// lacking names the frames that come next in the recording.
func (p *player) lacking() string {
	s := ""
	for at := range p.cards {
		if n := p.sent[at]; !p.x.loose && n < len(p.x.sent[at]) {
			s += fmt.Sprintf("; %s lacks frame %d: %s", side(at).direction(), n, summary(p.x.sent[at][n].data))
		}
	}
	return s
}

// passTime moves both clocks to the next timer of either card; false if none runs.
func (p *player) passTime(ctx context.Context) (bool, error) {
	var least time.Duration
	runs := false
	for _, c := range p.cards {
		d, ok, err := c.NextTimer(ctx)
		if err != nil {
			return false, err
		}
		if ok && (!runs || d < least) {
			least, runs = d, true
		}
	}
	if !runs {
		return false, nil
	}
	p.elapsed += least
	if p.timers++; p.elapsed > maxVirtual || p.timers > maxTimers {
		return false, differ("after %d timers and %v of the cards' time there is no end%s", p.timers, p.elapsed, p.lacking())
	}
	for at, c := range p.cards {
		p.stirred[at] = true
		if err := c.Advance(ctx, least); err != nil {
			return false, err
		}
	}
	return true, nil
}

// letRNRPass lets time pass before a receive is posted for as long as the next
// frame that this side sent in the recording is an RNR NAK: until then there was
// no receive.
func (p *player) letRNRPass(ctx context.Context, at side) error {
	for !p.x.loose && p.sent[at] < len(p.x.sent[at]) {
		a := aeth(p.x.sent[at][p.sent[at]].data)
		if a == nil || a.Syndrome().Kind() != roce.RNRNAK {
			return nil
		}
		moved, err := p.passTime(ctx)
		if err != nil || !moved {
			return err
		}
		if err := p.settle(ctx, len(p.x.Steps)); err != nil {
			return err
		}
	}
	return nil
}

// lookAtMemory goes on in the list of memory ranges, which were read back in that
// order at moments that are not told, for as long as memory holds them.
func (p *player) lookAtMemory(step int) {
	for p.memory < len(p.x.MemoryAfter) {
		if m := &p.x.MemoryAfter[p.memory]; !m.holds(p.bytes(m)) {
			return
		}
		p.memory++
		p.foundAt = append(p.foundAt, step)
	}
}

func (p *player) bytes(m *MemoryRange) []byte {
	at, _ := sideOf(m.Node)
	return p.cards[at].Memory(m.MR)[m.Offset : m.Offset+m.Len]
}

// finish looks at what must hold at the end: no frame lacks, no completion is
// left over, memory is as it was read back.
func (p *player) finish() error {
	for at := range p.cards {
		if s := p.lacking(); s != "" {
			return differ("at the end%s", s[1:])
		}
		for cq := range p.got[at] {
			if err := p.drain(side(at), cq); err != nil {
				return err
			}
			if left := p.got[at][cq]; len(left) > 0 {
				return differ("%d completions are left over in the %s CQ of %s%s",
					len(left), [...]string{"send", "receive"}[cq], side(at), p.statuses(left))
			}
		}
	}
	if p.memory == 0 { // a scenario may have no steps
		p.lookAtMemory(len(p.x.Steps) - 1)
	}
	if p.memory < len(p.x.MemoryAfter) {
		m := &p.x.MemoryAfter[p.memory]
		return differ("%s", m.describe(p.bytes(m)))
	}
	for i := range p.x.MemoryAfter {
		m := &p.x.MemoryAfter[i]
		if p.x.writtenAfter(p.foundAt[i], m) {
			continue
		}
		if b := p.bytes(m); !m.holds(b) {
			return differ("at the end, %s", m.describe(b))
		}
	}
	return nil
}
