// The ECP5's top under simulation, driven by lines of standard input:
//
//   w ADDRESS DATA   writes a word
//   r ADDRESS        prints "value DATA"
//   c N              runs N cycles
//
// all in hexadecimal, addresses in words. A frame that has left is printed as "frame BYTES". The MAC is ready in so many of 100
// cycles as the first argument says; the second seeds that, and what is not reset.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "Vecp5.h"
#include "verilated.h"

double sc_time_stamp() { return 0; }

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  const unsigned ready = atoi(argv[1]), seed = atoi(argv[2]);
  VerilatedContext context;
  context.randReset(2);
  context.randSeed(seed ? seed : 1);
  Vecp5 m(&context);
  std::mt19937 rng(seed);
  std::vector<uint8_t> frame;

  auto cycle = [&] {
    m.frame_ready = rng() % 100 < ready;
    m.eval();
    if (m.rst_n && m.frame_valid && m.frame_ready) {
      const uint8_t *data = reinterpret_cast<const uint8_t *>(&m.frame_data[0]);
      frame.insert(frame.end(), data, data + m.frame_bytes);
      if (m.frame_last) {
        printf("frame ");
        for (uint8_t b : frame) printf("%02x", b);
        printf("\n");
        frame.clear();
      }
    }
    m.clk = 1;
    m.eval();
    m.clk = 0;
    m.eval();
  };

  m.clk = m.rst_n = m.bus_write = 0;
  for (int i = 0; i < 8; i++) cycle();
  m.rst_n = 1;
  for (int i = 0; i < 8; i++) cycle();

  char op;
  unsigned a, d;
  while (scanf(" %c %x", &op, &a) == 2) {
    switch (op) {
      case 'w':
        if (scanf("%x", &d) != 1) return 2;
        m.bus_address = a;
        m.bus_data = d;
        m.bus_write = 1;
        cycle();
        m.bus_write = 0;
        break;
      case 'r':
        m.bus_address = a;
        for (int i = 0; i < 3; i++) cycle();
        printf("value %x\n", m.bus_value);
        fflush(stdout);
        break;
      case 'c':
        for (unsigned i = 0; i < a; i++) cycle();
        break;
      default:
        return 2;
    }
  }
  return 0;
}
