package main

import (
	"strings"
	"unicode"
)

// initialisms are the words that Go writes in one case. Names are the field's: the
// InfiniBand specification's and the PCI documents'.
var initialisms = map[string]bool{}

func init() {
	for w := range strings.FieldsSeq(`
		ABI ACK AETH AH API AV BAR BDF BTH CAS CE CM CPU CQ CQE CQN CQPN CRC DETH DGID DLID DMA DMAC DQPN
		EQ EQE EQN ERR FLR GID GRH HW IB ICRC ID IO IOVA IP IPV4 IPV6 IRQ LEN MAC MR MSI MSIX MSN MTU MW NAK
		OUI PA PCI PCP PD PDN PF PSN QKEY PKEY LKEY RKEY QP QPN RAM RC RD RDMA RETH RNR RO ROCE RQ RQN RTR RTS
		RX SGE SGID SGL SL SMAC SQ SQE SQN SQD SRQ SRQN TC TCP TTL TX UC UD UDP URL UUID VA VF VID VLAN WC WQ WQE
		WR WRID XRC CI PI SE TVER LSB MSB OK CNP RTL FPGA PBA`) {
		initialisms[w] = true
	}
	delete(initialisms, "ERR") // QPStateErr, as Go writes err
	delete(initialisms, "LEN")
}

// irregular words keep the spelling that the specification gives them.
var irregular = map[string]string{
	"QKEY": "QKey", "PKEY": "PKey", "LKEY": "LKey", "RKEY": "RKey", "IPV4": "IPv4", "IPV6": "IPv6", "MSIX": "MSIX", "ROCE": "RoCE", "TVER": "TVer",
}

// camel turns upper or lower snake case into a Go name: RDMA_WRITE_IMM and
// rdma_write_imm become RDMAWriteImm, IOVA stays, MW2 stays.
func camel(name string) string {
	var b strings.Builder
	for w := range strings.SplitSeq(strings.ToUpper(name), "_") {
		base := strings.TrimRightFunc(w, unicode.IsDigit)
		switch {
		case irregular[w] != "":
			b.WriteString(irregular[w])
		case initialisms[w], initialisms[base]:
			b.WriteString(w)
		case initialisms[strings.TrimSuffix(w, "S")]: // a plural: QPS, WQES
			b.WriteString(w[:len(w)-1] + "s")
		case w != "":
			b.WriteString(w[:1] + strings.ToLower(w[1:]))
		}
	}
	return b.String()
}

// snake turns a structure's or enum's name into SystemVerilog's lower case:
// RDMAWrite becomes rdma_write, QPContext qp_context, IPv4Header ipv4_header.
func snake(name string) string {
	var b strings.Builder
	r := []rune(name)
	for i, c := range r {
		startsWord := i > 0 && unicode.IsUpper(c) &&
			(!unicode.IsUpper(r[i-1]) || i+1 < len(r) && unicode.IsLower(r[i+1]))
		if startsWord {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(c))
	}
	return b.String()
}

// sentence makes a documentation text one line.
func sentence(doc string) string { return strings.Join(strings.Fields(doc), " ") }

// wrap breaks a text into lines of at most width bytes, at spaces.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for w := range strings.FieldsSeq(text) {
		if line != "" && len(line)+1+len(w) > width {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += w
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}
