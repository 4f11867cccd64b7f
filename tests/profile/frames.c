/* Functions with frames of all kinds, compiled several times with other options: KIND is the family's name. Each calls the
 * next of a chain. */
#include "frames.h"

#include <alloca.h>

#define JOIN2(a, b) a##_##b
#define JOIN(a, b) JOIN2(a, b)
#define NAME(name) JOIN(KIND, name)
#define FRAME __attribute__((noinline)) static unsigned

/* What a chain returns is used after each call, so that no call is a jump. */
FRAME NAME(plain)(struct chain *c) { return chain_go_on(c) + 1; }

FRAME NAME(array)(struct chain *c) {
  volatile unsigned char bytes[200];
  bytes[c->at % 200] = 1;
  return chain_go_on(c) + bytes[c->at % 200];
}

FRAME NAME(huge)(struct chain *c) {
  volatile unsigned char bytes[150000];
  bytes[c->at % 4096] = 1;
  return chain_go_on(c) + bytes[c->at % 4096];
}

FRAME NAME(variable)(struct chain *c) {
  volatile unsigned char bytes[c->at % 64 + 16];
  bytes[c->at % 16] = 1;
  return chain_go_on(c) + bytes[c->at % 16];
}

FRAME NAME(alloca)(struct chain *c) {
  volatile unsigned char *bytes = alloca(c->at % 512 + 1);
  bytes[0] = 1;
  return chain_go_on(c) + bytes[0];
}

/* Aligned further than the stack is, and with alloca: the CFA is an expression. */
FRAME NAME(aligned)(struct chain *c) {
  _Alignas(64) volatile unsigned char bytes[64];
  volatile unsigned char *more = alloca(c->at % 512 + 1);
  bytes[0] = 1;
  more[0] = 1;
  return chain_go_on(c) + bytes[0] * more[0];
}

FRAME NAME(registers)(struct chain *c) {
  unsigned a = c->at, b = a * 3, d = a * 5, e = a * 7, f = a * 11, g = a * 13, h = a * 17;
  __asm__ volatile("" : "+r"(a), "+r"(b), "+r"(d), "+r"(e), "+r"(f), "+r"(g), "+r"(h));
  unsigned n = chain_go_on(c);
  __asm__ volatile("" : "+r"(a), "+r"(b), "+r"(d), "+r"(e), "+r"(f), "+r"(g), "+r"(h));
  return n + ((a ^ b ^ d ^ e ^ f ^ g ^ h) & 1);
}

FRAME NAME(many)(struct chain *c, long a, long b, long d, long e, long f, long g, long h, long i, long j) {
  volatile long sum = a + b + d + e + f + g + h + i + j;
  return chain_go_on(c) + (unsigned)(sum & 1);
}
FRAME NAME(arguments)(struct chain *c) { return NAME(many)(c, 1, 2, 3, 4, 5, 6, 7, 8, (long)c->at) + 1; }

/* Further from its caller's than a rule of the cache can say. */
FRAME NAME(wide)(struct chain *c) {
  volatile unsigned char bytes[3 << 20];
  bytes[c->at % 4096] = 1;
  return chain_go_on(c) + bytes[c->at % 4096];
}
chain_link *NAME(wide_frame)(void) { return NAME(wide); }

static chain_link *const links[] = {NAME(plain), NAME(array), NAME(huge), NAME(variable), NAME(alloca), NAME(registers), NAME(arguments), NAME(aligned)};
chain_link *NAME(frame)(unsigned i) { return links[i % (sizeof links / sizeof *links)]; }
