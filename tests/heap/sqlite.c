/* sqlite RUNS: SQLite on heaps, by its memory methods: the library's own memory in one heap, each database in one below it, that of a query
 * with a cap. The query is refused at the same byte in each run; databases that are never closed go with their heaps. */
#include <sqlite3.h>
#include <string.h>

#include "hakmem/hakmem.h"
#include "programs.h"

static hakmem_heap *current; /* what SQLite allocates in now; one thread */
static refusal refused;

static void *db_malloc(int size) {
  void *p = hakmem_heap_malloc(current, (size_t)size);
  if (p == NULL) note_refusal(&refused, current, (size_t)size);
  return p;
}
static void *db_realloc(void *p, int size) {
  void *q = hakmem_heap_realloc(current, p, (size_t)size);
  if (q == NULL) note_refusal(&refused, hakmem_heap_of(p), (size_t)size);
  return q;
}
static void db_free(void *p) { hakmem_free(p); }
static int db_size(void *p) { return (int)hakmem_malloc_usable_size(p); }
static int db_roundup(int size) { return (size + 7) & ~7; }
static int db_init(void *context) { return context == NULL ? SQLITE_OK : SQLITE_ERROR; }
static void db_shutdown(void *context) { (void)context; }

static const char SCHEMA[] =
    "CREATE TABLE item (id INTEGER PRIMARY KEY, kind INTEGER, name TEXT);"
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000)"
    "INSERT INTO item SELECT i, i * 7919 % 31, printf('item number %d', i) FROM n;";
static const char QUERY[] =
    "SELECT count(*) || ' ' || sum(length(pairs)) FROM (SELECT a.kind AS kind, group_concat(a.name || b.name) AS pairs FROM item a JOIN item b ON "
    "a.id = b.id + 1 GROUP BY a.kind, a.id % 7 ORDER BY pairs DESC);";

static int keep_text(void *text, int columns, char **values, char **names) {
  (void)columns;
  (void)names;
  snprintf(text, 64, "%s", values[0]);
  return 0;
}

/* A database with the rows, filled and asked in its heap. SQLite's result code. */
static int ask(hakmem_heap *heap, size_t cap, char *answer, sqlite3 **database) {
  hakmem_heap *before = current;
  current = heap;
  int result = sqlite3_open(":memory:", database);
  if (result == SQLITE_OK) result = sqlite3_exec(*database, SCHEMA, NULL, NULL, NULL);
  EXPECT(result == SQLITE_OK);
  hakmem_heap_set_limit(heap, cap);
  result = sqlite3_exec(*database, QUERY, keep_text, answer, NULL);
  current = before;
  return result;
}

int main(int argc, char **argv) {
  int runs = argc > 1 ? atoi(argv[1]) : 100;
  static const sqlite3_mem_methods methods = {db_malloc, db_free, db_realloc, db_size, db_roundup, db_init, db_shutdown, NULL};
  hakmem_heap *library = current = program_heap("sqlite", 0, NULL);
  EXPECT(sqlite3_config(SQLITE_CONFIG_MALLOC, &methods) == SQLITE_OK);
  EXPECT(sqlite3_config(SQLITE_CONFIG_SINGLETHREAD) == SQLITE_OK);
  EXPECT(sqlite3_initialize() == SQLITE_OK);
  char answer[64] = "", again[64] = "";
  sqlite3 *database;

  /* It works, and its memory is counted: closed, a database has none. */
  hakmem_heap *heap = program_heap("database", 0, library);
  EXPECT(ask(heap, 0, answer, &database) == SQLITE_OK);
  size_t needs = program_stats(heap).peak, total = program_stats(library).total;
  EXPECT(needs > 300000 && strlen(answer) > 5);
  EXPECT(total == program_stats(heap).live + program_stats(library).live);
  EXPECT((long long)total >= sqlite3_memory_used());
  EXPECT(sqlite3_close(database) == SQLITE_OK);
  EXPECT(program_stats(heap).blocks == 0 && program_stats(heap).live == 0);
  hakmem_heap_destroy(heap);

  /* Capped at less than it needs, by a heap or the one above it, the query is refused; the database lives on. */
  refusal first = {0, 0, 0};
  unsigned long long heaps = hakmem_heap_list(NULL, NULL);
  for (int run = 0; run < runs; run++) {
    size_t of_library = program_stats(library).live;
    heap = program_heap("capped", 0, library);
    memset(&refused, 0, sizeof refused);
    EXPECT(ask(heap, needs - 50000, again, &database) == SQLITE_NOMEM);
    EXPECT(refused.size != 0 && program_stats(heap).refused > 0);
    expect_refusal(run, &refused, &first);
    hakmem_heap_set_limit(heap, 0);
    if (run % 2 == 0) {
      current = heap;
      EXPECT(sqlite3_exec(database, QUERY, keep_text, again, NULL) == SQLITE_OK);
      EXPECT(strcmp(again, answer) == 0);
      EXPECT(sqlite3_close(database) == SQLITE_OK);
      EXPECT(program_stats(heap).blocks == 0);
      current = library;
    } /* else nobody closes it, and it goes with its heap */
    hakmem_heap_destroy(heap);
    EXPECT(program_stats(library).live == of_library && program_stats(library).total == of_library);
  }
  EXPECT(hakmem_heap_list(NULL, NULL) == heaps);
  printf("sqlite: needs %zu bytes, answer %s; %d times refused %zu bytes after %llu requests with %zu live\n", needs, answer, runs, first.size,
         first.served, first.live);
  return 0;
}
