package cli

import "github.com/spf13/cobra"

// commands are rnicctl's, in the order of its help.
func (a *app) commands() []*cobra.Command {
	return []*cobra.Command{
		a.list(), a.info(), a.regs(), a.qp(), a.keys(), a.stats(), a.trace(), a.capture(),
		a.walk(), a.demo(), a.selftest(), a.conformance(), a.verify(),
		a.bind(), a.unbind(), a.reset(), a.doctor(), a.report(), a.bitstream(),
		a.version(), a.completion(), a.man(),
	}
}
