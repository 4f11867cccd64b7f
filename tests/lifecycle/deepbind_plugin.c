/* Opened with RTLD_DEEPBIND: takes a block of the program's, and returns one of its own. */
#include <stdlib.h>
#include <string.h>

char *deepbind_exchange(char *theirs) {
  char *mine = strdup(theirs);
  free(theirs);
  return mine;
}

char *deepbind_make(void) { return malloc(100); }
