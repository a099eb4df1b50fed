/* The function by which the code of every kernel shares its points out between threads. */
#ifndef SMELT_EXECUTOR_PARALLEL_H
#define SMELT_EXECUTOR_PARALLEL_H

#include "executor/platform/platform.h"
#include "smelt.h"

#include <stdbool.h>

/* A kernel's work on the points from `first` to before `last`; `ends`: they are the last ones. */
typedef void (GENERATED_CODE *smelt_part)(void *buffers, char *workspace, int64_t first, int64_t last, bool ends);

/* What generated code calls: into how many chunks the points were divided, at most `most` and `threads`. Each chunk has
   `chunk_bytes` of the workspace. */
GENERATED_CODE int64_t smelt_parallel_for(smelt_part part, void *buffers, char *workspace, int64_t threads, int64_t most,
                           int64_t extent, int64_t chunk_bytes);

/* Runs task(data, 0) … task(data, count - 1) by at most `threads` threads, and returns once all have ended. */
typedef void (*smelt_chunk_runner)(int64_t threads, int64_t count, smelt_task task, void *data);

/* What runs chunks in this process from now on; at first the thread pool of the session that calls. NULL: nobody, and
   kernels have one chunk. */
void smelt_set_chunk_runner(smelt_chunk_runner runner);

#endif
