/* A request arena in a server: what a request allocates, in its thread and in helpers, goes at its end. */
#include <hakmem/heap.h>
#include <pthread.h>

struct request {
  hakmem_heap *arena;
  char *body;
};

static void *read_body(void *context) {
  struct request *r = context;
  r->body = hakmem_heap_calloc(r->arena, 1, 100000); /* in another thread */
  return NULL;
}

static int serve(void) {
  struct request r = {.arena = hakmem_heap_new(NULL)};
  pthread_t helper;
  if (r.arena == NULL || pthread_create(&helper, NULL, read_body, &r) != 0) return -1;
  char *header = hakmem_heap_malloc(r.arena, 500);
  pthread_join(helper, NULL);
  int result = header != NULL && r.body != NULL ? 0 : -1;
  hakmem_heap_destroy(r.arena);
  return result;
}

int main(void) {
  for (int i = 0; i < 1000; i++)
    if (serve() != 0) return 1;
  return hakmem_heap_list(NULL, NULL) == 0 ? 0 : 1;
}
