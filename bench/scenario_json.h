/*
 * JSON texts and the trees made of them. A text is written from random numbers into memory of the
 * caller's; parsing it allocates a node for each value, a block for each string and name, and
 * arrays of members that grow by realloc. Used by bench_json and bench_mixed.
 */
#ifndef HAKMEM_SCENARIO_JSON_H
#define HAKMEM_SCENARIO_JSON_H

#include <stddef.h>
#include <stdint.h>

typedef struct json_value json_value;

typedef struct {
    const char *text;
    size_t length;
    uint64_t values; /* objects, arrays, strings, numbers and literals in it */
} json_text;

/* `count` texts of about `bytes` each in mapped memory, the same ones for the same random state. */
json_text *json_write_texts(uint64_t count, size_t bytes, uint64_t *random_state);

/* NULL when the text is no JSON; running out of memory ends the program. */
json_value *json_parse(const char *text, size_t length);

/* The number of values; all of them, names too, go into *sum. */
uint64_t json_walk(const json_value *value, uint64_t *sum);

void json_free(json_value *value);

#endif
