module rnic

go 1.26

require (
	github.com/google/go-cmp v0.7.0
	github.com/gopacket/gopacket v1.7.7
	go.yaml.in/yaml/v3 v3.0.6
	golang.org/x/sys v0.45.0
)

require golang.org/x/net v0.55.0 // indirect
