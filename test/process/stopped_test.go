package process

import (
	"syscall"
	"testing"
)

// A program that is stopped in mid-traffic harms no other: others' traffic on
// the same wire goes on, and so does the stopped program's own once it runs
// again. Its card serves its memory meanwhile.
func TestProcesses_StoppedProgramHarmsNoOther(t *testing.T) {
	for _, c := range []struct {
		name    string
		clients bool // the sender is stopped, else who receives
	}{{"the sender", true}, {"the receiver", false}} {
		t.Run(c.name, func(t *testing.T) {
			w := simulate(t, "a", "b", "c", "d")
			server, other := w.listen(t, "b"), w.listen(t, "d")
			client := w.connect(t, "a", "b")
			neighbour := w.connect(t, "c", "d")
			client.progress(t, 20)
			neighbour.progress(t, 20)
			stopped := server
			if c.clients {
				stopped = client
			}
			stopped.signal(t, syscall.SIGSTOP)
			neighbour.drop()
			neighbour.progress(t, 200)
			client.drop()
			stopped.signal(t, syscall.SIGCONT)
			client.progress(t, 20)
			neighbour.drop()
			neighbour.progress(t, 20)
			for _, p := range []*process{server, other, client, neighbour} {
				p.kill()
			}
		})
	}
}

// A stopped program whose card reaches its memory by messages answers none of
// them. That fails what is under way with it, and nothing else.
func TestProcesses_StoppedProgramThatServesItsMemory(t *testing.T) {
	w := simulate(t, "a", "b", "c", "d")
	server, other := w.listen(t, "b", "-caller-memory"), w.listen(t, "d")
	client := w.connect(t, "a", "b")
	neighbour := w.connect(t, "c", "d")
	client.progress(t, 20)
	neighbour.progress(t, 20)
	server.signal(t, syscall.SIGSTOP)
	neighbour.drop()
	neighbour.progress(t, 100)
	var last said
	for last = range client.lines { // its peer does not answer, and it learns so
	}
	if last.Event != "error" || last.Gone {
		t.Errorf("the stopped program's peer: %+v, want the error of a work request", last)
	}
	neighbour.drop()
	neighbour.progress(t, 100)
	// Its card is free for the next program once it is gone.
	server.signal(t, syscall.SIGCONT)
	server.kill()
	client.kill()
	w.listen(t, "b")
	again := w.connect(t, "a", "b", "-count", "20")
	again.await(t, "done")
	other.drop()
	neighbour.drop()
	neighbour.progress(t, 20)
}
