/* Runs grids on the host: a block is a loop over its warps, each a function on vectors, interleaved at barriers.

     run        every block of a phase: shared memory filled with 0xFF, so that what nobody wrote is seen
       block    without barriers a loop over its warps; else each warp is a fiber with a stack of its own
         turn   every warp runs up to its next barrier or its end; then all wait there, or all are done

   Where some warps end while others wait at a barrier, a GPU would hang or worse: here the launch fails. The order of
   warps and blocks can be changed (host_grid_set_order), so that a missing barrier shows. */
#define _GNU_SOURCE
#include "gpu/host_grid.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

enum { STACK_BYTES = 256 * 1024, SHARED_ALIGNMENT = 128, FENCE_BYTES = 64, FENCE = 0xA5, UNWRITTEN = 0xFF };
enum { FORWARD, REVERSE, SHUFFLED };

/* --- the order of blocks and warps ------------------------------------------------------------------ */

static struct {
    int kind;
    uint64_t seed;
} order;

bool
host_grid_set_order(const char *name, uint64_t seed)
{
    static const char *const kinds[] = {[FORWARD] = "forward", [REVERSE] = "reverse", [SHUFFLED] = "shuffled"};
    for (int kind = FORWARD; kind <= SHUFFLED; kind++) {
        if (strcmp(name, kinds[kind]) == 0) {
            order.kind = kind;
            order.seed = seed;
            return true;
        }
    }
    return false;
}

static uint64_t
scrambled(uint64_t number)
{
    number = (number ^ (number >> 30)) * 0xbf58476d1ce4e5b9u;
    number = (number ^ (number >> 27)) * 0x94d049bb133111ebu;
    return number ^ (number >> 31);
}

static uint64_t
common_divisor(uint64_t a, uint64_t b)
{
    while (b) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* A permutation of so many places: place i has number (i · step + first) mod count. */
typedef struct {
    uint64_t count, step, first;
    bool is_reverse;
} Turns;

static Turns
turns_of(uint64_t count, uint64_t round)
{
    Turns turns = {.count = count, .step = 1, .is_reverse = order.kind == REVERSE};
    if (order.kind == SHUFFLED && count > 1) {
        uint64_t drawn = scrambled(order.seed * 0x9e3779b97f4a7c15u + round + 1);
        turns.first = drawn % count;
        turns.step = 1 + (drawn >> 32) % (count - 1);
        while (common_divisor(turns.step, count) != 1) {
            turns.step = turns.step % (count - 1) + 1;
        }
    }
    return turns;
}

static int64_t
turn(const Turns *turns, uint64_t place)
{
    uint64_t number = (place * turns->step + turns->first) % turns->count;
    return (int64_t)(turns->is_reverse ? turns->count - 1 - number : number);
}

/* --- stacks ----------------------------------------------------------------------------------------- */

typedef struct {
    char *memory;
    size_t count; /* stacks of STACK_BYTES, each with a page below that nobody may touch */
} Stacks;

static pthread_mutex_t stacks_lock = PTHREAD_MUTEX_INITIALIZER;
static Stacks kept_stacks;

static void
free_stacks(Stacks stacks)
{
    if (stacks.memory) {
        munmap(stacks.memory, stacks.count * STACK_BYTES);
    }
}

/* Those that were kept, if they are enough, or new ones; none: there is no memory. */
static Stacks
acquire_stacks(size_t count)
{
    pthread_mutex_lock(&stacks_lock);
    Stacks taken = kept_stacks;
    kept_stacks = (Stacks){.memory = NULL};
    pthread_mutex_unlock(&stacks_lock);
    if (taken.count >= count) {
        return taken;
    }
    free_stacks(taken);
    void *memory = mmap(NULL, count * STACK_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        return (Stacks){.memory = NULL};
    }
    for (size_t i = 0; i < count; i++) {
        mprotect((char *)memory + i * STACK_BYTES, (size_t)sysconf(_SC_PAGESIZE), PROT_NONE);
    }
    return (Stacks){.memory = memory, .count = count};
}

static void
release_stacks(Stacks stacks)
{
    pthread_mutex_lock(&stacks_lock);
    Stacks spare = stacks;
    if (stacks.count > kept_stacks.count) {
        spare = kept_stacks;
        kept_stacks = stacks;
    }
    pthread_mutex_unlock(&stacks_lock);
    free_stacks(spare);
}

/* --- a block ---------------------------------------------------------------------------------------- */

typedef struct {
    ucontext_t context;
    enum { READY, WAITING, DONE } state;
} Warp;

/* A block at work, and what its warps are called with. */
typedef struct {
    WarpFunction function;
    void **buffers, *workspace, *shared;
    int64_t block;
    size_t count; /* warps */
    Warp *warps;  /* NULL: no fibers */
    size_t running;
    ucontext_t scheduler;
    Stacks stacks;
    uint64_t rounds;
} Block;

static _Thread_local Block *at_work; /* a block whose warps may wait for each other */
static _Thread_local bool has_strayed; /* one waited in a phase that was said to have no barriers */

void
host_grid_barrier(void)
{
    Block *block = at_work;
    if (block == NULL) {
        has_strayed = true;
        return;
    }
    if (block->warps == NULL) {
        return; /* one warp waits for nobody */
    }
    Warp *warp = &block->warps[block->running];
    warp->state = WAITING;
    swapcontext(&warp->context, &block->scheduler);
}

static void
run_warp(void)
{
    Block *block = at_work;
    size_t number = block->running;
    block->function(block->buffers, block->workspace, block->block, (int64_t)number, block->shared);
    block->warps[number].state = DONE;
}

/* false: some warps ended while others wait. What those have on their stacks is not needed any more. */
static bool
run_fibers(Block *block)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), done = 0, waiting;
    for (size_t i = 0; i < block->count; i++) {
        Warp *warp = &block->warps[i];
        getcontext(&warp->context);
        warp->context.uc_stack.ss_sp = block->stacks.memory + i * STACK_BYTES + page;
        warp->context.uc_stack.ss_size = STACK_BYTES - page;
        warp->context.uc_link = &block->scheduler;
        makecontext(&warp->context, run_warp, 0);
        warp->state = READY;
    }
    do {
        Turns turns = turns_of(block->count, block->rounds++);
        waiting = 0;
        for (size_t i = 0; i < block->count; i++) {
            block->running = (size_t)turn(&turns, i);
            Warp *warp = &block->warps[block->running];
            warp->state = READY;
            swapcontext(&block->scheduler, &warp->context);
            waiting += warp->state == WAITING;
            done += warp->state == DONE;
        }
        if (waiting && done) {
            return false;
        }
    } while (waiting);
    return true;
}

static void
run_loop(Block *block)
{
    Turns turns = turns_of(block->count, block->rounds++);
    for (size_t i = 0; i < block->count; i++) {
        block->function(block->buffers, block->workspace, block->block, turn(&turns, i), block->shared);
    }
}

/* --- a phase ---------------------------------------------------------------------------------------- */

void
host_grid_fill(void *memory, size_t bytes)
{
    memset(memory, UNWRITTEN, bytes);
}

/* 0, or why it did not work. */
static int
run_blocks(Block *block, size_t shared_bytes, int64_t blocks)
{
    Turns turns = turns_of((uint64_t)blocks, block->rounds++);
    for (int64_t i = 0; i < blocks; i++) {
        block->block = turn(&turns, (uint64_t)i);
        host_grid_fill(block->shared, shared_bytes);
        memset((char *)block->shared + shared_bytes, FENCE, FENCE_BYTES);
        if (block->warps == NULL) {
            run_loop(block);
        }
        else if (!run_fibers(block)) {
            return GRID_DIVERGED;
        }
        if (has_strayed) {
            return GRID_STRAY_BARRIER;
        }
        const unsigned char *fence = (const unsigned char *)block->shared + shared_bytes;
        for (size_t k = 0; k < FENCE_BYTES; k++) {
            if (fence[k] != FENCE) {
                return GRID_OVERRUN;
            }
        }
    }
    return 0;
}

int
host_grid_run(const GridPhase *phase, unsigned warp, int64_t blocks, void **buffers, void *workspace)
{
    const size_t shared = (size_t)phase->grid.shared_bytes;
    Block block = {.function = phase->function, .buffers = buffers, .workspace = workspace};
    block.count = (size_t)phase->grid.threads / warp;
    block.shared = aligned_alloc(SHARED_ALIGNMENT, (shared + FENCE_BYTES + SHARED_ALIGNMENT - 1) / SHARED_ALIGNMENT
                                                       * SHARED_ALIGNMENT);
    bool has_fibers = phase->has_barriers && block.count > 1;
    if (has_fibers) {
        block.warps = calloc(block.count, sizeof *block.warps);
        block.stacks = acquire_stacks(block.count);
    }
    int fault = GRID_MEMORY;
    if (block.shared && (!has_fibers || (block.warps && block.stacks.memory))) {
        Block *outer = at_work;
        at_work = phase->has_barriers ? &block : NULL;
        has_strayed = false;
        fault = run_blocks(&block, shared, blocks);
        at_work = outer;
    }
    free(block.shared);
    free(block.warps);
    if (block.stacks.memory) {
        release_stacks(block.stacks);
    }
    return fault;
}
