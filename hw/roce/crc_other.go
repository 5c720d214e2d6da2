//go:build !amd64

package roce

const folds = false

func fold(uint32, []byte) (lo, hi uint64) { panic("roce: no fold on this processor") }
