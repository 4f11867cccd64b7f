/* A library that is closed and opened again. BYTES sets the size of its frame, and nothing else: builds of it have the same
 * functions at the same addresses. */
__attribute__((visibility("default"))) int plugin_call(void (*f)(void *), void *argument) {
  volatile unsigned char bytes[BYTES];
  bytes[0] = 1;
  f(argument);
  return bytes[0];
}
