// Package conformance replays recorded RoCEv2 scenarios on two cards and compares
// what they do with the recording: every frame of each direction, every
// completion, QP state and memory range.
//
// A scenario is a directory with scenario.json, capture.pcap and, where the wire
// lost or changed frames, delivered.pcap (test/golden/README.md). How a replay
// runs, and which differences from the recording are ruled in advance, is
// test/golden/REPLAY.md; the rulings stand as data in rulings.go.
package conformance
