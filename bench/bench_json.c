/*
 * JSON documents: parse a text into a tree, walk the tree, free it; document after document, with
 * the last `kept` trees alive at a time. Blocks of many sizes, mostly small, that die together; and
 * arrays that grow. Modelled on what services and tools do that speak JSON. One operation is one
 * value (object, array, string, number or literal).
 */
#include "bench.h"
#include "scenario_json.h"

#include <inttypes.h>

enum { TEXTS = 64 };

int main(int argc, char **argv) {
    bench_arg args[] = {
        {"docs", "documents parsed", 2000, 1, UINT64_C(1) << 48},
        {"bytes", "of each document, about", 10000, 1, UINT64_C(1) << 24},
        {"kept", "documents alive at a time", 1, 1, UINT64_C(1) << 24},
        {"seed", "of the random numbers", 42, 0, UINT64_MAX},
    };
    bench_parse(argc, argv, "parse JSON texts into trees, walk and free them", args,
                sizeof args / sizeof args[0]);
    uint64_t documents = args[0].value, kept = args[2].value;
    uint64_t random_state = bench_seed(args[3].value);
    uint64_t distinct = documents < TEXTS ? documents : TEXTS;
    json_text *texts = json_write_texts(distinct, args[1].value, &random_state);
    json_value **trees = bench_map(kept * sizeof *trees);

    uint64_t values = 0, sum = 0;
    uint64_t start = bench_now_ns();
    for (uint64_t i = 0; i < documents; i++) {
        const json_text *text = &texts[i % distinct];
        json_value **tree = &trees[i % kept];
        if (*tree != NULL) json_free(*tree);
        *tree = json_parse(text->text, text->length);
        if (*tree == NULL) bench_fail("a document could not be parsed");
        uint64_t found = json_walk(*tree, &sum);
        if (found != text->values) bench_fail("a tree does not have the values of its text");
        values += found;
    }
    uint64_t elapsed = bench_now_ns() - start;

    bench_report(values, elapsed,
                 "docs=%" PRIu64 " bytes=%" PRIu64 " kept=%" PRIu64 " values=%" PRIu64
                 " check=%016" PRIx64,
                 documents, args[1].value, kept, values, sum);
    for (uint64_t i = 0; i < kept; i++)
        if (trees[i] != NULL) json_free(trees[i]);
    return 0;
}
