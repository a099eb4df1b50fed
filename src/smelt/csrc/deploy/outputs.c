/* The outputs of a call: registers and views of them, made contiguous, in host memory or where the caller wants
   them. */
#include "deploy/outputs.h"

#include "executor/check.h"
#include "deploy/memory.h"

#include <string.h>

/* Whether elements lie one after the other. */
static bool
lie_plainly(const Elements *elements, const int64_t *sizes, int64_t rank)
{
    int64_t plain[SMELT_MAX_RANK];
    bool contiguous = true;
    smelt_contiguous_strides(sizes, rank, plain);
    for (int64_t i = 0; i < rank; i++) {
        contiguous = contiguous && (sizes[i] == 1 || elements->strides[i] == plain[i]);
    }
    return contiguous;
}

/* A view of a register, inside of it. */
static smelt_status
find_view(smelt_session *session, const ReturnedRecord *returned, const int64_t *symbols, Output *output,
          Elements *elements, const char *name, smelt_error *error)
{
    const Table *table = &session->model->table;
    const Register *source = &session->registers[returned->register_];
    const int64_t item = smelt_item_size(table->registers[returned->register_].dtype);
    int64_t offset, last;
    bool fits = table_evaluate(table, returned->offset, symbols, &offset) && offset >= 0;
    last = offset;
    for (int64_t i = 0; fits && i < returned->rank; i++) {
        int64_t step;
        fits = table_evaluate(table, table->references[returned->dims + i].number, symbols, &output->sizes[i])
               && table_evaluate(table, table->references[returned->strides + i].number, symbols, &elements->strides[i])
               && output->sizes[i] >= 0 && elements->strides[i] >= 0
               && (output->sizes[i] == 0
                   || (!__builtin_mul_overflow(output->sizes[i] - 1, elements->strides[i], &step)
                       && !__builtin_add_overflow(last, step, &last)));
    }
    elements->bytes = fits ? smelt_sized_bytes(output->sizes, returned->rank, item) : -1;
    if (elements->bytes < 0 || (elements->bytes && last >= source->bytes / item)) {
        return smelt_fail(error, SMELT_ERROR_FILE, "output %s lies outside of its register", name);
    }
    elements->contiguous = lie_plainly(elements, output->sizes, returned->rank);
    elements->data = elements->bytes ? source->data + offset * item : session->nothing;
    elements->span = (last - offset + 1) * item;
    return SMELT_OK;
}

/* All of a register; those of state and constants may have strides of their own. */
static smelt_status
find_register(smelt_session *session, const RegisterRecord *record, const Register *source, Output *output,
              Elements *elements, const char *name, smelt_error *error)
{
    const Table *table = &session->model->table;
    memcpy(output->sizes, source->sizes, sizeof(int64_t) * (size_t)record->rank);
    elements->bytes = smelt_sized_bytes(output->sizes, record->rank, smelt_item_size(record->dtype));
    if (elements->bytes < 0) {
        return smelt_fail(error, SMELT_ERROR_FILE, "output %s is too large", name);
    }
    for (int64_t i = 0; i < record->stride_count; i++) {
        elements->strides[i] = table->references[record->strides + i].number;
    }
    elements->contiguous = record->stride_count == 0 || lie_plainly(elements, output->sizes, record->rank);
    elements->data = elements->bytes ? source->data : session->nothing;
    elements->span = record->stride_count ? source->bytes : elements->bytes;
    return SMELT_OK;
}

/* Room for an output, so that nothing is missing once the model has written its state. */
static smelt_status
reserve(smelt_session *session, Output *output, const char *name, smelt_error *error)
{
    const Elements *elements = &output->elements;
    const bool is_strided = elements->bytes && !elements->contiguous, on_cuda = session->model->on_cuda;
    if (output->bound && (uint64_t)elements->bytes > output->bound_bytes) {
        return smelt_fail(error, SMELT_ERROR_SIZE, "output %s has %lld bytes, and was given room for %zu", name,
                          (long long)elements->bytes, output->bound_bytes);
    }
    const bool is_copied = is_strided || (on_cuda && !output->bound);
    if ((is_copied && !smelt_block_fits(&session->allocator, &output->copy, elements->bytes))
        || (is_strided && on_cuda && !smelt_block_fits(&session->allocator, &session->fetched, elements->span))) {
        return smelt_fail(error, SMELT_ERROR_MEMORY, "no memory for output %s", name);
    }
    return SMELT_OK;
}

/* Elements one after the other in the session's own memory of the host. */
static smelt_status
gather(smelt_session *session, Output *output, int64_t item, smelt_error *error)
{
    const Elements *elements = &output->elements;
    int64_t plain[SMELT_MAX_RANK];
    const char *from = elements->data;
    if (session->model->on_cuda) {
        const smelt_status status = smelt_fetch(session, session->fetched.memory, from, elements->span, error);
        if (status) {
            return status;
        }
        from = session->fetched.memory;
    }
    smelt_contiguous_strides(output->sizes, output->tensor.rank, plain);
    smelt_copy_strided(output->copy.memory, plain, from, elements->strides, output->sizes, output->tensor.rank, item);
    output->tensor.data = output->copy.memory;
    return SMELT_OK;
}

/* To memory of the caller's, or to the host from a GPU. */
static smelt_status
hand_over(smelt_session *session, Output *output, int64_t item, smelt_error *error)
{
    const Elements *elements = &output->elements;
    const bool is_there = output->bound && smelt_is_there(session, output->bound);
    output->tensor.data = (char *)elements->data;
    if (elements->bytes && !elements->contiguous) {
        const smelt_status status = gather(session, output, item, error);
        if (status || !output->bound) {
            return status;
        }
        const char *from = output->tensor.data;
        output->tensor.data = output->bound;
        if (is_there) {
            return smelt_put(session, output->bound, from, elements->bytes, error);
        }
        memmove(output->bound, from, (size_t)elements->bytes);
        return SMELT_OK;
    }
    if (is_there) {
        output->tensor.data = output->bound;
        return smelt_move(session, output->bound, elements->data, elements->bytes, error);
    }
    if (!output->bound && (!session->model->on_cuda || elements->bytes == 0)) {
        return SMELT_OK;
    }
    output->tensor.data = output->bound ? output->bound : output->copy.memory;
    return smelt_begin_fetch(session, output->tensor.data, elements->data, elements->bytes, error); /* the call waits for it */
}

static smelt_status
reserve_output(smelt_session *session, size_t number, const ReturnedRecord *returned, const int64_t *symbols,
               smelt_error *error)
{
    const Table *table = &session->model->table;
    const char *name = session->model->outputs.infos[number].name;
    Output *output = &session->outputs[number];
    output->tensor = (smelt_tensor){.dtype = SMELT_NONE, .sizes = output->sizes};
    if (returned->register_ < 0) {
        return SMELT_OK;
    }
    const RegisterRecord *record = &table->registers[returned->register_];
    const Register *source = &session->registers[returned->register_];
    if (!source->ready) {
        return smelt_fail(error, SMELT_ERROR_FILE, "output %s was never made", name);
    }
    const bool is_view = returned->offset >= 0;
    output->tensor.dtype = (smelt_dtype)record->dtype;
    output->tensor.rank = (int)(is_view ? returned->rank : record->rank);
    const smelt_status status
        = is_view ? find_view(session, returned, symbols, output, &output->elements, name, error)
                  : find_register(session, record, source, output, &output->elements, name, error);
    return status ? status : reserve(session, output, name, error);
}

smelt_status
smelt_reserve_outputs(smelt_session *session, const VariantRecord *variant, const int64_t *symbols, smelt_error *error)
{
    smelt_status status = SMELT_OK;
    for (int64_t i = 0; !status && i < variant->output_count; i++) {
        const ReturnedRecord *returned = &session->model->table.returned[variant->outputs + i];
        status = reserve_output(session, (size_t)i, returned, symbols, error);
    }
    return status;
}

smelt_status
smelt_take_outputs(smelt_session *session, const VariantRecord *variant, smelt_error *error)
{
    smelt_status status = SMELT_OK;
    for (int64_t i = 0; !status && i < variant->output_count; i++) {
        Output *output = &session->outputs[i];
        if (output->tensor.dtype != SMELT_NONE) {
            status = hand_over(session, output, smelt_item_size(output->tensor.dtype), error);
        }
    }
    return status;
}

/* --- questions ------------------------------------------------------------------------------------------------- */

smelt_status
smelt_output(const smelt_session *session, size_t number, smelt_tensor *output, smelt_error *error)
{
    if (session == NULL || output == NULL || number >= session->model->outputs.count) {
        return smelt_fail(error, SMELT_ERROR_ARGUMENT, "there is no output %zu", number);
    }
    if (!session->returned) {
        return smelt_fail(error, SMELT_ERROR_ARGUMENT, "there are no outputs before a call that succeeds");
    }
    *output = session->outputs[number].tensor;
    return SMELT_OK;
}

smelt_status
smelt_bind_output(smelt_session *session, size_t number, void *data, size_t bytes, smelt_error *error)
{
    if (session == NULL || number >= session->model->outputs.count) {
        return smelt_fail(error, SMELT_ERROR_ARGUMENT, "there is no output %zu", number);
    }
    session->outputs[number].bound = data;
    session->outputs[number].bound_bytes = data ? bytes : 0;
    return SMELT_OK;
}

smelt_status
smelt_returned(const smelt_session *session, int64_t *state, int64_t *variant, smelt_error *error)
{
    if (session == NULL || state == NULL || variant == NULL || !session->returned) {
        return smelt_fail(error, SMELT_ERROR_ARGUMENT, "no call has returned");
    }
    *state = session->state;
    *variant = session->variant;
    return SMELT_OK;
}
