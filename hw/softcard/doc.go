// Package softcard is a whole RDMA card in software, offered as a PCI function:
// configuration space, registers, doorbell pages and key table in shared
// memory, MSI-X, and DMA through the IOVAs that its client mapped. It knows the
// contract of package hw and the vfio-user server, and nothing of the driver.
//
// A [Card] is a passive machine: [Card.Step] does a bounded piece of work and
// returns. A [Runner] steps cards; a [Wire] joins their ports. The files carry
// the names of the card's stages:
//
//	doorbell ► schedule ► wqe ► gate ► gather ► txbuild ► port
//	port ► rxparse ► responder | requester ► scatter ► completion ► event
//
// Everything in a Card belongs to whoever calls Step, but for the register file
// (regs), which the client's connection reads and writes at any time, and the
// port's queue of held frames. A register access does no DMA and waits for no
// Step: what it asks for is posted, and the next Step does it.
package softcard
