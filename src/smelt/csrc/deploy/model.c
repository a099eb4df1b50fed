/* Opens a model: checks its file, chooses the best code that this processor can run, and describes inputs and
   outputs. */
#include "deploy/model.h"

#include "executor/check.h"
#include "executor/run/blocks.h"
#include "deploy/processor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_OPTION_BYTES = 4096 }; /* more is no size that was written down */

/* --- memory ------------------------------------------------------------------------------------------------ */

static void *
allocate_default(void *context, size_t size, size_t alignment)
{
    (void)context;
    return size > SIZE_MAX - alignment ? NULL : aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}

static void
release_default(void *context, void *memory, size_t size)
{
    (void)context;
    (void)size;
    free(memory);
}

bool
smelt_take_options(void *options, size_t bytes, const void *given)
{
    memset(options, 0, bytes);
    if (given == NULL) {
        return true;
    }
    size_t size; /* the first field of all options */
    memcpy(&size, given, sizeof size);
    for (size_t i = bytes; i < size && size <= MOST_OPTION_BYTES; i++) {
        if (((const char *)given)[i]) {
            return false;
        }
    }
    memcpy(options, given, size < bytes ? size : bytes);
    return size >= sizeof size && size <= MOST_OPTION_BYTES;
}

/* --- dtypes ------------------------------------------------------------------------------------------------ */

size_t
smelt_dtype_size(smelt_dtype dtype)
{
    return (size_t)table_item_size(dtype);
}

const char *
smelt_dtype_name(smelt_dtype dtype)
{
    static const char *const names[] = {
        "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64",
        "complex128", "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2",
    };
    return table_item_size(dtype) ? names[dtype] : "none";
}

/* --- what it takes and returns ------------------------------------------------------------------------------ */

static bool
describe_dims(smelt_model *model)
{
    const Table *table = &model->table;
    const size_t dims = (size_t)table->counts[DIMS];
    model->dims = smelt_allocate(&model->allocator, dims, sizeof *model->dims);
    for (size_t i = 0; model->dims && i < dims; i++) {
        const DimRecord *dim = &table->dims[i];
        model->dims[i] = (smelt_dim){dim->low, dim->high, dim->name < 0 ? NULL : table_string(table, dim->name)};
    }
    return model->dims != NULL;
}

static bool
make_infos(smelt_model *model, Infos *infos, size_t count, bool of_registers)
{
    infos->count = count;
    infos->infos = smelt_allocate(&model->allocator, count, sizeof *infos->infos);
    infos->registers = of_registers ? smelt_allocate(&model->allocator, count, sizeof *infos->registers) : NULL;
    return infos->infos && (infos->registers || !of_registers);
}

static void
drop_infos(smelt_model *model, Infos *infos)
{
    smelt_release(&model->allocator, infos->infos, infos->count, sizeof *infos->infos);
    smelt_release(&model->allocator, infos->registers, infos->count, sizeof *infos->registers);
}

static size_t
count_registers(const Table *table, RegisterKind kind)
{
    size_t count = 0;
    for (int64_t i = 0; i < table->counts[REGISTERS]; i++) {
        count += table->registers[i].kind == (int64_t)kind;
    }
    return count;
}

static void
describe_registers(smelt_model *model, Infos *infos, RegisterKind kind)
{
    const Table *table = &model->table;
    size_t place = 0, choice = 0;
    for (int64_t i = 0; i < table->counts[REGISTERS]; i++) {
        const RegisterRecord *record = &table->registers[i];
        if (record->kind != (int64_t)kind) {
            continue;
        }
        infos->registers[place] = i;
        const unsigned flags = (record->optional ? SMELT_OPTIONAL : 0u) | (record->written ? SMELT_WRITTEN : 0u);
        infos->infos[place++] = (smelt_info){
            table_string(table, record->name), (smelt_dtype)record->dtype, (int)record->rank, model->dims + record->dims,
            flags, (size_t)record->choice_count, model->choices + choice};
        for (int64_t k = 0; k < record->choice_count; k++) {
            model->choices[choice++] = table_string(table, table->references[record->choices + k].number);
        }
    }
}

static bool
describe(smelt_model *model)
{
    const Table *table = &model->table;
    for (int64_t i = 0; i < table->counts[REGISTERS]; i++) {
        model->choice_count += (size_t)table->registers[i].choice_count;
    }
    model->choices = smelt_allocate(&model->allocator, model->choice_count, sizeof *model->choices);
    if (model->choices == NULL || !describe_dims(model)
        || !make_infos(model, &model->inputs, count_registers(table, INPUT_REGISTER), true)
        || !make_infos(model, &model->states, count_registers(table, STATE_REGISTER), true)
        || !make_infos(model, &model->outputs, (size_t)table->counts[OUTPUTS], false)) {
        return false;
    }
    describe_registers(model, &model->inputs, INPUT_REGISTER);
    describe_registers(model, &model->states, STATE_REGISTER);
    for (size_t i = 0; i < model->outputs.count; i++) {
        const OutputRecord *output = &table->outputs[i];
        model->outputs.infos[i] = (smelt_info){
            .name = table_string(table, output->name), .dtype = (smelt_dtype)output->dtype, .rank = (int)output->rank,
            .dims = model->dims + output->dims, .choices = model->choices};
    }
    for (int64_t i = 0; i < table->counts[KERNELS]; i++) {
        const int64_t buffers = table->kernels[i].buffers;
        const int64_t sizes = table->kernels[i].sizes;
        model->most_buffers = buffers > model->most_buffers ? buffers : model->most_buffers;
        model->most_sizes = sizes > model->most_sizes ? sizes : model->most_sizes;
    }
    return true;
}

/* --- opening ------------------------------------------------------------------------------------------------ */

/* "x86-64 avx2 fma", "cuda sm_90" */
static void
name_target(char *text, size_t room, Machine machine, uint64_t features)
{
    if (machine == CUDA_MACHINE) {
        snprintf(text, room, "%s sm_%d", smelt_machine_name(machine), (int)features);
        return;
    }
    size_t end = (size_t)snprintf(text, room, "%s", smelt_machine_name(machine));
    const char *const *names = smelt_feature_names(machine);
    for (int i = 0; names[i] && end < room; i++) {
        if (features >> i & 1) {
            end += (size_t)snprintf(text + end, room - end, " %s", names[i]);
        }
    }
}

/* The newest code for GPUs that the GPU of this number runs. What there is not, the error says. */
static smelt_status
choose_gpu(smelt_model *model, int number, int64_t *target, smelt_error *error)
{
    const File *file = &model->file;
    int64_t least = INT64_MAX, best = -1;
    for (int64_t i = 0; i < file->targets; i++) {
        const FileSection *section = file_table(file, i);
        least = section->machine == CUDA_MACHINE && section->features < least ? section->features : least;
    }
    if (least == INT64_MAX) {
        return smelt_fail(error, SMELT_ERROR_TARGET, "this artifact has no code for GPUs");
    }
    const smelt_status status = smelt_cuda_open(&model->cuda, number, error);
    for (int64_t i = 0; !status && i < file->targets; i++) {
        const FileSection *section = file_table(file, i);
        if (section->machine == CUDA_MACHINE && section->features <= model->cuda.capability
            && (best < 0 || section->features > file_table(file, best)->features)) {
            best = i;
        }
    }
    if (!status && best < 0) {
        smelt_fail(error, SMELT_ERROR_TARGET, "the GPU, %s, is sm_%d, and the code needs sm_%lld", model->cuda.name,
                   model->cuda.capability, (long long)least);
        smelt_cuda_close(&model->cuda);
        return SMELT_ERROR_TARGET;
    }
    model->on_cuda = !status;
    *target = best;
    return status;
}

/* The first target that this processor can run; `why_not`: what is said of GPUs. */
static smelt_status
choose_host(const File *file, const char *why_not, int64_t *target, smelt_error *error)
{
    uint64_t features;
    const Machine machine = smelt_processor(&features);
    for (*target = 0; *target < file->targets; ++*target) {
        const FileSection *section = file_table(file, *target);
        if (section->machine == (int64_t)machine && ((uint64_t)section->features & ~features) == 0) {
            return SMELT_OK;
        }
    }
    char here[160], there[160] = "";
    name_target(here, sizeof here, machine, features);
    for (int64_t i = 0; i < file->targets; i++) {
        const FileSection *section = file_table(file, i);
        const size_t end = strlen(there);
        snprintf(there + end, sizeof there - end, "%s", i ? ", " : "");
        name_target(there + strlen(there), sizeof there - strlen(there), (Machine)section->machine,
                    (uint64_t)section->features);
    }
    /* The processor last: its list of features is long, and messages are cut at their end. */
    return smelt_fail(error, SMELT_ERROR_TARGET, "this artifact has code for %s, which does not run here: %s%s%s", there,
                      why_not, *why_not ? "; " : "", here);
}

static smelt_status
choose_target(smelt_model *model, const smelt_open_options *options, int64_t *target, smelt_error *error)
{
    const smelt_device device = options->device;
    smelt_error gpu = {.message = ""};
    if (device != SMELT_DEVICE_HOST) {
        const smelt_status status = choose_gpu(model, options->device_number, target, &gpu);
        if (!status || device == SMELT_DEVICE_CUDA) {
            return status ? smelt_fail(error, status, "%s", gpu.message) : SMELT_OK;
        }
    }
    return choose_host(&model->file, gpu.message, target, error);
}

/* Table and code of one target, every rule checked. */
static smelt_status
read_target(smelt_model *model, int64_t target, smelt_error *error)
{
    const File *file = &model->file;
    const FileSection *table = file_table(file, target), *code = file_code(file, target);
    smelt_status status = smelt_table_read(&model->table, file_bytes(file, table), table->bytes, 0, error);
    status = status ? status : smelt_code_read(&model->code, file_bytes(file, code), code->bytes, error);
    if (status) {
        return status;
    }
    const int64_t length = model->code.header->image_bytes;
    if (table->machine == CUDA_MACHINE && (length == 0 || model->code.image[length - 1])) {
        return smelt_refuse(error, "code", 0, "text: it does not end");
    }
    const size_t room = smelt_table_scratch(&model->table);
    int64_t *scratch = smelt_allocate(&model->allocator, room, sizeof *scratch);
    if (scratch == NULL) {
        return smelt_fail(error, SMELT_ERROR_MEMORY, "no memory to check the artifact");
    }
    status = smelt_table_check(&model->table, file->weights->bytes, file->state->bytes, model->code.header->kernels,
                               scratch, error);
    smelt_release(&model->allocator, scratch, room, sizeof *scratch);
    return status;
}

static smelt_status
load_code(smelt_model *model, unsigned flags, smelt_error *error)
{
    if (!model->on_cuda) {
        return smelt_code_load(&model->code, error);
    }
    const Table *table = &model->table;
    model->functions = smelt_allocate(&model->allocator, (size_t)table->counts[GRIDS], sizeof(CudaFunction));
    if (model->functions == NULL) {
        return smelt_fail(error, SMELT_ERROR_MEMORY, "no memory to open the artifact");
    }
    const FileSection *weights = model->file.weights;
    return smelt_cuda_load(&model->cuda, table, model->code.image, file_bytes(&model->file, weights), weights->bytes,
                           !(flags & SMELT_OPEN_OWN_PRODUCTS), model->functions, error);
}

static smelt_status
prepare(smelt_model *model, const smelt_open_options *options, smelt_error *error)
{
    const unsigned flags = options->flags;
    model->runs = !(flags & SMELT_OPEN_WITHOUT_CODE);
    smelt_status status = smelt_file_check(&model->file, flags & SMELT_OPEN_TRUST_WEIGHTS, error);
    int64_t target = 0;
    smelt_error why_not;
    if (!status && model->runs) {
        status = choose_target(model, options, &target, error);
    }
    else if (!status && choose_host(&model->file, "", &target, &why_not)) {
        target = 0; /* any: what does not run is asked for its state, which all have */
    }
    for (int64_t i = 0; !status && !model->runs && i < model->file.targets; i++) {
        status = i == target ? SMELT_OK : read_target(model, i, error);
    }
    status = status ? status : read_target(model, target, error);
    if (!status && model->runs) {
        status = load_code(model, flags, error);
    }
    if (status) {
        return status;
    }
    const FileSection *chosen = file_table(&model->file, target);
    name_target(model->target, sizeof model->target, (Machine)chosen->machine, (uint64_t)chosen->features);
    return describe(model) ? SMELT_OK : smelt_fail(error, SMELT_ERROR_MEMORY, "no memory to open the artifact");
}

static void
destroy(smelt_model *model)
{
    const smelt_allocator allocator = model->allocator;
    const Table *table = &model->table;
    smelt_code_image_unmap(&model->code.loaded);
    smelt_cuda_close(&model->cuda);
    smelt_release(&allocator, model->functions, (size_t)table->counts[GRIDS], sizeof(CudaFunction));
    drop_infos(model, &model->inputs);
    drop_infos(model, &model->outputs);
    drop_infos(model, &model->states);
    smelt_release(&allocator, model->choices, model->choice_count, sizeof *model->choices);
    smelt_release(&allocator, model->dims, (size_t)table->counts[DIMS], sizeof *model->dims);
    smelt_file_close(&model->file);
    smelt_release(&allocator, model, 1, sizeof *model);
}

static smelt_status
open_file(File *file, const smelt_open_options *options, smelt_model **model, smelt_error *error)
{
    smelt_allocator allocator = {NULL, allocate_default, release_default};
    if (options->allocator) {
        allocator = *options->allocator;
    }
    smelt_model *opened = smelt_allocate(&allocator, 1, sizeof *opened);
    if (opened == NULL) {
        smelt_file_close(file);
        return smelt_fail(error, SMELT_ERROR_MEMORY, "no memory to open the artifact");
    }
    opened->allocator = allocator;
    opened->file = *file;
    atomic_init(&opened->references, 1);
    const smelt_status status = prepare(opened, options, error);
    if (status) {
        destroy(opened);
        return status;
    }
    *model = opened;
    return SMELT_OK;
}

/* What a caller asks for, and a place for the model. */
static smelt_status
take_options(smelt_open_options *options, const smelt_open_options *given, smelt_model **model, smelt_error *error)
{
    if (model == NULL || !smelt_take_options(options, sizeof *options, given)
        || (options->allocator && (!options->allocator->allocate || !options->allocator->release))
        || options->device < SMELT_DEVICE_BEST || options->device > SMELT_DEVICE_CUDA) {
        return smelt_fail(error, SMELT_ERROR_ARGUMENT, "a model cannot be opened without a place for it, or with options "
                                                       "of another version, half an allocator or no such device");
    }
    *model = NULL;
    return SMELT_OK;
}

smelt_status
smelt_model_open(const char *path, const smelt_open_options *given, smelt_model **model, smelt_error *error)
{
    File file;
    smelt_open_options options;
    smelt_status status = take_options(&options, given, model, error);
    if (!status && path == NULL) {
        status = smelt_fail(error, SMELT_ERROR_ARGUMENT, "a model cannot be opened without a path");
    }
    status = status ? status : smelt_file_open(&file, path, error);
    return status ? status : open_file(&file, &options, model, error);
}

smelt_status
smelt_model_from_memory(const void *data, size_t size, const smelt_open_options *given, smelt_model **model,
                        smelt_error *error)
{
    smelt_open_options options;
    const smelt_status status = take_options(&options, given, model, error);
    if (status) {
        return status;
    }
    if (data == NULL || (uintptr_t)data % FILE_ALIGN) {
        return smelt_fail(error, SMELT_ERROR_ARGUMENT, "an artifact in memory must be at a multiple of %d", FILE_ALIGN);
    }
    File file = {.data = data, .size = size, .descriptor = -1};
    return open_file(&file, &options, model, error);
}

void
smelt_model_close(smelt_model *model)
{
    if (model && atomic_fetch_sub(&model->references, 1) == 1) {
        destroy(model);
    }
}

/* --- questions ---------------------------------------------------------------------------------------------- */

const char *
smelt_model_name(const smelt_model *model)
{
    return model ? table_string(&model->table, model->table.header->name) : NULL;
}

const char *
smelt_model_target(const smelt_model *model)
{
    return model ? model->target : NULL;
}

const char *
smelt_model_manifest(const smelt_model *model, size_t *size)
{
    if (size) {
        *size = model ? (size_t)model->file.manifest->bytes : 0;
    }
    return model ? file_bytes(&model->file, model->file.manifest) : NULL;
}

static const smelt_info *
info_of(const Infos *infos, size_t number)
{
    return infos && number < infos->count ? &infos->infos[number] : NULL;
}

static ptrdiff_t
find(const Infos *infos, const char *name)
{
    for (size_t i = 0; infos && name && i < infos->count; i++) {
        if (strcmp(infos->infos[i].name, name) == 0) {
            return (ptrdiff_t)i;
        }
    }
    return -1;
}

#define QUESTIONS(what, field)                                                                                         \
    size_t smelt_model_##what##_count(const smelt_model *model) { return model ? model->field.count : 0; }             \
    const smelt_info *smelt_model_##what(const smelt_model *model, size_t number)                                      \
    {                                                                                                                  \
        return info_of(model ? &model->field : NULL, number);                                                          \
    }                                                                                                                  \
    ptrdiff_t smelt_model_find_##what(const smelt_model *model, const char *name)                                      \
    {                                                                                                                  \
        return find(model ? &model->field : NULL, name);                                                               \
    }
QUESTIONS(input, inputs)
QUESTIONS(output, outputs)
QUESTIONS(state, states)

int64_t
smelt_model_choice(const smelt_model *model, size_t input, const char *text)
{
    const smelt_info *info = smelt_model_input(model, input);
    for (size_t i = 0; info && text && i < info->choice_count; i++) {
        if (strcmp(info->choices[i], text) == 0) {
            return (int64_t)i;
        }
    }
    return -1;
}
