package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"rnic/driver"
)

// Work requests of a turn, 16 in flight for both.
const (
	rxeWrites  = 1000
	softWrites = 8 * rxeWrites
)

// inGuest measures both in turn, and prints the best of each.
func inGuest(ctx context.Context, turns int, out io.Writer) error {
	if err := rxeDevice(); err != nil {
		return fmt.Errorf("soft-RoCE's device: %w", err)
	}
	x, y, err := newPair(ctx, ends{memory: 2 << 20, entries: 64, qps: 1, init: driver.QPInit{MaxSendWR: 16, MaxSendSGE: 1}})
	if err != nil {
		return err
	}
	var best perGuest
	for range turns {
		theirs, err := perftest(ctx)
		if err != nil {
			return errors.Join(err, closePair(x, y))
		}
		t, err := x.writes(y, softWrites)
		if err != nil {
			return errors.Join(err, closePair(x, y))
		}
		best.RXE = max(best.RXE, theirs)
		best.Soft = max(best.Soft, float64(softWrites)*writeSize/float64(t))
	}
	return errors.Join(closePair(x, y), json.NewEncoder(out).Encode(best))
}

// rxeDevice makes rxe0 on dummy0, whose packets rxe turns round by itself, with room for a path MTU of 4096.
func rxeDevice() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	for _, step := range []struct {
		name    string
		request uint
		set     func(*unix.Ifreq) error
	}{
		{"MTU", unix.SIOCSIFMTU, func(r *unix.Ifreq) error { r.SetUint32(9000); return nil }},
		{"address", unix.SIOCSIFADDR, func(r *unix.Ifreq) error { return r.SetInet4Addr(net.IPv4(198, 18, 0, 1).To4()) }},
		{"up", unix.SIOCSIFFLAGS, func(r *unix.Ifreq) error { r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING); return nil }},
	} {
		r, err := unix.NewIfreq("dummy0")
		if err == nil {
			err = step.set(r)
		}
		if err == nil {
			err = unix.IoctlIfreq(s, step.request, r)
		}
		if err != nil {
			return fmt.Errorf("dummy0, %s: %w", step.name, err)
		}
	}
	return newLink("rxe0", "dummy0", "rxe")
}

// newLink is `rdma link add NAME type KIND netdev DEVICE` (linux/rdma_netlink.h).
func newLink(name, device, kind string) error {
	const (
		netlinkRDMA     = 20
		nldevNewlink    = 5<<10 + 3 // RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_NEWLINK)
		attrDevName     = 2
		attrNetdevName  = 51
		attrLinkType    = 65
		headerAndStatus = 16 + 4
	)
	s, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, netlinkRDMA)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	ne := binary.NativeEndian
	m := make([]byte, 16)
	for _, a := range []struct {
		kind uint16
		text string
	}{{attrDevName, name}, {attrNetdevName, device}, {attrLinkType, kind}} {
		m = ne.AppendUint16(m, uint16(4+len(a.text)+1))
		m = ne.AppendUint16(m, a.kind)
		m = append(append(m, a.text...), 0)
		m = append(m, make([]byte, -len(m)&3)...)
	}
	ne.PutUint32(m, uint32(len(m)))
	ne.PutUint16(m[4:], nldevNewlink)
	ne.PutUint16(m[6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	if err := unix.Sendto(s, m, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(s, answer, 0)
	switch {
	case err != nil:
		return err
	case n < headerAndStatus || ne.Uint16(answer[4:]) != unix.NLMSG_ERROR:
		return fmt.Errorf("netlink answered % x", answer[:n])
	}
	if status := int32(ne.Uint32(answer[16:])); status != 0 {
		return fmt.Errorf("add %s of type %s on %s: %w", name, kind, device, unix.Errno(-status))
	}
	return nil
}

// perftest is ib_write_bw at both ends, over rxe's loopback: GB/s.
func perftest(ctx context.Context) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	args := []string{"-d", "rxe0", "-x", "1", "-m", "4096", "-s", strconv.Itoa(writeSize), "-n", strconv.Itoa(rxeWrites), "-t", "16", "-F", "--report_gbits"}
	var served, said bytes.Buffer
	server := exec.CommandContext(ctx, "/usr/bin/ib_write_bw", args...)
	server.Stdout, server.Stderr = &served, &served
	if err := server.Start(); err != nil {
		return 0, err
	}
	var err error
	for { // until the server listens
		said.Reset()
		client := exec.CommandContext(ctx, "/usr/bin/ib_write_bw", append(args, "127.0.0.1")...)
		client.Stdout, client.Stderr = &said, &said
		if err = client.Run(); err == nil || ctx.Err() != nil || !strings.Contains(said.String(), "Couldn't connect") {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if err != nil {
		_ = server.Process.Kill()
	}
	if err = errors.Join(err, server.Wait()); err != nil {
		return 0, fmt.Errorf("ib_write_bw: %w\n%s\n%s", err, said.Bytes(), served.Bytes())
	}
	return bandwidth(said.String())
}

// bandwidth reads the line of figures that perftest prints: bytes, iterations, peak, average in Gb/s, messages. It gives GB/s.
func bandwidth(text string) (float64, error) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 5 && f[0] == strconv.Itoa(writeSize) && f[1] == strconv.Itoa(rxeWrites) {
			v, err := strconv.ParseFloat(f[3], 64)
			return v / 8, err
		}
	}
	return 0, fmt.Errorf("ib_write_bw printed no line of figures:\n%s", text)
}
