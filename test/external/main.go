// A program outside the module, which sees of it what any user sees: it opens the card whose
// address is given, or a soft card, and reads what it is.
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"rnic/hw"
	_ "rnic/hw/softcard/soft"
	"rnic/vfio"
)

func main() {
	log.SetFlags(0)
	addr := "soft:"
	if len(os.Args) > 1 {
		addr = os.Args[1]
	}
	if err := identify(addr); err != nil {
		log.Fatal(err)
	}
}

func identify(addr string) error {
	d, err := vfio.Open(context.Background(), addr)
	if err != nil {
		return err
	}
	defer d.Close()
	bar, err := vfio.NewBAR(d, hw.BARCtrl)
	if err != nil {
		return err
	}
	defer bar.Release()
	magic := bar.Load32(hw.RegIdentMagic)
	version := hw.IdentVersion(bar.Load32(hw.RegIdentVersion))
	capabilities := hw.Capability(bar.Load64(hw.RegIdentCapabilities))
	if err := bar.Err(); err != nil {
		return err
	}
	if magic != hw.ContractMagic || version.Major() != hw.ContractMajor {
		return fmt.Errorf("%s: magic %#x, contract %d.%d; this program knows contract %d", addr, magic, version.Major(), version.Minor(), hw.ContractMajor)
	}
	fmt.Printf("%s: contract %d.%d, %v\n", d.Addr(), version.Major(), version.Minor(), capabilities)
	return nil
}
