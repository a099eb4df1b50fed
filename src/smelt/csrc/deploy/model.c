/* Opens a model: checks its file, chooses the best code that this processor can run, and describes inputs and
   outputs. */
#include "deploy/model.h"

#include "executor/check.h"
#include "executor/platform/platform.h"
#include "executor/run/blocks.h"
#include "deploy/processor.h"
#include "deploy/opening/trust.h"
#include "deploy/opening/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_OPTION_BYTES = 4096 }; /* more is no size that was written down */

/* --- memory ------------------------------------------------------------------------------------------------ */

static void *
allocate_default(void *context, size_t size, size_t alignment)
{
    (void)context;
    return size > SIZE_MAX - alignment ? NULL : smelt_aligned_new(size, alignment);
}

static void
release_default(void *context, void *memory, size_t size)
{
    (void)context;
    (void)size;
    smelt_aligned_free(memory);
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
#define DTYPE_NAME(dtype, size) #dtype,
    static const char *const names[] = {TABLE_DTYPES(DTYPE_NAME)};
    return table_item_size(dtype) ? names[dtype] : "none";
}

/* --- what it takes and returns ------------------------------------------------------------------------------ */

static bool
describe_dims(const smelt_allocator *allocator, Entry *entry)
{
    const Table *table = &entry->table;
    const size_t dims = (size_t)table->counts[DIMS];
    entry->dims = smelt_allocate(allocator, dims, sizeof *entry->dims);
    for (size_t i = 0; entry->dims && i < dims; i++) {
        const DimRecord *dim = &table->dims[i];
        entry->dims[i] = (smelt_dim){dim->low, dim->high, dim->name < 0 ? NULL : table_string(table, dim->name)};
    }
    return entry->dims != NULL;
}

static bool
make_infos(const smelt_allocator *allocator, Infos *infos, size_t count, bool of_registers)
{
    infos->count = count;
    infos->infos = smelt_allocate(allocator, count, sizeof *infos->infos);
    infos->registers = of_registers ? smelt_allocate(allocator, count, sizeof *infos->registers) : NULL;
    return infos->infos && (infos->registers || !of_registers);
}

static void
drop_infos(const smelt_allocator *allocator, Infos *infos)
{
    smelt_release(allocator, infos->infos, infos->count, sizeof *infos->infos);
    smelt_release(allocator, infos->registers, infos->count, sizeof *infos->registers);
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
describe_registers(Entry *entry, Infos *infos, RegisterKind kind)
{
    const Table *table = &entry->table;
    size_t place = 0, choice = 0;
    for (int64_t i = 0; i < table->counts[REGISTERS]; i++) {
        const RegisterRecord *record = &table->registers[i];
        if (record->kind != (int64_t)kind) {
            continue;
        }
        infos->registers[place] = i;
        const unsigned flags = (record->optional ? SMELT_OPTIONAL : 0u) | (record->written ? SMELT_WRITTEN : 0u);
        infos->infos[place++] = (smelt_info){
            table_string(table, record->name), (smelt_dtype)record->dtype, (int)record->rank, entry->dims + record->dims,
            flags, (size_t)record->choice_count, entry->choices + choice};
        for (int64_t k = 0; k < record->choice_count; k++) {
            entry->choices[choice++] = table_string(table, table->references[record->choices + k].number);
        }
    }
}

static bool
describe(const smelt_allocator *allocator, Entry *entry)
{
    const Table *table = &entry->table;
    for (int64_t i = 0; i < table->counts[REGISTERS]; i++) {
        entry->choice_count += (size_t)table->registers[i].choice_count;
    }
    entry->choices = smelt_allocate(allocator, entry->choice_count, sizeof *entry->choices);
    if (entry->choices == NULL || !describe_dims(allocator, entry)
        || !make_infos(allocator, &entry->inputs, count_registers(table, INPUT_REGISTER), true)
        || !make_infos(allocator, &entry->states, count_registers(table, STATE_REGISTER), true)
        || !make_infos(allocator, &entry->outputs, (size_t)table->counts[OUTPUTS], false)) {
        return false;
    }
    describe_registers(entry, &entry->inputs, INPUT_REGISTER);
    describe_registers(entry, &entry->states, STATE_REGISTER);
    for (size_t i = 0; i < entry->outputs.count; i++) {
        const OutputRecord *output = &table->outputs[i];
        entry->outputs.infos[i] = (smelt_info){
            .name = table_string(table, output->name), .dtype = (smelt_dtype)output->dtype, .rank = (int)output->rank,
            .dims = entry->dims + output->dims, .choices = entry->choices};
    }
    for (int64_t i = 0; i < table->counts[KERNELS]; i++) {
        const int64_t buffers = table->kernels[i].buffers;
        const int64_t sizes = table->kernels[i].sizes;
        entry->most_buffers = buffers > entry->most_buffers ? buffers : entry->most_buffers;
        entry->most_sizes = sizes > entry->most_sizes ? sizes : entry->most_sizes;
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
        const FileSection *section = file_table(file, i, 0);
        least = section->machine == CUDA_MACHINE && section->features < least ? section->features : least;
    }
    if (least == INT64_MAX) {
        return smelt_fail(error, SMELT_ERROR_TARGET, "this artifact has no code for GPUs");
    }
    const smelt_status status = smelt_cuda_open(&model->cuda, number, error);
    for (int64_t i = 0; !status && i < file->targets; i++) {
        const FileSection *section = file_table(file, i, 0);
        if (section->machine == CUDA_MACHINE && section->features <= model->cuda.capability
            && (best < 0 || section->features > file_table(file, best, 0)->features)) {
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
        const FileSection *section = file_table(file, *target, 0);
        if (section->machine == (int64_t)machine && ((uint64_t)section->features & ~features) == 0) {
            return SMELT_OK;
        }
    }
    char here[160], there[160] = "";
    name_target(here, sizeof here, machine, features);
    for (int64_t i = 0; i < file->targets; i++) {
        const FileSection *section = file_table(file, i, 0);
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

/* Table and code of an entry point for one target, every rule checked. */
static smelt_status
read_entry(smelt_model *model, Entry *entry, int64_t target, int64_t number, smelt_error *error)
{
    const File *file = &model->file;
    const FileSection *table = file_table(file, target, number), *code = file_code(file, target, number);
    smelt_status status = smelt_table_read(&entry->table, file_bytes(file, table), table->bytes, 0, error);
    status = status ? status : smelt_code_read(&entry->code, file_bytes(file, code), code->bytes, error);
    if (status) {
        return status;
    }
    const int64_t length = entry->code.header->image_bytes;
    if (table->machine == CUDA_MACHINE && (length == 0 || entry->code.image[length - 1])) {
        return smelt_refuse(error, "code", 0, "text: it does not end");
    }
    const size_t room = smelt_table_scratch(&entry->table);
    int64_t *scratch = smelt_allocate(&model->allocator, room, sizeof *scratch);
    if (scratch == NULL) {
        return smelt_fail(error, SMELT_ERROR_MEMORY, "no memory to check the artifact");
    }
    status = smelt_table_check(&entry->table, file->weights->bytes, file->state->bytes, entry->code.header->kernels,
                               scratch, error);
    smelt_release(&model->allocator, scratch, room, sizeof *scratch);
    return status;
}

/* Whether two tables have the same state, register by register: a session has one state for all entry points. */
static bool
has_state_of(const Table *table, const Table *first)
{
    int64_t place = -1, other = -1;
    for (;;) {
        while (++place < table->counts[REGISTERS] && table->registers[place].kind != STATE_REGISTER) {}
        while (++other < first->counts[REGISTERS] && first->registers[other].kind != STATE_REGISTER) {}
        if (place >= table->counts[REGISTERS] || other >= first->counts[REGISTERS]) {
            return place >= table->counts[REGISTERS] && other >= first->counts[REGISTERS];
        }
        const RegisterRecord *one = &table->registers[place], *two = &first->registers[other];
        bool same = one->dtype == two->dtype && one->rank == two->rank && one->data == two->data && one->bytes == two->bytes
                    && one->stride_count == two->stride_count
                    && strcmp(table_string(table, one->name), table_string(first, two->name)) == 0;
        for (int64_t i = 0; same && i < one->rank; i++) {
            same = table->dims[one->dims + i].low == first->dims[two->dims + i].low;
        }
        for (int64_t i = 0; same && i < one->stride_count; i++) {
            same = table->references[one->strides + i].number == first->references[two->strides + i].number;
        }
        if (!same) {
            return false;
        }
    }
}

/* Names of model and entry points: the table of a file's only entry point has the model's name, of several each is named
   MODEL.ENTRY. */
static smelt_status
name_entries(smelt_model *model, smelt_error *error)
{
    for (size_t i = 0; i < model->entry_count; i++) {
        Entry *entry = &model->entries[i];
        const char *name = table_string(&entry->table, entry->table.header->name);
        const char *dot = model->entry_count > 1 ? strrchr(name, '.') : NULL;
        if (model->entry_count > 1 && (dot == NULL || dot[1] == 0)) {
            return smelt_refuse(error, "entry points", (int64_t)i, "name: it is not MODEL.ENTRY");
        }
        entry->name = dot ? dot + 1 : name;
        if (i == 0) {
            snprintf(model->name, sizeof model->name, "%.*s", dot ? (int)(dot - name) : (int)strlen(name), name);
        }
        for (size_t k = 0; k < i; k++) {
            if (strcmp(model->entries[k].name, entry->name) == 0) {
                return smelt_refuse(error, "entry points", (int64_t)i, "name: another has it");
            }
        }
        if (!has_state_of(&entry->table, &model->entries->table)) {
            return smelt_refuse(error, "entry points", (int64_t)i, "state: it is not that of the first");
        }
    }
    return SMELT_OK;
}

/* All entry points of one target. */
static smelt_status
read_target(smelt_model *model, int64_t target, smelt_error *error)
{
    for (size_t i = 0; i < model->entry_count; i++) {
        const smelt_status status = read_entry(model, &model->entries[i], target, (int64_t)i, error);
        if (status) {
            return status;
        }
    }
    return name_entries(model, error);
}

static smelt_status
load_code(smelt_model *model, unsigned flags, smelt_error *error)
{
    bool multiplies = false;
    for (size_t i = 0; i < model->entry_count; i++) {
        multiplies = multiplies || (model->entries[i].table.counts[PRODUCTS] && !(flags & SMELT_OPEN_OWN_PRODUCTS));
    }
    smelt_status status = model->on_cuda ? smelt_cuda_load_weights(&model->cuda, model_weights(model),
                                                                   model->file.weights->bytes, multiplies, error)
                                         : SMELT_OK;
    for (size_t i = 0; !status && i < model->entry_count; i++) {
        Entry *entry = &model->entries[i];
        if (!model->on_cuda) {
            status = smelt_code_load(&entry->code, error);
            continue;
        }
        const Table *table = &entry->table;
        entry->functions = smelt_allocate(&model->allocator, (size_t)table->counts[GRIDS], sizeof(CudaFunction));
        if (entry->functions == NULL) {
            return smelt_fail(error, SMELT_ERROR_MEMORY, "no memory to open the artifact");
        }
        status = smelt_cuda_load_code(&model->cuda, &entry->module, table, entry->code.image, entry->functions, error);
    }
    return status;
}

static smelt_status
prepare(smelt_model *model, const smelt_open_options *options, smelt_error *error)
{
    const unsigned flags = options->flags;
    model->runs = !(flags & SMELT_OPEN_WITHOUT_CODE);
    smelt_status status = model->is_checkpoint ? SMELT_OK : smelt_trust_check(&model->file, options, error);
    status = status ? status : smelt_file_check(&model->file, flags & SMELT_OPEN_TRUST_WEIGHTS, error);
    if (status) {
        return status;
    }
    model->entries = smelt_allocate(&model->allocator, (size_t)model->file.entries, sizeof *model->entries);
    if (model->entries == NULL) {
        return smelt_fail(error, SMELT_ERROR_MEMORY, "no memory to open the artifact");
    }
    model->entry_count = (size_t)model->file.entries;
    int64_t target = 0;
    smelt_error why_not;
    if (model->runs) {
        status = choose_target(model, options, &target, error);
    }
    else if (choose_host(&model->file, "", &target, &why_not)) {
        target = 0; /* any: what does not run is asked for its state, which all have */
    }
    for (int64_t i = 0; !status && !model->runs && i < model->file.targets; i++) {
        status = i == target ? SMELT_OK : read_target(model, i, error);
    }
    status = status ? status : read_target(model, target, error);
    if (!status && model->runs) {
        status = smelt_weights_load(&model->weights, &model->file, target, &model->allocator, options, error);
        status = status ? status : load_code(model, flags, error);
    }
    if (status) {
        return status;
    }
    const FileSection *chosen = file_table(&model->file, target, 0);
    name_target(model->target, sizeof model->target, (Machine)chosen->machine, (uint64_t)chosen->features);
    bool is_described = true;
    for (size_t i = 0; i < model->entry_count; i++) {
        is_described = is_described && describe(&model->allocator, &model->entries[i]);
    }
    return is_described ? SMELT_OK : smelt_fail(error, SMELT_ERROR_MEMORY, "no memory to open the artifact");
}

static void
destroy(smelt_model *model)
{
    const smelt_allocator allocator = model->allocator;
    for (size_t i = 0; i < model->entry_count; i++) {
        Entry *entry = &model->entries[i];
        const int64_t *counts = entry->table.counts;
        smelt_code_image_unmap(&entry->code.loaded);
        if (model->on_cuda) {
            smelt_cuda_unload_module(&entry->module);
        }
        smelt_release(&allocator, entry->functions, (size_t)counts[GRIDS], sizeof(CudaFunction));
        drop_infos(&allocator, &entry->inputs);
        drop_infos(&allocator, &entry->outputs);
        drop_infos(&allocator, &entry->states);
        smelt_release(&allocator, entry->choices, entry->choice_count, sizeof *entry->choices);
        smelt_release(&allocator, entry->dims, (size_t)counts[DIMS], sizeof *entry->dims);
    }
    smelt_release(&allocator, model->entries, model->entry_count, sizeof *model->entries);
    smelt_cuda_close(&model->cuda);
    smelt_release(&model->allocator, model->weights, model->weights ? (size_t)model->file.weights->bytes : 0, 1);
    smelt_file_close(&model->file);
    smelt_release(&allocator, model, 1, sizeof *model);
}

static smelt_status
open_file(File *file, const smelt_open_options *options, bool is_checkpoint, smelt_model **model, smelt_error *error)
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
    opened->is_checkpoint = is_checkpoint;
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
    return status ? status : open_file(&file, &options, false, model, error);
}

smelt_status
smelt_checkpoint_open(const char *path, const smelt_allocator *allocator, smelt_model **model, smelt_error *error)
{
    const smelt_open_options options = {.flags = SMELT_OPEN_WITHOUT_CODE, .allocator = allocator};
    File file;
    const smelt_status status = smelt_file_open(&file, path, error);
    return status ? status : open_file(&file, &options, true, model, error);
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
    return open_file(&file, &options, false, model, error);
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
    if (model == NULL) {
        return NULL;
    }
    return model->entry_count == 1 ? model->entries->name : model->name;
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

size_t
smelt_model_entry_count(const smelt_model *model)
{
    return model ? model->entry_count : 0;
}

const char *
smelt_model_entry(const smelt_model *model, size_t entry)
{
    return entry < smelt_model_entry_count(model) ? model->entries[entry].name : NULL;
}

ptrdiff_t
smelt_model_find_entry(const smelt_model *model, const char *name)
{
    for (size_t i = 0; name && i < smelt_model_entry_count(model); i++) {
        if (strcmp(model->entries[i].name, name) == 0) {
            return (ptrdiff_t)i;
        }
    }
    return -1;
}

#define QUESTIONS(what, field)                                                                                         \
    size_t smelt_entry_##what##_count(const smelt_model *model, size_t entry)                                          \
    {                                                                                                                  \
        return entry < smelt_model_entry_count(model) ? model->entries[entry].field.count : 0;                         \
    }                                                                                                                  \
    const smelt_info *smelt_entry_##what(const smelt_model *model, size_t entry, size_t number)                        \
    {                                                                                                                  \
        return info_of(entry < smelt_model_entry_count(model) ? &model->entries[entry].field : NULL, number);          \
    }                                                                                                                  \
    ptrdiff_t smelt_entry_find_##what(const smelt_model *model, size_t entry, const char *name)                        \
    {                                                                                                                  \
        return find(entry < smelt_model_entry_count(model) ? &model->entries[entry].field : NULL, name);               \
    }                                                                                                                  \
    OF_FIRST_ENTRY(what)
#define OF_FIRST_ENTRY(what)                                                                                           \
    size_t smelt_model_##what##_count(const smelt_model *model) { return smelt_entry_##what##_count(model, 0); }       \
    const smelt_info *smelt_model_##what(const smelt_model *model, size_t number)                                      \
    {                                                                                                                  \
        return smelt_entry_##what(model, 0, number);                                                                   \
    }                                                                                                                  \
    ptrdiff_t smelt_model_find_##what(const smelt_model *model, const char *name)                                      \
    {                                                                                                                  \
        return smelt_entry_find_##what(model, 0, name);                                                                \
    }
QUESTIONS(input, inputs)
QUESTIONS(output, outputs)

size_t
smelt_model_state_count(const smelt_model *model)
{
    return model ? model->entries->states.count : 0;
}

const smelt_info *
smelt_model_state(const smelt_model *model, size_t number)
{
    return info_of(model ? &model->entries->states : NULL, number);
}

ptrdiff_t
smelt_model_find_state(const smelt_model *model, const char *name)
{
    return find(model ? &model->entries->states : NULL, name);
}

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
