//go:build race

package softcard

// underRace: campaigns take a tenth of the gate's counts; without the detector they are whole.
const underRace = true
