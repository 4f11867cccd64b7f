/* A library that asks to be initialised before all others, as the allocator does: the loader heeds the one that it maps last.
 * Whatever the program wants done before the allocator's constructor is done here. */
extern void before_the_allocator(void) __attribute__((weak));

__attribute__((constructor)) static void load(void) {
  if (before_the_allocator) before_the_allocator();
}
