#ifndef HAKMEM_TESTS_FRAMES_H
#define HAKMEM_TESTS_FRAMES_H

struct chain;
typedef unsigned chain_link(struct chain *);

/* Functions that call one another, and at the end `last`. */
struct chain {
  chain_link *const *links;
  unsigned count, at;
  void (*last)(void *);
  void *argument;
};

/* Calls the next one. Always inlined: it has no frame. */
__attribute__((always_inline)) static inline unsigned chain_go_on(struct chain *c) {
  if (c->at < c->count) return c->links[c->at++](c);
  c->last(c->argument);
  return 0;
}

#define CHAIN_KINDS 8
#define CHAIN_ALIGNED 7 /* the one that aligns its stack */
chain_link *o0_frame(unsigned i), *o0_bare_frame(unsigned i), *o2_frame(unsigned i), *o2_bare_frame(unsigned i), *os_frame(unsigned i);
/* Of 3 MiB. */
chain_link *o0_wide_frame(void), *o0_bare_wide_frame(void), *o2_wide_frame(void), *o2_bare_wide_frame(void), *os_wide_frame(void);

#endif
