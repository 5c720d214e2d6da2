package softcard

import "rnic/hw"

// dataCapabilities are what the data path adds.
const dataCapabilities = hw.Capability(0)

type qpState struct{}

func (c *Card) initQPs()  {}
func (c *Card) resetQPs() {}

func (c *Card) createQP(*command) result  { return result{status: hw.CommandStatusUnsupported} }
func (c *Card) modifyQP(*command) result  { return result{status: hw.CommandStatusUnsupported} }
func (c *Card) queryQP(*command) result   { return result{status: hw.CommandStatusUnsupported} }
func (c *Card) destroyQP(*command) result { return result{status: hw.CommandStatusUnsupported} }
func (c *Card) setRate(*command) result   { return result{status: hw.CommandStatusUnsupported} }
func (c *Card) queryRate(*command) result { return result{status: hw.CommandStatusUnsupported} }

// eachQPN calls f with the number of each QP, ascending.
func (c *Card) eachQPN(func(uint32)) {}

// cqFailed brings the QPs of a CQ that has overflowed to ERR.
func (c *Card) cqFailed(*cq) {}

// receive takes in frames that have arrived, at most budget.
func (c *Card) receive(budget int) (worked bool) {
	for ; budget > 0; budget-- {
		f := c.rxNext()
		if f == nil {
			break
		}
		worked = true
		c.count[cntRXDropQP]++
		if f.answers != nil {
			c.answerReturn(f.answers)
		}
		c.rxDone(f, 0, true)
	}
	return worked
}

func (c *Card) runTimers() (worked bool)     { return false }
func (c *Card) nextTimer() int64             { return noTimer }
func (c *Card) pollDoorbells() (worked bool) { return false }
func (c *Card) doorbellsPending() bool       { return false }
func (c *Card) transmitPending() bool        { return false }

func (c *Card) transmit(budget int) (worked, blocked bool) { return false, false }
