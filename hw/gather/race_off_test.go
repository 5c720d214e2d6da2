//go:build !race

package gather_test

const underRace = false
