/* The thread pool of a session, which runs the chunks of its kernels. */
#ifndef SMELT_EXECUTOR_THREAD_POOL_H
#define SMELT_EXECUTOR_THREAD_POOL_H

#include "smelt.h"

#include <stdbool.h>

enum { MOST_THREADS = 1024 };

typedef struct Pool Pool;

/* What runs the chunks of a session: its pool, or the caller's function. */
typedef struct {
    int64_t threads;
    smelt_parallel_for_function parallel_for;
    void *context;
    Pool *pool; /* NULL: not started yet, or not needed */
    const smelt_allocator *allocator;
    bool alone; /* threads could not be started, or were lost in a fork */
} Threads;

/* From here to the end, kernels that this thread runs share their work out by it. */
Threads *smelt_threads_begin(Threads *threads);
void smelt_threads_end(Threads *before);

/* Ends the threads. */
void smelt_threads_stop(Threads *threads);

/* How many processors this process may use. */
int smelt_processor_count(void);

/* As a chunk runner (executor/parallel.h): by what the calling thread began; without it, by that thread alone. */
void smelt_run_by_session(int64_t threads, int64_t count, smelt_task task, void *data);

#endif
