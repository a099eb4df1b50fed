/* The outputs of a call: registers and views of them, made contiguous, in host memory or where the caller wants
   them. */
#include "executor/run/outputs.h"

/* Whether elements lie one after the other. */
static bool
lie_plainly(const Output *output, int64_t rank)
{
    int64_t plain[SMELT_MAX_RANK];
    bool contiguous = true;
    smelt_contiguous_strides(output->sizes, rank, plain);
    for (int64_t i = 0; i < rank; i++) {
        contiguous = contiguous && (output->sizes[i] == 1 || output->strides[i] == plain[i]);
    }
    return contiguous;
}

/* A view of a register, inside of it. */
static smelt_status
find_view(const Run *run, const ReturnedRecord *returned, const int64_t *symbols, char *data, int64_t bytes,
          Output *output, const char *name, smelt_error *error)
{
    const Table *table = run->table;
    const int64_t item = table_item_size(table->registers[returned->register_].dtype);
    int64_t offset, last;
    bool fits = table_evaluate(table, returned->offset, symbols, &offset) && offset >= 0;
    last = offset;
    for (int64_t i = 0; fits && i < returned->rank; i++) {
        int64_t step;
        fits = table_evaluate(table, table->references[returned->dims + i].number, symbols, &output->sizes[i])
               && table_evaluate(table, table->references[returned->strides + i].number, symbols, &output->strides[i])
               && output->sizes[i] >= 0 && output->strides[i] >= 0
               && (output->sizes[i] == 0
                   || (!__builtin_mul_overflow(output->sizes[i] - 1, output->strides[i], &step)
                       && !__builtin_add_overflow(last, step, &last)));
    }
    output->bytes = fits ? smelt_sized_bytes(output->sizes, returned->rank, item) : -1;
    if (output->bytes < 0 || (output->bytes && last >= bytes / item)) {
        return smelt_fail(error, SMELT_ERROR_FILE, "output %s lies outside of its register", name);
    }
    output->contiguous = lie_plainly(output, returned->rank);
    output->data = output->bytes ? data + offset * item : run->nothing;
    output->span = (last - offset + 1) * item;
    return SMELT_OK;
}

/* All of a register; those of state and constants may have strides of their own. */
static smelt_status
find_register(const Run *run, int64_t number, const RegisterRecord *record, char *data, int64_t bytes, Output *output,
              const char *name, smelt_error *error)
{
    const Table *table = run->table;
    for (int64_t i = 0; i < record->rank; i++) {
        output->sizes[i] = run_size(run, number, i);
    }
    output->bytes = smelt_sized_bytes(output->sizes, record->rank, table_item_size(record->dtype));
    if (output->bytes < 0) {
        return smelt_fail(error, SMELT_ERROR_FILE, "output %s is too large", name);
    }
    for (int64_t i = 0; i < record->stride_count; i++) {
        output->strides[i] = table->references[record->strides + i].number;
    }
    output->contiguous = record->stride_count == 0 || lie_plainly(output, record->rank);
    output->data = output->bytes ? data : run->nothing;
    output->span = record->stride_count ? bytes : output->bytes;
    return SMELT_OK;
}

/* Room for an output, so that nothing is missing once the model has written its state. */
static smelt_status
reserve(Run *run, Output *output, bool is_own, const char *name, smelt_error *error)
{
    const bool is_strided = output->bytes && !output->contiguous, on_device = run->device;
    if (output->bound && (uint64_t)output->bytes > output->bound_bytes) {
        return smelt_fail(error, SMELT_ERROR_SIZE, "output %s has %lld bytes, and was given room for %zu", name,
                          (long long)output->bytes, output->bound_bytes);
    }
    output->is_copied = is_strided || (output->bytes && !output->bound && (on_device || !is_own));
    if ((output->is_copied && !smelt_block_fits(run->allocator, &output->copy, output->bytes))
        || (is_strided && on_device && !smelt_block_fits(run->allocator, &run->fetched, output->span))) {
        return smelt_fail(error, SMELT_ERROR_MEMORY, "no memory for output %s", name);
    }
    return SMELT_OK;
}

/* Elements one after the other in the session's own memory of the host. */
static smelt_status
gather(Run *run, Output *output, int64_t item, smelt_error *error)
{
    int64_t plain[SMELT_MAX_RANK];
    const char *from = output->data;
    if (run->device) {
        const smelt_status status = run_fetch(run, run->fetched.memory, from, output->span, error);
        if (status) {
            return status;
        }
        from = run->fetched.memory;
    }
    smelt_contiguous_strides(output->sizes, output->tensor.rank, plain);
    smelt_copy_strided(output->copy.memory, plain, from, output->strides, output->sizes, output->tensor.rank, item);
    output->tensor.data = output->copy.memory;
    return SMELT_OK;
}

/* To memory of the caller's, or to the host from a GPU. */
static smelt_status
hand_over(Run *run, Output *output, int64_t item, smelt_error *error)
{
    const bool is_there = output->bound && run_is_there(run, output->bound);
    output->tensor.data = (char *)output->data;
    if (output->bytes && !output->contiguous) {
        const smelt_status status = gather(run, output, item, error);
        if (status || !output->bound) {
            return status;
        }
        const char *from = output->tensor.data;
        output->tensor.data = output->bound;
        if (is_there) {
            return run_copy(run, TO_REGISTERS, output->bound, from, output->bytes, error);
        }
        smelt_copy_bytes(output->bound, from, output->bytes);
        return SMELT_OK;
    }
    if (is_there) {
        output->tensor.data = output->bound;
        return run_copy(run, WITHIN_REGISTERS, output->bound, output->data, output->bytes, error);
    }
    if (!output->bound && !output->is_copied) {
        return SMELT_OK;
    }
    output->tensor.data = output->bound ? output->bound : output->copy.memory;
    return run_copy(run, TO_HOST, output->tensor.data, output->data, output->bytes, error); /* the call waits for it */
}

static smelt_status
reserve_output(Run *run, size_t number, const ReturnedRecord *returned, const int64_t *symbols,
               smelt_error *error)
{
    const Table *table = run->table;
    const char *name = table_string(table, table->outputs[number].name);
    Output *output = &run->outputs[number];
    output->tensor = (smelt_tensor){.dtype = SMELT_NONE, .sizes = output->sizes};
    if (returned->register_ < 0) {
        return SMELT_OK;
    }
    const RegisterRecord *record = &table->registers[returned->register_];
    int64_t bytes;
    char *data = run_data(run, returned->register_, &bytes);
    if (!data) {
        return smelt_fail(error, SMELT_ERROR_FILE, "output %s was never made", name);
    }
    const bool is_view = returned->offset >= 0;
    output->tensor.dtype = (smelt_dtype)record->dtype;
    output->tensor.rank = (int)(is_view ? returned->rank : record->rank);
    const smelt_status status
        = is_view ? find_view(run, returned, symbols, data, bytes, output, name, error)
                  : find_register(run, returned->register_, record, data, bytes, output, name, error);
    return status ? status : reserve(run, output, record->kind == LOCAL_REGISTER, name, error);
}

smelt_status
smelt_reserve_outputs(Run *run, const VariantRecord *variant, const int64_t *symbols, smelt_error *error)
{
    smelt_status status = SMELT_OK;
    for (int64_t i = 0; !status && i < variant->output_count; i++) {
        const ReturnedRecord *returned = &run->table->returned[variant->outputs + i];
        status = reserve_output(run, (size_t)i, returned, symbols, error);
    }
    return status;
}

smelt_status
smelt_take_outputs(Run *run, const VariantRecord *variant, smelt_error *error)
{
    smelt_status status = SMELT_OK;
    for (int64_t i = 0; !status && i < variant->output_count; i++) {
        Output *output = &run->outputs[i];
        if (output->tensor.dtype != SMELT_NONE) {
            status = hand_over(run, output, table_item_size(output->tensor.dtype), error);
        }
    }
    return status;
}
