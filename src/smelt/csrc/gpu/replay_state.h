/* What the files of replay.c know together: a program's CUDA graphs, and what they depend on. */
#ifndef SMELT_REPLAY_STATE_H
#define SMELT_REPLAY_STATE_H

#include "executor/cuda_graph.h"
#include "runner/run.h"

#include <pthread.h>
#include <stdatomic.h>

enum { CUDA_KIND = 1 }; /* the number of such devices in PyTorch's C interface */
enum { MOST_GRAPHS = 8, MOST_SEEN = 8, HOST_PHASES = 3 };

/* Memory that a call returns. */
typedef struct {
    int64_t value;
    int64_t bytes;
    bool is_library; /* a library call returns it */
    Value kept;      /* the memory itself, while steps are recorded that write elsewhere */
} Result;

/* A graph, and what must be as it was when it was recorded. */
typedef struct {
    CudaGraph *graph;
    PyObject *memory; /* keeps what library calls allocated while it was recorded */
    CudaStream stream;
    int64_t settings;
    int64_t used; /* in which call it was launched last */
    bool copies; /* results that library calls write are copied */
    uint64_t *addresses;
} Recorded;

typedef struct Replay Replay;

struct Replay {
    Replay *next, *previous; /* of the process's, in a ring that begins with `every`; with the GIL */
    pthread_mutex_t lock;
    int64_t value_count, result_count;
    bool *is_outside; /* of each value: it is there before the first step */
    bool *is_used;    /* of each value: library calls use its address */
    bool *is_result;  /* of each value: allocated for each call, and used by library calls */
    bool *is_asked;   /* of each value: a number that the host was asked for */
    Result *results;
    uint64_t *addresses; /* of the call at hand */
    uint64_t seen[MOST_SEEN]; /* hashes of what library calls used in the last calls */
    Recorded graphs[MOST_GRAPHS];
    int graph_count;
    int failures, restless;
    bool copies;
    bool is_forced;       /* graphs are recorded whether they pay or not */
    atomic_bool is_slow;  /* the GPU waited for the host when steps were launched one by one */
    int64_t calls, launched, launched_before; /* `launched` when graphs were freed last */
    int64_t host_nanoseconds[HOST_PHASES]; /* of launched calls: allocating results, finding the graph, launching it */
    const CudaDriver *driver; /* once one was asked for */
    PyObject *questions;      /* for the settings of PyTorch that recorded calls keep */
    const char *why_not; /* the last call was done step by step */
};

static inline bool
is_on_gpu(const Table *table, int64_t value)
{
    return table->devices[table->tensors[value].device].kind == CUDA_KIND;
}

#endif
