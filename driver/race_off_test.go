//go:build !race

package driver_test

const underRace = false
