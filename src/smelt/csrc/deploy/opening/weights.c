/* Copies weights from a safetensors file to where the registers of an artifact have them. */
#include "deploy/opening/weights.h"

#include "deploy/opening/safetensors.h"
#include "deploy/opening/trust.h"
#include "executor/run/blocks.h"
#include "executor/table.h"

#include <stdio.h>
#include <string.h>

typedef struct {
    const File *file; /* the artifact */
    int64_t target;
    char *memory;
    WeightTensor *tensors;
    size_t count;
    smelt_error *error;
} Weights;

static bool
is_named(const WeightTensor *tensor, const Table *table, const RegisterRecord *record)
{
    const char *name = table_string(table, record->name);
    return tensor->name_bytes == strlen(name) && memcmp(tensor->name, name, tensor->name_bytes) == 0;
}

static WeightTensor *
find_tensor(const Weights *weights, const Table *table, const RegisterRecord *record)
{
    for (size_t i = 0; i < weights->count; i++) {
        if (is_named(&weights->tensors[i], table, record)) {
            return &weights->tensors[i];
        }
    }
    return NULL;
}

/* "float32[2,3]" */
static void
describe_shape(char *text, size_t room, smelt_dtype dtype, int64_t rank, const int64_t *sizes)
{
    size_t end = (size_t)snprintf(text, room, "%s[", smelt_dtype_name(dtype));
    for (int64_t i = 0; i < rank && end + 24 < room; i++) {
        end += (size_t)snprintf(text + end, room - end, i ? ",%lld" : "%lld", (long long)sizes[i]);
    }
    snprintf(text + end, room - end, "]");
}

/* Elements of a contiguous tensor to those of a register with strides. `compares`: whether they are the same, instead. */
static bool
place_elements(char *to, const char **from, const int64_t *sizes, const int64_t *strides, int64_t rank, int64_t item,
               bool compares)
{
    if (rank == 0) {
        const bool is_same = compares ? memcmp(to, *from, (size_t)item) == 0 : (memcpy(to, *from, (size_t)item), true);
        *from += item;
        return is_same;
    }
    for (int64_t i = 0; i < *sizes; i++) {
        if (!place_elements(to + i * *strides * item, from, sizes + 1, strides + 1, rank - 1, item, compares)) {
            return false;
        }
    }
    return true;
}

static smelt_status
place_register(const Weights *weights, const Table *table, const RegisterRecord *record, bool compares)
{
    const char *name = table_string(table, record->name);
    WeightTensor *tensor = find_tensor(weights, table, record);
    int64_t sizes[SMELT_MAX_RANK], strides[SMELT_MAX_RANK];
    for (int64_t i = 0; i < record->rank; i++) {
        sizes[i] = table->dims[record->dims + i].low;
    }
    char wanted[128], given[128];
    describe_shape(wanted, sizeof wanted, (smelt_dtype)record->dtype, record->rank, sizes);
    if (tensor == NULL) {
        return smelt_fail(weights->error, SMELT_ERROR_MISMATCH, "the file of weights has no %.80s, %s", name, wanted);
    }
    if (tensor->dtype != (smelt_dtype)record->dtype || tensor->rank != record->rank
        || memcmp(tensor->sizes, sizes, (size_t)record->rank * sizeof *sizes)) {
        describe_shape(given, sizeof given, tensor->dtype, tensor->rank, tensor->sizes);
        return smelt_fail(weights->error, SMELT_ERROR_MISMATCH, "weight %.60s is %s, and must be %s", name, given, wanted);
    }
    tensor->is_used = true;
    smelt_contiguous_strides(sizes, record->rank, strides);
    for (int64_t i = 0; i < record->stride_count; i++) {
        strides[i] = table->references[record->strides + i].number;
    }
    char *to = weights->memory + record->data;
    const char *from = tensor->data;
    bool is_same = true;
    if (tensor->bytes && record->stride_count == 0) {
        is_same = compares ? memcmp(to, from, tensor->bytes) == 0 : (memcpy(to, from, tensor->bytes), true);
    }
    else if (tensor->bytes) {
        is_same = place_elements(to, &from, sizes, strides, record->rank, table_item_size(record->dtype), compares);
    }
    return is_same ? SMELT_OK
                   : smelt_fail(weights->error, SMELT_ERROR_MISMATCH,
                                "weight %.100s shares memory with another of the model, and differs from it", name);
}

/* The table of an entry point, whose rules were checked where they matter. */
static smelt_status
read_table(const Weights *weights, int64_t target, int64_t entry, Table *table)
{
    const FileSection *section = file_table(weights->file, target, entry);
    return smelt_table_read(table, file_bytes(weights->file, section), section->bytes, 0, weights->error);
}

/* All of the target that runs; then once more to compare, for registers may overlap. */
static smelt_status
place_all(const Weights *weights)
{
    for (int compares = 0; compares < 2; compares++) {
        for (int64_t i = 0; i < weights->file->entries; i++) {
            Table table;
            smelt_status status = read_table(weights, weights->target, i, &table);
            for (int64_t k = 0; !status && k < table.counts[REGISTERS]; k++) {
                const RegisterRecord *record = &table.registers[k];
                status = record->kind == CONSTANT_REGISTER ? place_register(weights, &table, record, compares) : SMELT_OK;
            }
            if (status) {
                return status;
            }
        }
    }
    return SMELT_OK;
}

/* Whether code for another target has a weight that the one that runs does not need. */
static bool
is_of_another_target(const Weights *weights, const WeightTensor *tensor)
{
    for (int64_t i = 0; i < weights->file->targets * weights->file->entries; i++) {
        Table table;
        if (read_table(weights, i / weights->file->entries, i % weights->file->entries, &table)) {
            return false;
        }
        for (int64_t k = 0; k < table.counts[REGISTERS]; k++) {
            const RegisterRecord *record = &table.registers[k];
            if (record->kind == CONSTANT_REGISTER && is_named(tensor, &table, record)) {
                return true;
            }
        }
    }
    return false;
}

static smelt_status
use_file(Weights *weights, const File *from)
{
    smelt_status status = smelt_safetensors_read(from->data, from->size, weights->tensors, weights->count, &weights->count,
                                                 weights->error);
    status = status ? status : place_all(weights);
    for (size_t i = 0; !status && i < weights->count; i++) {
        const WeightTensor *tensor = &weights->tensors[i];
        if (!tensor->is_used && !is_of_another_target(weights, tensor)) {
            status = smelt_fail(weights->error, SMELT_ERROR_MISMATCH, "the file of weights has %.*s, which the model has not",
                                tensor->name_bytes < 100 ? (int)tensor->name_bytes : 100, tensor->name);
        }
    }
    return status;
}

/* With memory for the weights, which stays if all goes well, and for the list of tensors. */
static smelt_status
use_memory(Weights *weights, const File *from, const smelt_allocator *allocator)
{
    const size_t bytes = (size_t)weights->file->weights->bytes;
    smelt_status status = smelt_safetensors_read(from->data, from->size, NULL, 0, &weights->count, weights->error);
    if (status) {
        return status;
    }
    const size_t count = weights->count;
    weights->tensors = smelt_allocate(allocator, count, sizeof *weights->tensors);
    weights->memory = smelt_allocate(allocator, bytes, 1);
    status = weights->tensors && weights->memory
                 ? use_file(weights, from)
                 : smelt_fail(weights->error, SMELT_ERROR_MEMORY, "no memory for the weights, %zu bytes", bytes);
    smelt_release(allocator, weights->tensors, count, sizeof *weights->tensors);
    if (status) {
        smelt_release(allocator, weights->memory, bytes, 1);
    }
    return status;
}

smelt_status
smelt_weights_load(char **memory, const File *file, int64_t target, const smelt_allocator *allocator,
                   const smelt_open_options *options, smelt_error *error)
{
    *memory = NULL;
    if (file->weights->features != WEIGHTS_ELSEWHERE) {
        return options->weights == NULL ? SMELT_OK
                                        : smelt_fail(error, SMELT_ERROR_ARGUMENT, "the artifact has its weights itself");
    }
    if (options->weights == NULL) {
        return smelt_fail(error, SMELT_ERROR_ARGUMENT, "the weights of this artifact are in a file of their own, which must be "
                                                       "given too");
    }
    File from;
    Weights weights = {.file = file, .target = target, .error = error};
    smelt_status status = smelt_file_open(&from, options->weights, error);
    if (!status) {
        status = smelt_trust_check_weights(&from, options, error);
        status = status ? status : use_memory(&weights, &from, allocator);
        smelt_file_close(&from);
    }
    if (!status) {
        *memory = weights.memory;
    }
    return status;
}
