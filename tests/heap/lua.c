/* lua RUNS: Lua states, each with a heap as its allocator. They work, are capped and refused at the same byte in each run, counted, and dropped
 * without lua_close. */
#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#include <string.h>

#include "hakmem/hakmem.h"
#include "programs.h"

static refusal refused;

static void *lua_in_heap(void *heap, void *p, size_t old_size, size_t size) {
  (void)old_size;
  if (size == 0) {
    hakmem_free(p);
    return NULL;
  }
  void *q = hakmem_heap_realloc(heap, p, size);
  if (q == NULL) note_refusal(&refused, heap, size);
  return q;
}

static const char SCRIPT[] =
    "local words, lines = {}, {}\n"
    "for i = 1, 2000 do words[i] = string.format('word %d of many', i * 7919 % 2003) end\n"
    "for i = 1, 300 do lines[i] = table.concat(words, ' ', i, i + 40) end\n"
    "table.sort(words)\n"
    "local tree = {}\n"
    "for i = 1, 3000 do tree[i] = {left = i, right = i + 1, name = words[i % 2000 + 1]} end\n"
    "return #table.concat(lines) + #tree + #words[1]\n";

static lua_State *state_in(hakmem_heap *heap) {
  lua_State *lua = lua_newstate(lua_in_heap, heap);
  EXPECT(lua != NULL);
  luaL_openlibs(lua);
  return lua;
}

static long run_script(lua_State *lua) {
  if (luaL_loadstring(lua, SCRIPT) != LUA_OK || lua_pcall(lua, 0, 1, 0) != LUA_OK) {
    EXPECT(strstr(lua_tostring(lua, -1), "not enough memory") != NULL);
    lua_pop(lua, 1);
    return -1;
  }
  long answer = (long)lua_tointeger(lua, -1);
  lua_pop(lua, 1);
  return answer;
}

int main(int argc, char **argv) {
  int runs = argc > 1 ? atoi(argv[1]) : 100;
  hakmem_heap *all = program_heap("states", 0, NULL), *heap = program_heap("state", 0, all);
  lua_State *lua = state_in(heap);
  long answer = run_script(lua);
  EXPECT(answer > 100000);
  size_t needs = program_stats(heap).peak;
  size_t counted = (size_t)lua_gc(lua, LUA_GCCOUNT) * 1024 + (size_t)lua_gc(lua, LUA_GCCOUNTB);
  EXPECT(program_stats(heap).live >= counted && program_stats(heap).live < counted + counted / 4);
  lua_close(lua);
  EXPECT(program_stats(heap).blocks == 0 && program_stats(all).total == 0);
  hakmem_heap_destroy(heap);

  refusal first = {0, 0, 0};
  for (int run = 0; run < runs; run++) {
    heap = program_heap("capped", 0, all);
    memset(&refused, 0, sizeof refused);
    lua = state_in(heap);
    hakmem_heap_set_limit(heap, needs / 2);
    EXPECT(run_script(lua) == -1);
    EXPECT(refused.size != 0 && program_stats(heap).refused > 0);
    expect_refusal(run, &refused, &first);
    hakmem_heap_set_limit(heap, 0);
    if (run % 2 == 0) {
      EXPECT(run_script(lua) == answer);
      lua_close(lua);
      EXPECT(program_stats(heap).blocks == 0);
    } /* else it goes with its heap */
    hakmem_heap_destroy(heap);
    EXPECT(program_stats(all).total == 0);
  }
  printf("lua: needs %zu bytes, answer %ld; %d times refused %zu bytes after %llu requests with %zu live\n", needs, answer, runs, first.size,
         first.served, first.live);
  hakmem_heap_destroy(all);
  return 0;
}
