/* Nothing allocates before main here: C, no libraries. */
#include <stdlib.h>

int main(void) {
  void *volatile small = malloc(10);
  void *volatile large = malloc(100000);
  free(small);
  free(large);
  return small == NULL || large == NULL;
}
