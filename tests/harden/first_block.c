/* Nothing allocates before main here: C, no libraries. */
#include <stdlib.h>

int main(void) {
  void *volatile small = malloc(10);
  void *volatile second = malloc(10); /* the first may be the one prewarmed block that nothing was linked behind */
  void *volatile large = malloc(100000);
  free(small);
  free(second);
  free(large);
  return small == NULL || second == NULL || large == NULL;
}
