/*
 * The sessions of a server: each keeps the last document it was sent, an interpreter with its
 * globals, and a compiler module with its symbols. A request works on one session; what it leaves
 * there survives. Used by bench_mixed.
 */
#ifndef HAKMEM_SCENARIO_SERVER_H
#define HAKMEM_SCENARIO_SERVER_H

#include "scenario_json.h"
#include "scenario_vm.h"

#include <stdint.h>

/* What all sessions share and nobody changes. */
typedef struct {
    const json_text *texts;
    uint64_t text_count;
    const vm_code *code;
} server_site;

typedef struct server_session server_session;

server_session *server_open(const server_site *site, uint64_t number);

void server_close(server_session *session);

/* One request of a random kind, which ends the session now and then: returns the session for the
 * next request, the same one or its successor. What the request computes goes into *sum. */
server_session *server_handle(const server_site *site, server_session *session,
                              uint64_t *random_state, uint64_t *sum);

#endif
