/* The thread pool of a session, which shares out the points of a kernel. */
#ifndef SMELT_DEPLOY_THREADS_H
#define SMELT_DEPLOY_THREADS_H

#include "smelt.h"

#include <stdbool.h>

enum { MOST_THREADS = 1024 };

typedef struct Pool Pool;

/* How a session runs the chunks of a kernel: by its pool, or by the caller's function. */
typedef struct {
    int64_t threads;
    smelt_parallel_for_function parallel_for;
    void *context;
    Pool *pool; /* NULL: not started yet, or not needed */
    const smelt_allocator *allocator;
    bool alone; /* threads could not be started, or were lost in a fork */
} Parallel;

/* From here to the end, kernels that this thread runs share their work out by it. */
Parallel *smelt_parallel_begin(Parallel *parallel);
void smelt_parallel_end(Parallel *before);

/* Ends the threads. */
void smelt_parallel_stop(Parallel *parallel);

/* How many processors this process may use. */
int smelt_processor_count(void);

/* What generated code calls: into how many chunks the points were divided. */
typedef void (*smelt_part)(void *buffers, char *workspace, int64_t first, int64_t last, bool ends);
int64_t smelt_parallel_for(smelt_part part, void *buffers, char *workspace, int64_t threads, int64_t most,
                           int64_t extent, int64_t chunk_bytes);

#endif
