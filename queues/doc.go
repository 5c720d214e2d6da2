// Package queues keeps the rings that a driver and the card share in host
// memory: it builds work requests in them, reads completions, events and
// replies out of them, and rings the doorbells.
//
// A ring is given as bytes that both sides see, a doorbell as the address of
// its word in the card's doorbell page. Nothing here allocates once a ring is
// made, nothing locks, and nothing waits: a queue belongs to whoever holds the
// lock that its owner has for it. Sizes, work request IDs, states and policy
// are the owner's.
//
// Order (docs/card.md, and rdma-core's util/udma_barrier.h for the names):
// descriptors are stored, then mmio.ToDevice, then the doorbell. An entry that
// the card writes is owned by the phase bit of its last word: it is loaded,
// then mmio.FromDevice, then the body.
package queues
