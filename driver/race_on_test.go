//go:build race

package driver_test

// underRace: campaigns take a tenth of their counts; without the detector they are whole.
const underRace = true
