# The targets that people and CI use. Everything is done by the go command; gcc is
# needed by the race detector only.

GO ?= go
FUZZTIME ?= 5m

.PHONY: build demo test test-full lint rtl syn bench fuzz mutants generate clean

## build: bin/rnicctl and bin/rnicsim
build:
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/ ./cmd/...

## demo: the chapter's walk and five operations between two soft cards; leaves demo.pcapng
demo: build
	bin/rnicctl demo --pcap demo.pcapng

## test: the gate, every suite at gate scale, one line a suite
test:
	$(GO) run ./test/gate $(SUITES)

## test-full: the same suites at the scale of the acceptance lists
test-full:
	RNIC_FULL=1 $(GO) run ./test/gate $(SUITES)

## lint: vet for both architectures, gofmt, staticcheck, the rules of the house
lint:
	$(GO) run ./test/gate vet "vet arm64" gofmt tidy lint rules

## rtl: lint, build and simulate the gather engine in gateware; installs what it needs from Debian
rtl:
	$(GO) run ./test/rtl

## syn: count the engine for UltraScale+, place and route it on an ECP5 to an image; installs yosys, brings the rest from Debian
syn:
	$(GO) run ./test/syn

## bench: the figures of docs/performance.md, against floors and aims; wants gcc
bench:
	$(GO) run ./test/bench

## fuzz: every fuzz target for FUZZTIME, as many side by side as there are processors
fuzz:
	$(GO) run ./test/fuzz -time $(FUZZTIME)

## mutants: for each rule a seeded defect that its test catches
mutants:
	$(GO) run ./test/mutants

## generate: Go, SystemVerilog and documentation from hw/card.yaml
generate:
	$(GO) generate ./...

clean:
	rm -rf bin .cache demo.pcapng
