/* Writes random JSON texts: objects of a web service's kind, nested a few levels. */
#include "bench.h"
#include "scenario_json.h"

#include <stdarg.h>
#include <stdio.h>

enum { DEPTH_MAX = 6, VALUE_ROOM_BYTES = 512 };

typedef struct {
    char *at;
    char *end; /* a value may write VALUE_ROOM_BYTES beyond it */
    uint64_t *random_state;
    uint64_t values;
} writer;

static uint64_t choose(writer *w, uint64_t bound) {
    return bench_below(bench_random(w->random_state), bound);
}

static void put(writer *w, char c) { *w->at++ = c; }

static __attribute__((format(printf, 2, 3))) void put_text(writer *w, const char *format, ...) {
    va_list list;
    va_start(list, format);
    int length = vsnprintf(w->at, VALUE_ROOM_BYTES, format, list);
    va_end(list);
    w->at += length;
}

/* Words with now and then a character that has to be escaped. */
static void put_string(writer *w, uint64_t length) {
    static const char *const escapes[] = {"\\n", "\\\"", "\\\\", "\\u00e9", "\\t", "\\/"};
    put(w, '"');
    for (uint64_t i = 0; i < length; i++) {
        uint64_t kind = choose(w, 40);
        if (kind < 6)
            put(w, ' ');
        else if (kind == 6)
            put_text(w, "%s", escapes[choose(w, sizeof escapes / sizeof escapes[0])]);
        else
            put(w, (char)('a' + choose(w, 26)));
    }
    put(w, '"');
}

static void put_name(writer *w) {
    static const char *const names[] = {"id",     "name",    "created_at", "tags",  "address",
                                        "email",  "price",   "quantity",   "items", "description",
                                        "active", "parent",  "children",   "url",   "status",
                                        "score",  "country", "comment",    "ratio", "x"};
    put_text(w, "\"%s\":", names[choose(w, sizeof names / sizeof names[0])]);
}

static void put_number(writer *w) {
    uint64_t random = bench_random(w->random_state);
    if (random & 1)
        put_text(w, "%d", (int)(random >> 40) - (1 << 23));
    else
        put_text(w, "%u.%03u", (unsigned)(random >> 48), (unsigned)(random >> 1 & 0xffff) % 1000);
}

static void put_value(writer *w, int depth);

static void put_members(writer *w, int depth, int named) {
    uint64_t members = choose(w, depth == 0 ? 12 : 8);
    put(w, named ? '{' : '[');
    /* The outermost one goes on until the text is long enough. */
    for (uint64_t i = 0; (depth == 0 || i < members) && w->at < w->end; i++) {
        if (i > 0) put_text(w, choose(w, 2) ? "," : ", ");
        if (named) put_name(w);
        put_value(w, depth + 1);
    }
    put(w, named ? '}' : ']');
}

static void put_value(writer *w, int depth) {
    static const char *const literals[] = {"true", "false", "null"};
    uint64_t kind = choose(w, 16);
    w->values++;
    if (depth == 0 || (kind < 5 && depth < DEPTH_MAX))
        put_members(w, depth, depth == 0 || kind < 3);
    else if (kind < 10)
        put_string(w, kind == 9 ? choose(w, 60) : choose(w, 16));
    else if (kind < 14)
        put_number(w);
    else
        put_text(w, "%s", literals[choose(w, 3)]);
}

json_text *json_write_texts(uint64_t count, size_t bytes, uint64_t *random_state) {
    json_text *texts = bench_map(count * sizeof *texts);
    /* After w->end: one value, and the commas and brackets of all levels around it. */
    size_t room = bytes + 2 * VALUE_ROOM_BYTES;
    for (uint64_t i = 0; i < count; i++) {
        char *memory = bench_map(room);
        writer w = {.at = memory, .end = memory + bytes, .random_state = random_state};
        put_value(&w, 0);
        texts[i] = (json_text){memory, (size_t)(w.at - memory), w.values};
    }
    return texts;
}
