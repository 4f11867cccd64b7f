/* What `inject` runs under preload: one part of the load while calls fail, and once more when they do not.
 * usage: program LOAD */
#include <stdio.h>
#include <stdlib.h>

#include "load.h"
#include "mark.h"

int main(int argc, char **argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: %s LOAD\n", argv[0]);
    return 2;
  }
  const faults_api *api = faults_api_of_libc_names();
  free(malloc(1)); /* the allocator has started when the mark comes */
  faults_mark(true);
  int faults = faults_run_load(api, argv[1], true);
  faults_mark(false);
  faults += faults_run_load(api, argv[1], false);
  return faults == 0 ? 0 : 1;
}
