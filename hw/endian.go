//go:build amd64 || arm64

package hw

// littleEndian64 exists only where the host stores integers as the card does, low byte first, and
// aligns 64-bit integers to 8 bytes: on the two architectures that the project supports.
const littleEndian64 = true
