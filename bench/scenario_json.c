/* The parser and the tree it builds. See scenario_json.h. */
#include "scenario_json.h"

#include "bench.h"

#include <stdbool.h>
#include <string.h>

typedef enum { JSON_NULL, JSON_FALSE, JSON_TRUE, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT }
    json_kind;

typedef struct {
    char *name; /* NULL in arrays */
    json_value *value;
} json_member;

struct json_value {
    json_kind kind;
    uint32_t count;
    uint32_t capacity;
    union {
        double number;
        char *string;
        json_member *members;
    };
};

enum { FIRST_CAPACITY = 4 };

typedef struct {
    const char *at;
    const char *end;
} parser;

static json_value *parse_value(parser *p);

static json_value *new_value(json_kind kind) {
    json_value *value = bench_checked(malloc(sizeof *value));
    *value = (json_value){.kind = kind};
    return value;
}

static void skip_blanks(parser *p) {
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\n' || *p->at == '\t' || *p->at == '\r'))
        p->at++;
}

static bool take(parser *p, char c) {
    skip_blanks(p);
    if (p->at == p->end || *p->at != c) return false;
    p->at++;
    return true;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The four digits after \u as UTF-8, at most three bytes; no more than the six characters read. */
static char *unescape_unicode(parser *p, char *out) {
    unsigned code = 0;
    for (int i = 0; i < 4; i++) {
        int digit = p->at < p->end ? hex_digit(*p->at++) : -1;
        if (digit < 0) return NULL;
        code = code << 4 | (unsigned)digit;
    }
    if (code < 0x80) {
        *out++ = (char)code;
    } else if (code < 0x800) {
        *out++ = (char)(0xc0 | code >> 6);
        *out++ = (char)(0x80 | (code & 0x3f));
    } else {
        *out++ = (char)(0xe0 | code >> 12);
        *out++ = (char)(0x80 | (code >> 6 & 0x3f));
        *out++ = (char)(0x80 | (code & 0x3f));
    }
    return out;
}

static char *unescape_one(parser *p, char *out) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char c = p->at < p->end ? *p->at++ : '\0';
    if (c == 'u') return unescape_unicode(p, out);
    const char *found = c != '\0' ? strchr(from, c) : NULL;
    if (found == NULL) return NULL;
    *out++ = to[found - from];
    return out;
}

/* Finds the end first, so that the block is as long as the text between the quotes at most. */
static char *parse_string(parser *p) {
    if (!take(p, '"')) return NULL;
    const char *close = p->at;
    while (close < p->end && *close != '"') close += *close == '\\' ? 2 : 1;
    if (close >= p->end) return NULL;
    char *string = bench_checked(malloc((size_t)(close - p->at) + 1));
    char *out = string;
    while (p->at < close && out != NULL) {
        char c = *p->at++;
        if (c == '\\')
            out = unescape_one(p, out);
        else
            *out++ = c;
    }
    if (out == NULL) {
        free(string);
        return NULL;
    }
    p->at = close + 1;
    *out = '\0';
    return string;
}

static void add_member(json_value *parent, char *name, json_value *value) {
    if (parent->count == parent->capacity) {
        parent->capacity = parent->capacity == 0 ? FIRST_CAPACITY : parent->capacity * 2;
        parent->members =
            bench_checked(realloc(parent->members, parent->capacity * sizeof *parent->members));
    }
    parent->members[parent->count++] = (json_member){name, value};
}

/* One member of `parent`, named in objects. */
static bool parse_member(parser *p, json_value *parent) {
    char *name = NULL;
    if (parent->kind == JSON_OBJECT) {
        name = parse_string(p);
        if (name == NULL) return false;
        if (!take(p, ':')) {
            free(name);
            return false;
        }
    }
    json_value *value = parse_value(p);
    if (value == NULL) {
        free(name);
        return false;
    }
    add_member(parent, name, value);
    return true;
}

static json_value *parse_members(parser *p, json_kind kind, char close) {
    json_value *parent = new_value(kind);
    if (take(p, close)) return parent;
    bool good = true;
    do
        good = parse_member(p, parent);
    while (good && take(p, ','));
    if (good && take(p, close)) return parent;
    json_free(parent);
    return NULL;
}

static double parse_digits(parser *p, double *scale) {
    double number = 0;
    for (*scale = 1; p->at < p->end && *p->at >= '0' && *p->at <= '9'; p->at++, *scale *= 10)
        number = number * 10 + (*p->at - '0');
    return number;
}

/* Integers and decimal fractions; the texts have no exponents. */
static json_value *parse_number(parser *p) {
    double scale, number_scale;
    bool negative = take(p, '-');
    double number = parse_digits(p, &number_scale);
    if (number_scale == 1) return NULL;
    if (p->at < p->end && *p->at == '.') {
        p->at++;
        double fraction = parse_digits(p, &scale);
        number += fraction / scale;
    }
    json_value *value = new_value(JSON_NUMBER);
    value->number = negative ? -number : number;
    return value;
}

static json_value *parse_literal(parser *p, const char *word, json_kind kind) {
    size_t length = strlen(word);
    if ((size_t)(p->end - p->at) < length || memcmp(p->at, word, length) != 0) return NULL;
    p->at += length;
    return new_value(kind);
}

static json_value *parse_value(parser *p) {
    skip_blanks(p);
    if (p->at == p->end) return NULL;
    switch (*p->at) {
    case '{': p->at++; return parse_members(p, JSON_OBJECT, '}');
    case '[': p->at++; return parse_members(p, JSON_ARRAY, ']');
    case 't': return parse_literal(p, "true", JSON_TRUE);
    case 'f': return parse_literal(p, "false", JSON_FALSE);
    case 'n': return parse_literal(p, "null", JSON_NULL);
    case '"': {
        char *string = parse_string(p);
        if (string == NULL) return NULL;
        json_value *value = new_value(JSON_STRING);
        value->string = string;
        return value;
    }
    default: return parse_number(p);
    }
}

json_value *json_parse(const char *text, size_t length) {
    parser p = {text, text + length};
    json_value *value = parse_value(&p);
    skip_blanks(&p);
    if (value == NULL || p.at == p.end) return value;
    json_free(value);
    return NULL;
}

static uint64_t mix_string(uint64_t sum, const char *string) {
    for (; *string != '\0'; string++) sum = sum * 31 + (unsigned char)*string;
    return sum;
}

uint64_t json_walk(const json_value *value, uint64_t *sum) {
    uint64_t values = 1;
    *sum = bench_mix(*sum, value->kind);
    if (value->kind == JSON_NUMBER) *sum = bench_mix(*sum, (uint64_t)(int64_t)(value->number * 8));
    if (value->kind == JSON_STRING) *sum = mix_string(*sum, value->string);
    for (uint32_t i = 0; i < value->count; i++) {
        const json_member *member = &value->members[i];
        if (member->name != NULL) *sum = mix_string(*sum, member->name);
        values += json_walk(member->value, sum);
    }
    return values;
}

void json_free(json_value *value) {
    for (uint32_t i = 0; i < value->count; i++) {
        free(value->members[i].name);
        json_free(value->members[i].value);
    }
    if (value->kind == JSON_ARRAY || value->kind == JSON_OBJECT) free(value->members);
    if (value->kind == JSON_STRING) free(value->string);
    free(value);
}
