package softcard

import "rnic/hw"

// counter is the place of a counter in block COUNTERS: its offset there / 8.
type counter int

// The counters, by the names of their registers.
const (
	cntTXFrames          = counter((hw.RegCountersTXFrames - hw.BlockCounters) / 8)
	cntTXBytes           = counter((hw.RegCountersTXBytes - hw.BlockCounters) / 8)
	cntRXFrames          = counter((hw.RegCountersRXFrames - hw.BlockCounters) / 8)
	cntRXBytes           = counter((hw.RegCountersRXBytes - hw.BlockCounters) / 8)
	cntRXDropMalformed   = counter((hw.RegCountersRXDropMalformed - hw.BlockCounters) / 8)
	cntRXDropICRC        = counter((hw.RegCountersRXDropICRC - hw.BlockCounters) / 8)
	cntRXDropAddress     = counter((hw.RegCountersRXDropAddress - hw.BlockCounters) / 8)
	cntRXDropQP          = counter((hw.RegCountersRXDropQP - hw.BlockCounters) / 8)
	cntRXDropPKey        = counter((hw.RegCountersRXDropPKey - hw.BlockCounters) / 8)
	cntRXDropStale       = counter((hw.RegCountersRXDropStale - hw.BlockCounters) / 8)
	cntLookups           = counter((hw.RegCountersLookups - hw.BlockCounters) / 8)
	cntKeyCacheHits      = counter((hw.RegCountersKeyCacheHits - hw.BlockCounters) / 8)
	cntKeyCacheMisses    = counter((hw.RegCountersKeyCacheMisses - hw.BlockCounters) / 8)
	cntKeyCacheEvictions = counter((hw.RegCountersKeyCacheEvictions - hw.BlockCounters) / 8)
	cntKeyFences         = counter((hw.RegCountersKeyFences - hw.BlockCounters) / 8)
	cntKeyFillsDiscarded = counter((hw.RegCountersKeyFillsDiscarded - hw.BlockCounters) / 8)
	cntDMAReads          = counter((hw.RegCountersDMAReads - hw.BlockCounters) / 8)
	cntDMAReadBytes      = counter((hw.RegCountersDMAReadBytes - hw.BlockCounters) / 8)
	cntDMAWrites         = counter((hw.RegCountersDMAWrites - hw.BlockCounters) / 8)
	cntDMAWriteBytes     = counter((hw.RegCountersDMAWriteBytes - hw.BlockCounters) / 8)
	cntDMAFaults         = counter((hw.RegCountersDMAFaults - hw.BlockCounters) / 8)
	cntDMAByMessage      = counter((hw.RegCountersDMAByMessage - hw.BlockCounters) / 8)
	cntWQEs              = counter((hw.RegCountersWQEs - hw.BlockCounters) / 8)
	cntGathers           = counter((hw.RegCountersGathers - hw.BlockCounters) / 8)
	cntGathersMulti      = counter((hw.RegCountersGathersMulti - hw.BlockCounters) / 8)
	cntGatherFaults      = counter((hw.RegCountersGatherFaults - hw.BlockCounters) / 8)
	cntGateHolds         = counter((hw.RegCountersGateHolds - hw.BlockCounters) / 8)
	cntACKsSent          = counter((hw.RegCountersACKsSent - hw.BlockCounters) / 8)
	cntNAKsSent          = counter((hw.RegCountersNAKsSent - hw.BlockCounters) / 8)
	cntRNRNAKsSent       = counter((hw.RegCountersRNRNAKsSent - hw.BlockCounters) / 8)
	cntACKsReceived      = counter((hw.RegCountersACKsReceived - hw.BlockCounters) / 8)
	cntNAKsReceived      = counter((hw.RegCountersNAKsReceived - hw.BlockCounters) / 8)
	cntRNRNAKsReceived   = counter((hw.RegCountersRNRNAKsReceived - hw.BlockCounters) / 8)
	cntRetransmits       = counter((hw.RegCountersRetransmits - hw.BlockCounters) / 8)
	cntTimeouts          = counter((hw.RegCountersTimeouts - hw.BlockCounters) / 8)
	cntCQEs              = counter((hw.RegCountersCQEs - hw.BlockCounters) / 8)
	cntCQOverflows       = counter((hw.RegCountersCQOverflows - hw.BlockCounters) / 8)
	cntEvents            = counter((hw.RegCountersEvents - hw.BlockCounters) / 8)
	cntEventsLost        = counter((hw.RegCountersEventsLost - hw.BlockCounters) / 8)
	cntInterrupts        = counter((hw.RegCountersInterrupts - hw.BlockCounters) / 8)
	cntCommands          = counter((hw.RegCountersCommands - hw.BlockCounters) / 8)
	cntTraceRecords      = counter((hw.RegCountersTraceRecords - hw.BlockCounters) / 8)
	cntTraceLost         = counter((hw.RegCountersTraceLost - hw.BlockCounters) / 8)
	cntCaptureFrames     = counter((hw.RegCountersCaptureFrames - hw.BlockCounters) / 8)
	cntCaptureLost       = counter((hw.RegCountersCaptureLost - hw.BlockCounters) / 8)
	cntSleeps            = counter((hw.RegCountersSleeps - hw.BlockCounters) / 8)
	cntKicks             = counter((hw.RegCountersKicks - hw.BlockCounters) / 8)
	cntWireFull          = counter((hw.RegCountersWireFull - hw.BlockCounters) / 8)
	numCounters          = cntWireFull + 1
)

// counters are counted by Step without an atomic, and published when it ends.
type counters [numCounters]uint64
