//go:build race

package gather_test

// underRace: the walk has one goroutine, and the detector makes the oracle ten times as slow. The
// campaigns take a tenth of their walks; without the detector they are whole.
const underRace = true
