/* The entry of a static model: runs its table with memory of the caller's, which it keeps nothing in between calls.

   An object file of a model has this, executor/run and executor/expression.c as LLVM bitcode (tools/static_core.py), its
   table and weights, and what is declared and not defined here (codegen/static/build.py). */
#include "executor/run/run.h"

/* What NAME_run returns; codegen/static/header.py writes them into NAME.h. A model's own errors have others. */
enum { OK, WRONG_SIZE, NO_VARIANT, NO_MEMORY, SMALL_OUTPUT, MISSING_INPUT };

/* NAME_session and NAME_tensor; `shape` has as many sizes as the model needs. */
typedef struct {
    char *state, *memory;
    int64_t bytes, needed;
    int32_t input, dimension;
} Session;

typedef struct {
    void *data;
    int64_t bytes;
    int32_t rank, dtype;
    int64_t shape[];
} Tensor;

/* A model in its object file. */
typedef struct {
    const Table *table;
    const char *constants, *state;
    const int32_t *raised; /* of each variant that raises an error: its code */
    const int64_t *const *plans;
    int64_t state_bytes, rank;
} Model;

/* Kernel `number` of the model. */
void smelt_launch(int64_t number, void **buffers, void *workspace);

/* What kernels share their points out by (executor/parallel.h): one thread runs all of them. */
int64_t
smelt_parallel_for(void (*part)(void *, char *, int64_t, int64_t, bool), void *buffers, char *workspace, int64_t threads,
                   int64_t most, int64_t extent, int64_t chunk_bytes)
{
    (void)threads, (void)most, (void)chunk_bytes;
    part(buffers, workspace, 0, extent, true);
    return 1;
}

/* --- memory -------------------------------------------------------------------------------------------------- */

/* The caller's memory: pieces one after the other, each behind its length. Only where nothing is left behind the last
   one, those are looked at that were released. */
typedef struct {
    char *memory;
    int64_t bytes, end, needed;
} Region;

typedef struct {
    _Alignas(FILE_ALIGN) int64_t bytes; /* with this; negative: it is free */
} Piece;

static Piece *
piece_at(const Region *region, int64_t offset)
{
    return (Piece *)(region->memory + offset);
}

/* Where so many bytes are free, -1: nowhere. Free pieces beside each other become one. */
static int64_t
find_free(Region *region, int64_t bytes)
{
    for (int64_t at = 0, end; at < region->end; at = end) {
        Piece *piece = piece_at(region, at);
        end = at + (piece->bytes < 0 ? -piece->bytes : piece->bytes);
        if (piece->bytes > 0) {
            continue;
        }
        while (end < region->end && piece_at(region, end)->bytes < 0) {
            end -= piece_at(region, end)->bytes;
        }
        piece->bytes = at - end;
        if (end == region->end) {
            region->end = at;
        }
        else if (end - at >= bytes) {
            if (end - at > bytes) {
                piece_at(region, at + bytes)->bytes = at + bytes - end;
            }
            return at;
        }
    }
    return bytes <= region->bytes - region->end ? region->end : -1;
}

static void *
allocate_piece(void *context, size_t size, size_t alignment)
{
    (void)alignment; /* FILE_ALIGN, as everything here */
    Region *region = context;
    const int64_t bytes = ((int64_t)size + 2 * FILE_ALIGN - 1) / FILE_ALIGN * FILE_ALIGN;
    const int64_t at = bytes <= region->bytes - region->end ? region->end : find_free(region, bytes);
    if (at < 0) {
        region->needed = region->end + bytes;
        return NULL;
    }
    region->end = at == region->end ? at + bytes : region->end;
    piece_at(region, at)->bytes = bytes;
    return piece_at(region, at) + 1;
}

static void
release_piece(void *context, void *memory, size_t size)
{
    (void)size;
    Region *region = context;
    Piece *piece = (Piece *)memory - 1;
    if ((char *)piece + piece->bytes == region->memory + region->end) {
        region->end -= piece->bytes;
        return;
    }
    piece->bytes = -piece->bytes;
}

/* --- a call -------------------------------------------------------------------------------------------------- */

static smelt_status
launch_by_number(Run *run, const VariantRecord *variant, const Plan *plan, const LaunchRecord *launch, smelt_error *error)
{
    (void)variant, (void)plan, (void)error;
    smelt_launch(launch->kernel, run->buffers, run->workspace.memory);
    return SMELT_OK;
}

static Tensor *
tensor_of(const Model *model, void *tensors, int64_t number)
{
    return (Tensor *)((char *)tensors + number * ((int64_t)sizeof(Tensor) + 8 * model->rank));
}

/* Inputs are used where they are. */
static int
take_inputs(Run *run, Session *session, const Model *model, void *inputs)
{
    const Table *table = model->table;
    session->input = -1;
    for (int64_t i = 0; i < table->counts[REGISTERS]; i++) {
        const RegisterRecord *record = &table->registers[i];
        if (record->kind != INPUT_REGISTER) {
            continue;
        }
        const Tensor *tensor = tensor_of(model, inputs, ++session->input);
        Register *taken = &run->registers[i];
        session->dimension = -1;
        if (tensor->data == NULL) {
            if (record->optional) {
                continue;
            }
            return MISSING_INPUT;
        }
        session->dimension = (int32_t)smelt_run_wrong_dimension(run, record, tensor->shape);
        taken->bytes = smelt_sized_bytes(tensor->shape, record->rank, table_item_size(record->dtype));
        if (session->dimension >= 0 || taken->bytes < 0) {
            return WRONG_SIZE;
        }
        for (int64_t k = 0; k < record->rank; k++) {
            taken->sizes[k] = tensor->shape[k];
        }
        taken->data = tensor->data;
        taken->ready = true;
    }
    return OK;
}

static void
give_outputs(const Run *run, const Model *model, void *outputs)
{
    for (int64_t i = 0; i < model->table->counts[OUTPUTS]; i++) {
        const Output *output = &run->outputs[i];
        Tensor *tensor = tensor_of(model, outputs, i);
        const bool is_none = output->tensor.dtype == SMELT_NONE;
        tensor->data = is_none ? NULL : output->tensor.data;
        tensor->bytes = is_none ? 0 : output->bytes;
        tensor->rank = output->tensor.rank;
        tensor->dtype = output->tensor.dtype;
        for (int32_t k = 0; k < tensor->rank; k++) {
            tensor->shape[k] = output->sizes[k];
        }
    }
}

static bool
is_small(const Run *run)
{
    for (int64_t i = 0; i < run->table->counts[OUTPUTS]; i++) {
        const Output *output = &run->outputs[i];
        if (output->bound && (uint64_t)output->bytes > output->bound_bytes) {
            return true;
        }
    }
    return false;
}

static int
code_of(const Run *run, const Model *model, smelt_status status)
{
    switch (status) {
    case SMELT_ERROR_RAISED:
        return model->raised[run->table->states[run->state].variants + run->variant];
    case SMELT_ERROR_MEMORY:
        return NO_MEMORY;
    case SMELT_ERROR_SIZE: /* an output, or more than any memory has */
        return is_small(run) ? SMALL_OUTPUT : NO_MEMORY;
    default:
        return status ? NO_VARIANT : OK;
    }
}

static int
run_inside(Run *run, Session *session, const Model *model, void *inputs, void *outputs)
{
    if (!smelt_run_begin(run)) {
        return NO_MEMORY;
    }
    const int code = take_inputs(run, session, model, inputs);
    if (code) {
        return code;
    }
    for (int64_t i = 0; i < model->table->counts[OUTPUTS]; i++) {
        const Tensor *tensor = tensor_of(model, outputs, i);
        run->outputs[i].bound = tensor->data;
        run->outputs[i].bound_bytes = tensor->bytes > 0 ? (size_t)tensor->bytes : 0;
    }
    const smelt_status status = smelt_run_states(run, NULL);
    if (!status) {
        give_outputs(run, model, outputs);
    }
    return code_of(run, model, status);
}

int
smelt_run_model(const Model *model, Session *session, void *inputs, void *outputs)
{
    Region region = {.memory = session->memory, .bytes = session->bytes};
    const smelt_allocator allocator = {&region, allocate_piece, release_piece};
    Run *run = smelt_allocate(&allocator, 1, sizeof *run);
    int code = NO_MEMORY;
    if (run) {
        run->table = model->table;
        run->allocator = run->memory = &allocator;
        run->launch = launch_by_number;
        run->constants = model->constants;
        run->made_plans = model->plans;
        run->state_data = session->state;
        run->nothing = run->empty = session->memory;
        run->threads = 1;
        code = run_inside(run, session, model, inputs, outputs);
    }
    if (code == NO_MEMORY) {
        session->needed = region.needed > session->bytes ? region.needed : MOST_BYTES;
    }
    return code;
}

void
smelt_reset_model(const Model *model, Session *session, char *state, char *memory, int64_t bytes)
{
    session->state = state;
    session->memory = memory;
    session->bytes = bytes;
    smelt_copy_bytes(state, model->state, model->state_bytes);
}
