package queues

import "rnic/hw/mmio"

// Domain is a doorbell domain: what has to be done after a doorbell so that a
// sleeping card sees it (sleep and kick, docs/card.md). Queues share it.
type Domain struct {
	// Sleep is the domain page's DOMAIN_SLEEP word, which the card stores 1 to
	// before it sleeps. Nil: the card never sleeps.
	Sleep *uint32
	// Kick wakes the card. It must not block.
	Kick func()
}

// Wake kicks the card if it sleeps. The doorbell was stored before; without
// the full barrier its store could still be on its way when the flag is
// loaded, while the card, which sets its flag and then looks at the doorbells,
// has looked too early: both would wait.
func (d *Domain) Wake() {
	if d.Sleep == nil {
		return
	}
	mmio.StoreLoad()
	if mmio.Load32(d.Sleep) != 0 {
		d.Kick()
	}
}

// ring stores v to a doorbell word, descriptors first, and wakes the card.
func (d *Domain) ring(word *uint32, v uint32) {
	if d.Sleep == nil {
		mmio.ToDevice()
		mmio.Store32(word, v)
		return
	}
	if mmio.Doorbell(word, v, d.Sleep) != 0 {
		d.Kick()
	}
}

// phase is the owner bit of the entry with absolute number n in a ring of
// 2^log entries: 1 in the first turn, then 0, 1, …
func phase(n uint32, log uint8) uint32 { return ^(n >> (log & 31)) & 1 }
