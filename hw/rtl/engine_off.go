//go:build !rtl

package rtl

// Engine is one engine; there is none without the build tag rtl.
type Engine struct{}

// Open says that the engine is not built in.
func Open(width int, seed uint64) (*Engine, error) { return nil, ErrNotBuilt }
