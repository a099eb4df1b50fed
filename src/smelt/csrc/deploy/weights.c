/* Copies weights from a safetensors file to where the registers of an artifact have them. */
#include "deploy/weights.h"

#include "deploy/safetensors.h"
#include "deploy/trust.h"
#include "executor/run/blocks.h"

#include <stdio.h>
#include <string.h>

typedef struct {
    const smelt_model *model;
    WeightTensor *tensors;
    size_t count;
    smelt_error *error;
} Weights;

static WeightTensor *
find_tensor(const Weights *weights, const char *name)
{
    for (size_t i = 0; i < weights->count; i++) {
        WeightTensor *tensor = &weights->tensors[i];
        if (tensor->name_bytes == strlen(name) && memcmp(tensor->name, name, tensor->name_bytes) == 0) {
            return tensor;
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
    WeightTensor *tensor = find_tensor(weights, name);
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
    char *to = weights->model->weights + record->data;
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

/* All of the target that runs; then once more to compare, for registers may overlap. */
static smelt_status
place_all(const Weights *weights)
{
    const smelt_model *model = weights->model;
    for (int compares = 0; compares < 2; compares++) {
        for (size_t i = 0; i < model->entry_count; i++) {
            const Table *table = &model->entries[i].table;
            for (int64_t k = 0; k < table->counts[REGISTERS]; k++) {
                const RegisterRecord *record = &table->registers[k];
                const smelt_status status = record->kind == CONSTANT_REGISTER
                                                ? place_register(weights, table, record, compares)
                                                : SMELT_OK;
                if (status) {
                    return status;
                }
            }
        }
    }
    return SMELT_OK;
}

/* Whether code for another target has a weight that the one that runs does not need. */
static bool
is_of_another_target(const Weights *weights, const WeightTensor *tensor)
{
    const File *file = &weights->model->file;
    for (int64_t target = 0; target < file->targets; target++) {
        for (int64_t entry = 0; entry < file->entries; entry++) {
            const FileSection *section = file_table(file, target, entry);
            Table table;
            if (smelt_table_read(&table, file_bytes(file, section), section->bytes, 0, NULL)) {
                return false;
            }
            for (int64_t i = 0; i < table.counts[REGISTERS]; i++) {
                const char *name = table_string(&table, table.registers[i].name);
                if (table.registers[i].kind == CONSTANT_REGISTER && strlen(name) == tensor->name_bytes
                    && memcmp(name, tensor->name, tensor->name_bytes) == 0) {
                    return true;
                }
            }
        }
    }
    return false;
}

static smelt_status
use_file(smelt_model *model, const File *file, smelt_error *error)
{
    const size_t bytes = (size_t)model->file.weights->bytes;
    Weights weights = {.model = model, .error = error};
    size_t count;
    smelt_status status = smelt_safetensors_read(file->data, file->size, NULL, 0, &count, error);
    if (status) {
        return status;
    }
    weights.tensors = smelt_allocate(&model->allocator, count, sizeof *weights.tensors);
    model->weights = smelt_allocate(&model->allocator, bytes, 1);
    if (weights.tensors == NULL || model->weights == NULL) {
        status = smelt_fail(error, SMELT_ERROR_MEMORY, "no memory for the weights, %zu bytes", bytes);
    }
    if (!status) {
        status = smelt_safetensors_read(file->data, file->size, weights.tensors, count, &weights.count, error);
    }
    status = status ? status : place_all(&weights);
    for (size_t i = 0; !status && i < weights.count; i++) {
        const WeightTensor *tensor = &weights.tensors[i];
        if (!tensor->is_used && !is_of_another_target(&weights, tensor)) {
            status = smelt_fail(error, SMELT_ERROR_MISMATCH, "the file of weights has %.*s, which the model has not",
                                tensor->name_bytes < 100 ? (int)tensor->name_bytes : 100, tensor->name);
        }
    }
    smelt_release(&model->allocator, weights.tensors, count, sizeof *weights.tensors);
    return status;
}

smelt_status
smelt_weights_load(smelt_model *model, const smelt_open_options *options, smelt_error *error)
{
    if (model->file.weights->features != WEIGHTS_ELSEWHERE) {
        return options->weights == NULL ? SMELT_OK
                                        : smelt_fail(error, SMELT_ERROR_ARGUMENT, "the artifact has its weights itself");
    }
    if (options->weights == NULL) {
        return smelt_fail(error, SMELT_ERROR_ARGUMENT, "the weights of this artifact are in a file of their own, which must be "
                                                       "given too");
    }
    File file;
    smelt_status status = smelt_file_open(&file, options->weights, error);
    if (!status) {
        status = smelt_trust_check_weights(&file, options, error);
        status = status ? status : use_file(model, &file, error);
        smelt_file_close(&file);
    }
    return status;
}

void
smelt_weights_drop(smelt_model *model)
{
    smelt_release(&model->allocator, model->weights, model->weights ? (size_t)model->file.weights->bytes : 0, 1);
}
