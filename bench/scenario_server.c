/* Sessions and requests. See scenario_server.h. */
#include "scenario_server.h"

#include "bench.h"
#include "scenario_mir.h"

#include <stdio.h>

enum {
    GLOBALS = 32,
    NAME_BYTES = 48,
    QUERY_MIN = 20, /* instructions of a compiled query */
    QUERY_SPREAD = 100,
    REPLY_FIRST_BYTES = 64,
    REPLY_MAX_BYTES = 16384,
    REQUESTS_A_SESSION = 100 /* on average */
};

struct server_session {
    char *name;
    uint64_t requests;
    json_value *document; /* NULL before the first one */
    mir_module *module;
    vm *machine;
};

server_session *server_open(const server_site *site, uint64_t number) {
    server_session *s = bench_checked(malloc(sizeof *s));
    *s = (server_session){.module = mir_new_module(), .machine = vm_new(site->code, GLOBALS)};
    s->name = bench_checked(malloc(NAME_BYTES));
    snprintf(s->name, NAME_BYTES, "session-%llu", (unsigned long long)number);
    return s;
}

void server_close(server_session *s) {
    if (s->document != NULL) json_free(s->document);
    mir_free_module(s->module);
    vm_free(s->machine);
    free(s->name);
    free(s);
}

/* A new document takes the place of the old one. */
static void receive_document(const server_site *site, server_session *s, uint64_t random,
                             uint64_t *sum) {
    const json_text *text = &site->texts[bench_below(random, site->text_count)];
    json_value *document = json_parse(text->text, text->length);
    if (document == NULL) bench_fail("a document could not be parsed");
    if (json_walk(document, sum) != text->values)
        bench_fail("a tree does not have the values of its text");
    if (s->document != NULL) json_free(s->document);
    s->document = document;
}

/* The interpreter's result depends on the session's past, so it stays out of the request's sum. */
static void run_script(server_session *s, uint64_t random) {
    uint64_t ignored = 0;
    vm_call(s->machine, random, &ignored);
}

/* Every request is answered: a text that grows as it is written. */
static void write_reply(const server_session *s, uint64_t random) {
    size_t wanted = REPLY_FIRST_BYTES + bench_below(random, REPLY_MAX_BYTES - REPLY_FIRST_BYTES);
    size_t capacity = REPLY_FIRST_BYTES;
    char *reply = bench_checked(malloc(capacity));
    size_t length = (size_t)snprintf(reply, capacity, "%s: ", s->name);
    while (length < wanted) {
        if (length == capacity) {
            capacity *= 2;
            reply = bench_checked(realloc(reply, capacity));
        }
        reply[length++] = (char)random;
    }
    free(reply);
}

server_session *server_handle(const server_site *site, server_session *s, uint64_t *random_state,
                              uint64_t *sum) {
    uint64_t random = bench_random(random_state);
    uint64_t kind = random & 15;
    s->requests++;
    if (kind < 8)
        receive_document(site, s, random, sum);
    else if (kind < 13)
        run_script(s, random);
    else
        mir_compile(s->module, QUERY_MIN + bench_below(random, QUERY_SPREAD), random_state, sum);
    uint64_t next = bench_random(random_state);
    write_reply(s, next);
    if (next % REQUESTS_A_SESSION != 0) return s;
    server_close(s);
    return server_open(site, next);
}
