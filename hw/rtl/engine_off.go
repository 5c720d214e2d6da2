//go:build !rtl

package rtl

// Built says whether there is an engine in this program.
const Built = false

// Widths are those of the engines in this program: none.
func Widths() []int { return nil }

// Open says that the engine is not built in.
func Open(width int, seed uint64) (Simulator, error) { return nil, ErrNotBuilt }
