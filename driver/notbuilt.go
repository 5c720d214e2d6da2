package driver

import (
	"context"
	"fmt"
)

// SRQ is a shared receive queue.
type SRQ struct{ _ struct{} }

// AH is an address handle, the way to a UD peer.
type AH struct{ _ struct{} }

// MW is a type 2 memory window.
type MW struct{ _ struct{} }

// SRQInit describes a shared receive queue.
type SRQInit struct{ MaxWR, MaxSGE, Limit int }

// CreateSRQ makes a shared receive queue. Not built yet: ErrNotSupported.
func (p *PD) CreateSRQ(ctx context.Context, i SRQInit) (*SRQ, error) {
	return nil, p.d.fail("create SRQ", "", fmt.Errorf("shared receive queues: %w", ErrNotSupported))
}

// CreateAH makes an address handle. Not built yet: ErrNotSupported.
func (p *PD) CreateAH(ctx context.Context, a AddressVector) (*AH, error) {
	return nil, p.d.fail("create AH", "", fmt.Errorf("UD: %w", ErrNotSupported))
}

// AllocMW makes a memory window. Not built yet: ErrNotSupported.
func (p *PD) AllocMW(ctx context.Context) (*MW, error) {
	return nil, p.d.fail("allocate MW", "", fmt.Errorf("memory windows: %w", ErrNotSupported))
}
