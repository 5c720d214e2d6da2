package vm

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"sync"
)

// monitor is QEMU's monitor protocol (docs/interop/qmp-spec in QEMU's documentation).
type monitor struct {
	conn net.Conn
	mu   sync.Mutex // one command at a time
	in   *json.Decoder
}

// reply is any message of QEMU.
type reply struct {
	QMP    json.RawMessage `json:"QMP"` // the greeting
	Event  string          `json:"event"`
	Return json.RawMessage `json:"return"`
	Error  *struct {
		Class string `json:"class"`
		Desc  string `json:"desc"`
	} `json:"error"`
}

// newMonitor takes the greeting and leaves the negotiation.
func newMonitor(ctx context.Context, conn net.Conn) (*monitor, error) {
	m := &monitor{conn: conn, in: json.NewDecoder(conn)}
	defer m.bound(ctx)()
	var greeting reply
	if err := m.in.Decode(&greeting); err != nil || greeting.QMP == nil {
		return nil, fmt.Errorf("QEMU's monitor does not greet: %w", err)
	}
	_, err := m.run(ctx, "qmp_capabilities", nil)
	return m, err
}

// bound ends reads and writes with the context.
func (m *monitor) bound(ctx context.Context) (release func()) {
	stop := context.AfterFunc(ctx, func() { _ = m.conn.Close() })
	return func() { stop() }
}

func (m *monitor) run(ctx context.Context, command string, arguments any) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer m.bound(ctx)()
	call := map[string]any{"execute": command}
	if arguments != nil {
		call["arguments"] = arguments
	}
	if err := json.NewEncoder(m.conn).Encode(call); err != nil {
		return nil, fmt.Errorf("QMP %s: %w", command, err)
	}
	for {
		var r reply
		if err := m.in.Decode(&r); err != nil {
			return nil, fmt.Errorf("QMP %s: %w", command, err)
		}
		switch {
		case r.Error != nil:
			return nil, fmt.Errorf("QMP %s: %s: %s", command, r.Error.Class, r.Error.Desc)
		case r.Return != nil:
			return r.Return, nil
		}
	}
}

func (m *monitor) close() { _ = m.conn.Close() }
