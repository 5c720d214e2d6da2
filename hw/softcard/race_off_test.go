//go:build !race

package softcard

const underRace = false
