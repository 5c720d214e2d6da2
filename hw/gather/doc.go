// Package gather is the gather path's walk: it assembles the payload of one
// packet at a time from a list of data segments, translating each segment it
// visits, and keeps the cursor from which the next packet resumes. Scatter is
// the same walk in the other direction.
//
// The package is pure. Memory and the key table come in as small interfaces,
// nothing here does I/O, starts a goroutine or allocates in the steady state,
// and the byte mover does not know which opcode it serves (rule G5). The card
// and the driver's mirror of it (rule G21) run this same code; package oracle
// below it is a second, independent statement of the rules for tests.
//
// Rule numbers are those of the gather path's rules, G1 to G22; each is named where
// it is kept:
//
//   - G1, G2, G4, G13: [Op] and [AckReq]
//   - G3: [InlinePacket]
//   - G5, G7, G9, G12, G17: [Packet]
//   - G6, G8: [Segment], [Cursor] and [Start]
//   - G10: [Check]
//   - G11: [Cache] and [Keys]
//   - G22: [Tracer]
package gather
