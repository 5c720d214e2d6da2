package cli

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync/atomic"

	"rnic/driver"
)

// bench is the cards of a command that sends something: two on a wire, or one that talks to itself.
type bench struct {
	devs [2]*driver.Device
}

const softScheme = "soft:"

var wires atomic.Uint32

// softPair names two soft cards on a wire that nobody else in this process uses.
func softPair(name string) [2]string {
	name = fmt.Sprintf("%s-%d", name, wires.Add(1))
	return [2]string{softScheme + name + "-a?wire=" + name, softScheme + name + "-b?wire=" + name}
}

// softPeer names a second soft card on the wire of the one at addr, "" where addr is another kind of card's.
func softPeer(addr string) string {
	rest, ok := strings.CutPrefix(addr, softScheme)
	name, query, _ := strings.Cut(rest, "?")
	q, err := url.ParseQuery(query)
	if !ok || err != nil {
		return "" // opening it says what is wrong with it
	}
	q.Del("mac")
	q.Del("ip")
	if name != "" {
		name += "-peer"
	}
	if query = q.Encode(); query != "" {
		query = "?" + query
	}
	return softScheme + name + query
}

// bench opens the cards: the one that was named, and the peer that was; a soft card gets a peer on its wire where
// none was. Its close closes them.
func (a *app) bench(ctx context.Context, name, peer string, o ...driver.Option) (*bench, error) {
	soft := softPair(name)
	addr, err := a.useAddress(ctx, soft[0])
	if err != nil {
		return nil, err
	}
	switch {
	case peer != "":
	case addr == soft[0]:
		peer = soft[1]
	default:
		peer = softPeer(addr)
	}
	b := &bench{}
	if b.devs[0], err = a.open(ctx, addr, o...); err != nil {
		return nil, err
	}
	if b.devs[1] = b.devs[0]; peer != "" {
		if b.devs[1], err = a.open(ctx, peer, o...); err != nil {
			return nil, errors.Join(err, b.devs[0].Close())
		}
	}
	return b, nil
}

func (b *bench) lone() bool { return b.devs[0] == b.devs[1] }

func (b *bench) close() error {
	err := b.devs[0].Close()
	if !b.lone() {
		err = errors.Join(err, b.devs[1].Close())
	}
	return err
}
