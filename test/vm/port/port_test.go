package port

import (
	"bytes"
	"errors"
	"io"
	"testing"
)

func TestFramesArriveAsTheyWereSent(t *testing.T) {
	big := bytes.Repeat([]byte("\x00RNICVM\n"), MaxData/4) // twice what a frame holds, and full of what begins one
	var b bytes.Buffer
	b.WriteString("firmware \x00RNICV\x00 leaves bytes")
	for _, data := range [][]byte{[]byte("hello\n"), nil, big} {
		if err := Write(&b, Stdout, data); err != nil {
			t.Fatal(err)
		}
	}
	if err := Write(&b, Exit, []byte("0")); err != nil {
		t.Fatal(err)
	}
	r := NewReader(&b)
	var out []byte
	for {
		k, data, err := r.Read()
		if err != nil {
			t.Fatal(err)
		}
		if k == Exit {
			if string(data) != "0" {
				t.Errorf("exit %q", data)
			}
			break
		}
		if k != Stdout || len(data) > MaxData {
			t.Errorf("frame %q of %d bytes", k, len(data))
		}
		out = append(out, data...)
	}
	if want := append([]byte("hello\n"), big...); !bytes.Equal(out, want) {
		t.Errorf("%d bytes arrived, not the %d that were sent", len(out), len(want))
	}
	if _, _, err := r.Read(); err != io.EOF {
		t.Errorf("after the last frame: %v", err)
	}
}

func TestDamagedFramesAreErrors(t *testing.T) {
	var b bytes.Buffer
	for range 2 {
		if err := Write(&b, Stdout, []byte("payload")); err != nil {
			t.Fatal(err)
		}
	}
	whole := b.Bytes()
	for i := len(whole) / 2; i < len(whole); i++ { // each bit of the second frame
		for bit := range 8 {
			damaged := bytes.Clone(whole)
			damaged[i] ^= 1 << bit
			r := NewReader(bytes.NewReader(damaged))
			if _, _, err := r.Read(); err != nil {
				t.Fatalf("first frame: %v", err)
			}
			if _, _, err := r.Read(); !errors.Is(err, ErrFrame) {
				t.Errorf("byte %d, bit %d turned: %v", i, bit, err)
			}
		}
	}
	for n := len(whole)/2 + 1; n < len(whole); n++ {
		r := NewReader(bytes.NewReader(whole[:n]))
		_, _, _ = r.Read()
		if _, _, err := r.Read(); err == nil || err == io.EOF {
			t.Errorf("cut at %d: %v", n, err)
		}
	}
}

func FuzzRead(f *testing.F) {
	var b bytes.Buffer
	_ = Write(&b, Log, []byte("text"))
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, in []byte) {
		r := NewReader(bytes.NewReader(in))
		for {
			k, data, err := r.Read()
			if err != nil {
				return
			}
			var again bytes.Buffer
			if err := Write(&again, k, data); err != nil || !bytes.Contains(in, again.Bytes()) {
				t.Fatalf("read a frame %q that is not in the input (%v)", again.Bytes(), err)
			}
		}
	})
}
