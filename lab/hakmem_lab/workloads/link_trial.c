/*
 * Tries the allocator it is linked with: contents, zeroing, alignment, and blocks freed by another
 * thread. Exit status 0 when all is well; otherwise one line says what is not.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 4000, ROUNDS = 6, THREADS = 3, LARGEST_BYTES = 40000 };

static unsigned char *blocks[BLOCKS];

static size_t size_of(size_t i) { return 1 + i * 7919 % (i % 64 == 0 ? LARGEST_BYTES : 1500); }

static _Noreturn void fail(const char *what) {
    fprintf(stderr, "link trial: %s\n", what);
    exit(1);
}

static void free_all(void) {
    for (size_t i = 0; i < BLOCKS; i++) {
        if (blocks[i][0] != (unsigned char)i || blocks[i][size_of(i) - 1] != (unsigned char)i)
            fail("a block lost its contents");
        free(blocks[i]);
    }
}

static void *fill(void *unused) {
    (void)unused;
    for (size_t i = 0; i < BLOCKS; i++) {
        blocks[i] = malloc(size_of(i));
        if (blocks[i] == NULL) fail("malloc gave NULL");
        memset(blocks[i], (int)(unsigned char)i, size_of(i));
    }
    return NULL;
}

static void try_others(void) {
    unsigned char *zeroed = calloc(300, 40);
    for (size_t i = 0; zeroed != NULL && i < 300 * 40; i++)
        if (zeroed[i] != 0) fail("calloc gave memory that is not zero");
    unsigned char *grown = realloc(malloc(100), 100000);
    unsigned char *aligned = aligned_alloc(256, 512);
    if (zeroed == NULL || grown == NULL || aligned == NULL) fail("an allocation gave NULL");
    if ((uintptr_t)aligned % 256 != 0) fail("aligned_alloc gave a block that is not aligned");
    memset(grown, 1, 100000);
    free(zeroed);
    free(grown);
    free(aligned);
}

int main(void) {
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < THREADS; i++) {
            pthread_t thread;
            if (pthread_create(&thread, NULL, fill, NULL) != 0) fail("no thread to be had");
            pthread_join(thread, NULL);
            free_all();
        }
        try_others();
    }
    return 0;
}
