/* Lanes of the recorder. See record_lane.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "record_lane.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#include "format.h"
#include "record_file.h"

struct record_lane {
    _Alignas(64) uint8_t *at;
    uint8_t *end;
    uint8_t *window;
    uint64_t last_stamp;
    uint64_t last_address;
    uint32_t number;
    uint32_t sequence;
    record_lane *next_free;
};

enum { NOT_STARTED = 0, RECORDING, STOPPED };

/* All of a process's state but the threads' own. A fork leaves it zeroed in the child, locks
 * included: NOT_STARTED is what a new process and a forked child find alike. */
typedef struct {
    atomic_int state;
    atomic_flag lock; /* guards all below but `stamps`, and the start */
    uint32_t generation;
    uint32_t lane_count;
    uint64_t chunk_count;
    uint64_t thread_count;
    record_lane *free_lanes;
    _Alignas(64) _Atomic uint64_t stamps;
    record_lane lanes[TRACE_LANES_MAX];
} process;

/* A thread's own state; `generation` tells a lane of this process from one of its parent's. */
typedef struct {
    record_lane *lane;
    uint32_t generation;
    bool ended;
    uint64_t number;
} thread_state;

static __thread thread_state self __attribute__((tls_model("initial-exec")));
static _Atomic(process *) current;
/* Not zeroed by a fork. */
static atomic_uint generations;
static char path[RECORD_PATH_BYTES];
static pthread_key_t at_thread_end;

static void take_lock(process *p) {
    /* acquire: pairs with the release in drop_lock. */
    while (atomic_flag_test_and_set_explicit(&p->lock, memory_order_acquire)) sched_yield();
}

static void drop_lock(process *p) { atomic_flag_clear_explicit(&p->lock, memory_order_release); }

static process *find_process(void) {
    process *p = atomic_load_explicit(&current, memory_order_acquire);
    if (p != NULL) return p;
    p = mmap(NULL, sizeof *p, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
             -1, 0);
    if (p == MAP_FAILED) return NULL;
    if (madvise(p, sizeof *p, MADV_WIPEONFORK) != 0) {
        record_complain("nothing recorded", "this kernel cannot clear memory on fork");
        atomic_store(&p->state, STOPPED);
    }
    process *found = NULL;
    if (atomic_compare_exchange_strong(&current, &found, p)) return p;
    munmap(p, sizeof *p);
    return found;
}

static void stop(process *p) { atomic_store(&p->state, STOPPED); }

/* A chunk of its own for a lane. Called with the lock held; false where recording stops. */
static bool next_chunk(process *p, record_lane *lane) {
    uint8_t *window = record_file_map(path, p->chunk_count);
    if (window == NULL) {
        stop(p);
        return false;
    }
    p->chunk_count++;
    if (lane->window != NULL) munmap(lane->window, TRACE_CHUNK_BYTES);
    trace_chunk *head = (trace_chunk *)window;
    head->lane = lane->number;
    head->sequence = lane->sequence++;
    head->stamp = lane->last_stamp;
    head->address = lane->last_address;
    /* release: readers of a file left by a killed process go by the magic. */
    __atomic_store_n(&head->magic, TRACE_CHUNK_MAGIC, __ATOMIC_RELEASE);
    lane->window = window;
    lane->at = window + sizeof *head;
    lane->end = window + TRACE_CHUNK_BYTES;
    return true;
}

static void thread_ended(void *unused);

/* Opens the file of a new process, or of a forked child. Called with the lock held. */
static void start(process *p) {
    unsigned generation = atomic_fetch_add(&generations, 1) + 1;
    bool forked = generation > 1;
    p->generation = generation;
    bool ready = forked || pthread_key_create(&at_thread_end, thread_ended) == 0;
    if (!ready) record_complain("nothing recorded", "no thread key is left");
    ready = ready && record_file_create(path, forked);
    atomic_store_explicit(&p->state, ready ? RECORDING : STOPPED, memory_order_release);
}

/* Says in the lane whose events follow. */
static void put_thread(record_lane *lane, uint64_t number) {
    uint8_t *at = trace_put(lane->at + 1, number);
    __atomic_store_n(lane->at, TRACE_THREAD, __ATOMIC_RELEASE);
    lane->at = at;
}

/* A lane that no living thread has. Called with the lock held. */
static record_lane *take_lane(process *p) {
    record_lane *lane = p->free_lanes;
    if (lane != NULL) {
        p->free_lanes = lane->next_free;
    } else if (p->lane_count < TRACE_LANES_MAX) {
        lane = &p->lanes[p->lane_count];
        lane->number = p->lane_count++;
    } else {
        record_complain("recording stops here", "too many threads at once");
        stop(p);
        return NULL;
    }
    if (lane->end - lane->at < 2 * TRACE_EVENT_MAX_BYTES && !next_chunk(p, lane)) return NULL;
    if (self.number == 0) self.number = ++p->thread_count;
    put_thread(lane, self.number);
    return lane;
}

static void give_lane(process *p, record_lane *lane) {
    take_lock(p);
    lane->next_free = p->free_lanes;
    p->free_lanes = lane;
    drop_lock(p);
}

/* The way to a lane that a thread takes once, and an ended thread at every call. */
static record_lane *enter_slowly(process *p) {
    int saved_errno = errno;
    record_lane *lane = NULL;
    take_lock(p);
    if (atomic_load(&p->state) == NOT_STARTED) start(p);
    if (self.generation != p->generation) {
        self.generation = p->generation;
        self.lane = NULL;
        self.number = 0;
    }
    if (atomic_load(&p->state) == RECORDING) lane = take_lane(p);
    drop_lock(p);
    if (lane != NULL && !self.ended) {
        self.lane = lane;
        pthread_setspecific(at_thread_end, lane);
    }
    errno = saved_errno;
    return lane;
}

static bool turn_over(process *p, record_lane *lane) {
    int saved_errno = errno;
    take_lock(p);
    bool turned = next_chunk(p, lane);
    drop_lock(p);
    errno = saved_errno;
    return turned;
}

record_lane *record_lane_enter(void) {
    process *p = find_process();
    if (p == NULL) return NULL;
    /* acquire: `path` and `generation` were written before the state. */
    int state = atomic_load_explicit(&p->state, memory_order_acquire);
    if (state == STOPPED || !record_file_settings()) return NULL;
    record_lane *lane = self.lane;
    if (state == NOT_STARTED || lane == NULL || self.generation != p->generation)
        return enter_slowly(p);
    if (lane->end - lane->at < TRACE_EVENT_MAX_BYTES && !turn_over(p, lane)) return NULL;
    return lane;
}

void record_lane_leave(record_lane *lane) {
    if (lane != NULL && lane != self.lane)
        give_lane(atomic_load_explicit(&current, memory_order_relaxed), lane);
}

/* The C library still frees a few blocks of a thread after this: enter_slowly lends it a lane. */
static void thread_ended(void *unused) {
    (void)unused;
    process *p = atomic_load_explicit(&current, memory_order_relaxed);
    record_lane *lane = self.lane;
    self.ended = true;
    self.lane = NULL;
    if (lane != NULL && self.generation == p->generation) give_lane(p, lane);
}

uint64_t record_stamp(void) {
    process *p = atomic_load_explicit(&current, memory_order_relaxed);
    /* relaxed: see the head of record_lane.h; one object's steps are in order by themselves. */
    return atomic_fetch_add_explicit(&p->stamps, 1, memory_order_relaxed) + 1;
}

/* The first byte's high bits, and what does not fit into them behind it. */
static uint8_t *put_step(record_lane *lane, uint8_t *at, uint64_t stamp, uint8_t *first) {
    uint64_t step = stamp - lane->last_stamp - 1;
    lane->last_stamp = stamp;
    if (step < TRACE_STEP_ESCAPE) {
        *first |= (uint8_t)(step << TRACE_KIND_BITS);
        return at;
    }
    *first |= (uint8_t)(TRACE_STEP_ESCAPE << TRACE_KIND_BITS);
    return trace_put(at, step - TRACE_STEP_ESCAPE);
}

static uint8_t *put_address(record_lane *lane, uint8_t *at, const void *block) {
    uint64_t address = (uint64_t)(uintptr_t)block >> TRACE_ADDRESS_SHIFT;
    int64_t difference = (int64_t)(address - lane->last_address);
    lane->last_address = address;
    return trace_put(at, trace_fold(difference));
}

/* The first byte makes the event: release keeps it behind the others. */
static void commit(record_lane *lane, uint8_t *at, uint8_t first) {
    __atomic_store_n(lane->at, first, __ATOMIC_RELEASE);
    lane->at = at;
}

void record_allocation(record_lane *lane, unsigned kind, const void *block, size_t size,
                       size_t alignment) {
    uint8_t first = (uint8_t)kind;
    uint8_t *at = put_step(lane, lane->at + 1, record_stamp(), &first);
    if (kind == TRACE_ALIGNED) *at++ = (uint8_t)__builtin_ctzl(alignment);
    at = trace_put(at, size);
    commit(lane, put_address(lane, at, block), first);
}

void record_free(record_lane *lane, uint64_t stamp, const void *block) {
    uint8_t first = TRACE_FREE;
    uint8_t *at = put_step(lane, lane->at + 1, stamp, &first);
    commit(lane, put_address(lane, at, block), first);
}

void record_realloc(record_lane *lane, uint64_t begin, const void *old, const void *block,
                    size_t size) {
    uint8_t first = TRACE_REALLOC;
    uint64_t end = record_stamp();
    uint8_t *at = put_step(lane, lane->at + 1, begin, &first);
    at = trace_put(at, end - begin - 1);
    lane->last_stamp = end;
    at = trace_put(at, size);
    at = put_address(lane, at, old);
    commit(lane, put_address(lane, at, block), first);
}
