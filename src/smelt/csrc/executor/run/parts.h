/* A run of a table: what registers hold, plans of variants, and outputs. It needs no C library and no operating system:
   its owner gives it memory, and functions that launch kernels and reach the memory of a GPU. */
#ifndef SMELT_EXECUTOR_RUN_PARTS_H
#define SMELT_EXECUTOR_RUN_PARTS_H

#include "executor/run/blocks.h"
#include "executor/table.h"

/* A register while it runs, if it is not a constant. What it holds is ready or not: an input that was not given, a local
   one that nothing has produced. A local one has two blocks, so that a variant may read it and produce it anew. Of the
   others `spare` is a copy from before the call wrote to it, if `is_saved`. */
typedef struct {
    char *data;
    int64_t bytes;
    int64_t *sizes;
    int64_t number; /* of an input of one element, its bytes, where registers are on a device */
    Block current, spare;
    bool ready, is_saved;
} Register;

/* What a variant comes to for certain values of its symbols; it is kept until they differ. */
typedef struct {
    int64_t offset, bytes; /* of SIZES: where its numbers begin */
    char *pointer;         /* set for each run */
} PlannedValue;

_Static_assert(sizeof(PlannedValue) == 3 * sizeof(int64_t), "plans are words");

typedef struct {
    bool valid;
    int64_t *memory; /* one allocation for all that follows */
    size_t words;
    int64_t *arena_bytes, *workspace_bytes; /* the latter of the launch that needs the most */
    int64_t *symbols;
    int64_t *produced_bytes, *produced_sizes;
    int64_t *step_bytes; /* of a launch its workspace, of a copy its length */
    int64_t *numbers;
    PlannedValue *values;
} Plan;

/* What a call returns: elements of a register, contiguous or not, and the tensor that is made of them. It is a
   copy if that is an input, state or a constant, or not contiguous, or not the host's. */
typedef struct {
    smelt_tensor tensor;
    int64_t *sizes, *strides;
    const char *data;
    int64_t bytes, span; /* of all elements, and from the first to the last */
    bool contiguous, is_copied;
    Block copy;
    void *bound; /* memory of the caller's, or NULL */
    size_t bound_bytes;
} Output;

typedef struct Run Run;

/* From the host to where registers are, within, and back. Copies back are done once `settle` returns; all are in the
   order of what runs there. */
typedef enum { TO_REGISTERS, WITHIN_REGISTERS, TO_HOST } Direction;

/* Where registers are, if that is not memory of the host. */
typedef struct {
    smelt_status (*copy)(Run *run, Direction direction, void *to, const void *from, int64_t bytes, smelt_error *error);
    smelt_status (*settle)(Run *run, smelt_error *error); /* all that was begun is done, or what went wrong with it */
    bool (*is_there)(const Run *run, const void *address); /* whether an address of the caller's is such memory */
} Device;

struct Run {
    /* Set by the owner. */
    const Table *table;
    const smelt_allocator *allocator;
    const smelt_allocator *memory; /* of registers, the arena and workspaces: the host's, or that of a device */
    const Device *device;          /* NULL: the host */
    smelt_status (*launch)(Run *run, const VariantRecord *variant, const Plan *plan, const LaunchRecord *launch,
                           smelt_error *error); /* a kernel on `buffers` */
    const char *constants;
    char *state_data;
    const int64_t *const *made_plans; /* of each variant, the words of its plan or NULL; NULL: there are none */
    char *nothing, *empty; /* where tensors without elements are: 64 bytes of the host, and where registers are */
    int64_t threads;
    int64_t most_states; /* that a call may go through; 0: any number */

    int64_t state, variant; /* where the last call ended, the latter counted within its state */
    int64_t size_count, most_rank, most_symbols, most_buffers; /* of all registers, of one, of a variant, of a kernel */
    void *parts;            /* one allocation for the arrays that follow */
    size_t part_bytes;
    Register *registers;
    Plan *plans; /* of each variant */
    Output *outputs;
    int64_t *sizes;         /* of registers */
    int64_t *output_sizes;  /* of outputs, and their strides */
    int64_t *saved;         /* registers with `is_saved`, in the order in which they were written */
    int64_t saved_count;
    int64_t *symbols;       /* while a variant is tried */
    int64_t *named;         /* of each string: ~ the size of inputs' dimensions with this name; 0: it is not known yet */
    void **buffers;         /* of one launch */
    Block arena, workspace;
    Block fetched; /* what a view shows of a device's memory */
};

/* The arrays of a run whose owner has set its part, and places for constants and state. False: there is no memory. */
bool smelt_run_begin(Run *run);
void smelt_run_end(Run *run);

/* Before the inputs of a further call are taken, for each of them: no size of its names is known. */
void smelt_run_forget(Run *run, const RegisterRecord *record);

/* The first dimension of an input that is out of its bounds or has another size than one of its name; -1: none. */
int64_t smelt_run_wrong_dimension(Run *run, const RegisterRecord *record, const int64_t *sizes);

/* Allocates the plan of a variant. False: there is no memory. */
bool smelt_run_make_plan(const Run *run, const VariantRecord *variant, Plan *plan);

/* Bytes that a run, its arrays and all its plans take, of an allocator with a head of FILE_ALIGN bytes for each. */
int64_t smelt_run_bytes(const Table *table);

/* What a register holds, constants too: NULL where that is nothing. */
static inline char *
run_data(const Run *run, int64_t number, int64_t *bytes)
{
    const RegisterRecord *record = &run->table->registers[number];
    if (record->kind == CONSTANT_REGISTER) {
        *bytes = record->bytes;
        return (char *)run->constants + record->data; /* never written: no value that is may be one */
    }
    *bytes = run->registers[number].bytes;
    return run->registers[number].ready ? run->registers[number].data : NULL;
}

static inline int64_t
run_size(const Run *run, int64_t number, int64_t dimension)
{
    const RegisterRecord *record = &run->table->registers[number];
    return record->kind == CONSTANT_REGISTER ? run->table->dims[record->dims + dimension].low
                                             : run->registers[number].sizes[dimension];
}

static inline smelt_status
run_copy(Run *run, Direction direction, void *to, const void *from, int64_t bytes, smelt_error *error)
{
    if (bytes && run->device) {
        return run->device->copy(run, direction, to, from, bytes, error);
    }
    if (bytes) {
        smelt_copy_bytes(to, from, bytes);
    }
    return SMELT_OK;
}

static inline smelt_status
run_settle(Run *run, smelt_error *error)
{
    return run->device ? run->device->settle(run, error) : SMELT_OK;
}

/* To the host, and waits for it. */
static inline smelt_status
run_fetch(Run *run, void *to, const void *from, int64_t bytes, smelt_error *error)
{
    const smelt_status status = run_copy(run, TO_HOST, to, from, bytes, error);
    return status || bytes == 0 ? status : run_settle(run, error);
}

static inline bool
run_is_there(const Run *run, const void *address)
{
    return run->device && run->device->is_there(run, address);
}

#endif
