//go:build rtl

package softcard

import "rnic/hw"

// With the tag, every test of the card runs on the RTL engine.
func init() { testEngine = hw.EngineRTL }
