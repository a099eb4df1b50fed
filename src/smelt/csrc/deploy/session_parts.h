/* A session: registers, memory and threads of one call at a time. */
#ifndef SMELT_DEPLOY_SESSION_PARTS_H
#define SMELT_DEPLOY_SESSION_PARTS_H

#include "deploy/blocks.h"
#include "deploy/model.h"
#include "executor/thread_pool.h"

/* A register while it runs. What it holds is ready or not: an input that was not given, a local one that nothing has
   produced. A local one has two blocks, so that a variant may read it and produce it anew. Of the others `spare` is a
   copy from before the call wrote to it, if `is_saved`. */
typedef struct {
    char *data;
    int64_t bytes;
    int64_t *sizes;
    bool ready;
    bool is_saved;
    bool staged; /* an input that was copied: not contiguous, not aligned, or not where registers are */
    int64_t number; /* of an input of one element, its bytes, wherever it is */
    Block current, spare;
    Block host; /* of an input on its way to a GPU */
} Register;

/* What a variant comes to for certain values of its symbols; it is kept until they differ. */
typedef struct {
    int64_t offset, bytes; /* of SIZES: where its numbers begin */
    char *pointer;         /* set for each run */
} PlannedValue;

_Static_assert(sizeof(PlannedValue) == 3 * sizeof(int64_t), "plans are words");

typedef struct {
    bool valid;
    void *memory; /* one allocation for all that follows */
    size_t words;
    int64_t arena_bytes;
    int64_t *symbols;
    int64_t *produced_bytes, *produced_sizes;
    int64_t *step_bytes; /* of a launch its workspace, of a copy its length */
    int64_t *numbers;
    PlannedValue *values;
} Plan;

/* Elements of a register that a call returns: contiguous or not. */
typedef struct {
    const char *data;
    int64_t bytes, span; /* of all elements, and from the first to the last */
    int64_t strides[SMELT_MAX_RANK];
    bool contiguous;
} Elements;

typedef struct {
    smelt_tensor tensor;
    Elements elements;
    int64_t sizes[SMELT_MAX_RANK];
    Block copy;
    void *bound; /* memory of the caller's, or NULL */
    size_t bound_bytes;
} Output;

struct smelt_session {
    smelt_model *model;
    smelt_allocator allocator;
    smelt_allocator memory; /* of registers, the arena and workspaces: the host's, or that of a GPU */
    CudaStream stream;
    Threads threads;
    int64_t most_states;
    atomic_flag busy;
    bool returned;
    int64_t state, variant; /* where the last call ended */
    Register *registers;
    int64_t *saved; /* registers with `is_saved`, in the order in which they were written */
    int64_t saved_count;
    int64_t *register_sizes;
    size_t register_size_count;
    Plan *plans;      /* of each variant */
    Output *outputs;
    int64_t *symbols; /* while a variant is tried */
    int64_t *groups;  /* of each group of dimensions: its size in this call, -1: not known yet */
    void **buffers;   /* of one launch */
    void **parameters; /* of one that is grids */
    Block arena, workspace;
    char *state_data; /* the STATE section */
    size_t state_mapped; /* bytes that are mapped from the file; 0: allocated */
    char *state_map;
    Block fetched; /* what a view shows of a GPU's memory */
    char nothing[64];
    char *empty; /* where tensors without elements are */
};

#endif
