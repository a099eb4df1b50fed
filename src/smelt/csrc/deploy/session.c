/* Creates sessions and takes inputs. run.c runs the model, outputs.c returns the results. */
#define _GNU_SOURCE
#include "deploy/session_parts.h"

#include "executor/check.h"
#include "deploy/memory.h"
#include "deploy/run.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* --- making and freeing -------------------------------------------------------------------------------------- */

/* The session's own copy of the STATE section: pages of the file, copied once they are written; or all of it. */
static bool
map_state(smelt_session *session)
{
    const File *file = &session->model->file;
    const FileSection *section = file->state;
    if (section->bytes == 0) {
        session->state_data = session->empty;
        return true;
    }
    if (session->model->on_cuda) {
        session->state_data = session->memory.allocate(session->memory.context, (size_t)section->bytes, FILE_ALIGN);
        return session->state_data
               && !smelt_put(session, session->state_data, file_bytes(file, section), section->bytes, NULL);
    }
    if (file->descriptor < 0) {
        session->state_data = session->allocator.allocate(session->allocator.context, (size_t)section->bytes, FILE_ALIGN);
        if (session->state_data) {
            memcpy(session->state_data, file_bytes(file, section), (size_t)section->bytes);
        }
        return session->state_data != NULL;
    }
    const int64_t page = sysconf(_SC_PAGESIZE), before = section->offset % page;
    char *map = mmap(NULL, (size_t)(before + section->bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE, file->descriptor,
                     (off_t)(section->offset - before));
    if (map == MAP_FAILED) {
        return false;
    }
    session->state_map = map;
    session->state_mapped = (size_t)(before + section->bytes);
    session->state_data = map + before;
    return true;
}

static size_t
parameter_count(const smelt_model *model)
{
    return (size_t)(model->most_buffers + 1 + model->most_sizes);
}

/* A stream, and memory of a GPU for what has none. */
static bool
prepare_gpu(smelt_session *session)
{
    const smelt_model *model = session->model;
    enum { NON_BLOCKING = 1 };
    session->empty = session->nothing;
    if (!model->on_cuda) {
        return true;
    }
    if (model->cuda.driver.stream_create(&session->stream, NON_BLOCKING)) {
        session->stream = NULL;
        return false;
    }
    session->empty = session->memory.allocate(session->memory.context, sizeof session->nothing, FILE_ALIGN);
    return session->empty != NULL;
}

static bool
make_parts(smelt_session *session)
{
    const smelt_model *model = session->model;
    const Table *table = &model->table;
    const smelt_allocator *allocator = &session->allocator;
    for (int64_t i = 0; i < table->counts[REGISTERS]; i++) {
        session->register_size_count += (size_t)table->registers[i].rank;
    }
    session->registers = smelt_allocate(allocator, (size_t)table->counts[REGISTERS], sizeof(Register));
    session->saved = smelt_allocate(allocator, (size_t)table->counts[REGISTERS], sizeof(int64_t));
    session->register_sizes = smelt_allocate(allocator, session->register_size_count, sizeof(int64_t));
    session->plans = smelt_allocate(allocator, (size_t)table->counts[VARIANTS], sizeof(Plan));
    session->outputs = smelt_allocate(allocator, model->outputs.count, sizeof(Output));
    session->symbols = smelt_allocate(allocator, (size_t)model->most_symbols, sizeof(int64_t));
    session->groups = smelt_allocate(allocator, (size_t)model->group_count, sizeof(int64_t));
    session->buffers = smelt_allocate(allocator, (size_t)model->most_buffers, sizeof(void *));
    session->parameters = smelt_allocate(allocator, parameter_count(model), sizeof(void *));
    return prepare_gpu(session) && session->parameters && session->registers && session->saved && session->register_sizes
           && session->plans && session->outputs && session->symbols && session->groups && session->buffers && map_state(session);
}

/* Constants and state, whose place and sizes are fixed. */
static void
place_registers(smelt_session *session)
{
    const smelt_model *model = session->model;
    const Table *table = &model->table;
    int64_t *sizes = session->register_sizes;
    for (int64_t i = 0; i < table->counts[REGISTERS]; i++) {
        const RegisterRecord *record = &table->registers[i];
        Register *place = &session->registers[i];
        place->sizes = sizes;
        sizes += record->rank;
        if (record->kind != CONSTANT_REGISTER && record->kind != STATE_REGISTER) {
            continue;
        }
        const char *weights = model->on_cuda ? (const char *)(uintptr_t)model->cuda.weights
                                             : file_bytes(&model->file, model->file.weights);
        const char *begin = record->kind == STATE_REGISTER ? session->state_data : weights;
        place->data = (char *)begin + record->data; /* constants are never written: no value that is may be one */
        place->bytes = record->bytes;
        place->ready = true;
        for (int64_t k = 0; k < record->rank; k++) {
            place->sizes[k] = table->dims[record->dims + k].low;
        }
    }
}

smelt_status
smelt_session_new(smelt_model *model, const smelt_session_options *given, smelt_session **session, smelt_error *error)
{
    smelt_session_options options;
    if (model == NULL || session == NULL || !smelt_take_options(&options, sizeof options, given) || options.threads < 0
        || options.threads > MOST_THREADS || options.most_states < 0) {
        return smelt_fail(error, SMELT_ERROR_ARGUMENT, "a session needs a model, a place for it, and sensible options");
    }
    *session = NULL;
    if (!model->runs) {
        return smelt_fail(error, SMELT_ERROR_ARGUMENT, "the model was opened without its code, to be looked at only");
    }
    smelt_session *new_session = smelt_allocate(&model->allocator, 1, sizeof *new_session);
    if (new_session == NULL) {
        return smelt_fail(error, SMELT_ERROR_MEMORY, "no memory for a session");
    }
    new_session->model = model;
    new_session->allocator = new_session->memory = model->allocator;
    if (model->on_cuda) {
        new_session->memory = (smelt_allocator){&model->cuda, smelt_cuda_allocate, smelt_cuda_release};
    }
    atomic_fetch_add(&model->references, 1);
    atomic_flag_clear(&new_session->busy);
    new_session->threads = (Threads){.threads = options.threads ? options.threads : smelt_processor_count(),
                                     .parallel_for = options.parallel_for,
                                     .context = options.parallel_context,
                                     .allocator = &new_session->allocator};
    new_session->most_states = options.most_states;
    CudaContext before;
    const smelt_status status = smelt_enter(new_session, &before, error);
    const bool is_made = !status && make_parts(new_session);
    if (!status) {
        smelt_leave(new_session, before);
    }
    if (!is_made) {
        smelt_session_free(new_session);
        return status ? status : smelt_fail(error, SMELT_ERROR_MEMORY, "no memory for a session");
    }
    place_registers(new_session);
    *session = new_session;
    return SMELT_OK;
}

static void
drop_parts(smelt_session *session)
{
    const smelt_model *model = session->model;
    const Table *table = &model->table;
    const smelt_allocator *allocator = &session->allocator;
    const smelt_allocator *memory = &session->memory;
    for (int64_t i = 0; session->registers && i < table->counts[REGISTERS]; i++) {
        smelt_block_drop(memory, &session->registers[i].current);
        smelt_block_drop(memory, &session->registers[i].spare);
        smelt_block_drop(allocator, &session->registers[i].host);
    }
    for (int64_t i = 0; session->plans && i < table->counts[VARIANTS]; i++) {
        smelt_release(allocator, session->plans[i].memory, session->plans[i].words, sizeof(int64_t));
    }
    for (size_t i = 0; session->outputs && i < model->outputs.count; i++) {
        smelt_block_drop(allocator, &session->outputs[i].copy);
    }
    smelt_block_drop(allocator, &session->fetched);
    smelt_block_drop(memory, &session->arena);
    smelt_block_drop(memory, &session->workspace);
    smelt_release(allocator, session->registers, (size_t)table->counts[REGISTERS], sizeof(Register));
    smelt_release(allocator, session->saved, (size_t)table->counts[REGISTERS], sizeof(int64_t));
    smelt_release(allocator, session->register_sizes, session->register_size_count, sizeof(int64_t));
    smelt_release(allocator, session->plans, (size_t)table->counts[VARIANTS], sizeof(Plan));
    smelt_release(allocator, session->outputs, model->outputs.count, sizeof(Output));
    smelt_release(allocator, session->symbols, (size_t)model->most_symbols, sizeof(int64_t));
    smelt_release(allocator, session->groups, (size_t)model->group_count, sizeof(int64_t));
    smelt_release(allocator, session->buffers, (size_t)model->most_buffers, sizeof(void *));
    smelt_release(allocator, session->parameters, parameter_count(model), sizeof(void *));
    if (session->state_mapped) {
        munmap(session->state_map, session->state_mapped);
    }
    else if (session->state_data && session->state_data != session->empty) {
        memory->release(memory->context, session->state_data, (size_t)model->file.state->bytes);
    }
    if (session->empty && session->empty != session->nothing) {
        memory->release(memory->context, session->empty, sizeof session->nothing);
    }
    if (session->stream) {
        model->cuda.driver.stream_destroy(session->stream);
    }
}

void
smelt_session_free(smelt_session *session)
{
    if (session == NULL) {
        return;
    }
    smelt_threads_stop(&session->threads);
    CudaContext before;
    const bool is_inside = smelt_enter(session, &before, NULL) == SMELT_OK; /* else the GPU is lost, with all it had */
    drop_parts(session);
    if (is_inside) {
        smelt_leave(session, before);
    }
    smelt_model *model = session->model;
    const smelt_allocator allocator = session->allocator;
    smelt_release(&allocator, session, 1, sizeof *session);
    smelt_model_close(model);
}

smelt_model *
smelt_session_model(const smelt_session *session)
{
    return session ? session->model : NULL;
}

/* --- inputs -------------------------------------------------------------------------------------------------- */

static smelt_status
check_sizes(smelt_session *session, const RegisterRecord *record, const smelt_info *info, const smelt_tensor *tensor,
            smelt_error *error)
{
    for (int i = 0; i < info->rank; i++) {
        const smelt_dim *dim = &info->dims[i];
        const int64_t size = tensor->sizes[i], group = session->model->dim_groups[record->dims + i];
        if (size < dim->low || size > dim->high) {
            if (dim->low == dim->high) {
                return smelt_fail(error, SMELT_ERROR_SIZE, "input %s: dimension %d is %lld, and must be %lld", info->name,
                                  i, (long long)size, (long long)dim->low);
            }
            return smelt_fail(error, SMELT_ERROR_SIZE, "input %s: dimension %d%s%s is %lld, and must be from %lld to %lld",
                              info->name, i, dim->name ? " " : "", dim->name ? dim->name : "", (long long)size,
                              (long long)dim->low, (long long)dim->high);
        }
        if (group < 0) {
            continue;
        }
        if (session->groups[group] >= 0 && session->groups[group] != size) {
            return smelt_fail(error, SMELT_ERROR_SIZE, "input %s: dimension %d is %lld, and %s is %lld elsewhere",
                              info->name, i, (long long)size, dim->name, (long long)session->groups[group]);
        }
        session->groups[group] = size;
    }
    return SMELT_OK;
}

static bool
is_contiguous(const smelt_tensor *tensor)
{
    int64_t expected = 1;
    for (int i = tensor->rank; tensor->strides && i-- > 0;) {
        if (tensor->sizes[i] != 1 && tensor->strides[i] != expected) {
            return false;
        }
        expected *= tensor->sizes[i];
    }
    return true;
}

/* Contiguous, in memory of its own. */
static bool
gather_input(const smelt_session *session, const smelt_tensor *tensor, Register *taken, Block *block)
{
    int64_t strides[SMELT_MAX_RANK];
    smelt_contiguous_strides(taken->sizes, tensor->rank, strides);
    if (!smelt_block_fits(&session->allocator, block, taken->bytes)) {
        return false;
    }
    smelt_copy_strided(block->memory, strides, tensor->data, tensor->strides ? tensor->strides : strides, taken->sizes,
                       tensor->rank, smelt_item_size(tensor->dtype));
    return true;
}

static smelt_status
take_to_host(smelt_session *session, const smelt_info *info, const smelt_tensor *tensor, Register *taken,
             smelt_error *error)
{
    if (is_contiguous(tensor) && (uintptr_t)tensor->data % (uintptr_t)smelt_item_size(info->dtype) == 0) {
        return SMELT_OK;
    }
    if (!gather_input(session, tensor, taken, &taken->current)) {
        return smelt_fail(error, SMELT_ERROR_MEMORY, "no memory to copy input %s", info->name);
    }
    taken->data = taken->current.memory;
    taken->staged = true;
    return SMELT_OK;
}

/* Memory of the GPU is used where it is, if it begins where kernels take all memory to begin. */
static smelt_status
take_to_gpu(smelt_session *session, const smelt_info *info, const smelt_tensor *tensor, Register *taken, bool is_there,
            smelt_error *error)
{
    enum { ALIGNMENT = 16 };
    const bool contiguous = is_contiguous(tensor);
    if (is_there && !contiguous) {
        return smelt_fail(error, SMELT_ERROR_INPUT, "input %s is in memory of a GPU, and not contiguous", info->name);
    }
    if (is_there && (uintptr_t)tensor->data % ALIGNMENT == 0) {
        return SMELT_OK;
    }
    if (!smelt_block_fits(&session->memory, &taken->current, taken->bytes)
        || (!contiguous && !gather_input(session, tensor, taken, &taken->host))) {
        return smelt_fail(error, SMELT_ERROR_MEMORY, "no memory to copy input %s", info->name);
    }
    taken->data = taken->current.memory;
    taken->staged = true;
    return is_there ? smelt_move(session, taken->data, tensor->data, taken->bytes, error)
                    : smelt_put(session, taken->data, contiguous ? tensor->data : taken->host.memory, taken->bytes, error);
}

static smelt_status
take_input(smelt_session *session, size_t number, const smelt_tensor *tensor, smelt_error *error)
{
    const smelt_info *info = &session->model->inputs.infos[number];
    const int64_t place = session->model->inputs.registers[number];
    Register *taken = &session->registers[place];
    taken->ready = taken->staged = false;
    if (tensor->dtype == SMELT_NONE) {
        return info->flags & SMELT_OPTIONAL ? SMELT_OK
                                            : smelt_fail(error, SMELT_ERROR_INPUT, "input %s is missing", info->name);
    }
    if (tensor->dtype != info->dtype) {
        return smelt_fail(error, SMELT_ERROR_INPUT, "input %s is %s, and must be %s", info->name,
                          smelt_dtype_name(tensor->dtype), smelt_dtype_name(info->dtype));
    }
    if (tensor->rank != info->rank || (tensor->rank && tensor->sizes == NULL)) {
        return smelt_fail(error, SMELT_ERROR_INPUT, "input %s has %d dimensions, and must have %d", info->name,
                          tensor->rank, info->rank);
    }
    smelt_status status = check_sizes(session, &session->model->table.registers[place], info, tensor, error);
    if (status) {
        return status;
    }
    const int64_t item = smelt_item_size(info->dtype), bytes = smelt_sized_bytes(tensor->sizes, tensor->rank, item);
    if (bytes < 0) {
        return smelt_fail(error, SMELT_ERROR_SIZE, "input %s is too large", info->name);
    }
    if (bytes && tensor->data == NULL) {
        return smelt_fail(error, SMELT_ERROR_INPUT, "input %s has no data", info->name);
    }
    for (int i = 0; i < tensor->rank; i++) {
        taken->sizes[i] = tensor->sizes[i];
    }
    taken->bytes = bytes;
    taken->data = bytes ? tensor->data : session->empty;
    const bool is_there = bytes && smelt_is_there(session, tensor->data);
    status = !bytes ? SMELT_OK
             : session->model->on_cuda ? take_to_gpu(session, info, tensor, taken, is_there, error)
                                       : take_to_host(session, info, tensor, taken, error);
    if (status) {
        return status;
    }
    if (info->rank == 0) {
        taken->number = 0;
        const int64_t known = bytes < (int64_t)sizeof taken->number ? bytes : (int64_t)sizeof taken->number;
        status = is_there ? smelt_fetch(session, &taken->number, tensor->data, known, error) : SMELT_OK;
        if (!is_there) {
            memcpy(&taken->number, tensor->data, (size_t)known);
        }
    }
    if (info->choice_count) {
        const int64_t choice = taken->number;
        if (status) {
            return status;
        }
        if (choice < 0 || (uint64_t)choice >= info->choice_count) {
            return smelt_fail(error, SMELT_ERROR_INPUT, "input %s is choice %lld, and has %zu", info->name,
                              (long long)choice, info->choice_count);
        }
    }
    taken->ready = !status;
    return status;
}

/* What the model wrote to an input that was copied. */
static smelt_status
give_back(smelt_session *session, size_t number, const smelt_tensor *tensor, smelt_error *error)
{
    const smelt_info *info = &session->model->inputs.infos[number];
    Register *taken = &session->registers[session->model->inputs.registers[number]];
    if (!taken->staged || !(info->flags & SMELT_WRITTEN)) {
        return SMELT_OK;
    }
    if (smelt_is_there(session, tensor->data)) {
        return smelt_move(session, tensor->data, taken->data, taken->bytes, error);
    }
    const char *from = taken->data;
    if (session->model->on_cuda) {
        smelt_status status = smelt_block_fits(&session->allocator, &taken->host, taken->bytes)
                                  ? smelt_fetch(session, taken->host.memory, from, taken->bytes, error)
                                  : smelt_fail(error, SMELT_ERROR_MEMORY, "no memory to copy input %s", info->name);
        if (status) {
            return status;
        }
        from = taken->host.memory;
    }
    int64_t strides[SMELT_MAX_RANK];
    smelt_contiguous_strides(taken->sizes, info->rank, strides);
    smelt_copy_strided(tensor->data, tensor->strides ? tensor->strides : strides, from, strides, taken->sizes, info->rank,
                       smelt_item_size(info->dtype));
    return SMELT_OK;
}

static smelt_status
take_inputs(smelt_session *session, const smelt_tensor *inputs, size_t count, smelt_error *error)
{
    const size_t expected = session->model->inputs.count;
    if (count && inputs == NULL) {
        return smelt_fail(error, SMELT_ERROR_INPUT, "the inputs are NULL, and the model takes %zu", expected);
    }
    if (count != expected) {
        return smelt_fail(error, SMELT_ERROR_INPUT, "the model takes %zu inputs, and got %zu", expected, count);
    }
    for (int64_t i = 0; i < session->model->group_count; i++) {
        session->groups[i] = -1;
    }
    for (size_t i = 0; i < count; i++) {
        const smelt_status status = take_input(session, i, &inputs[i], error);
        if (status) {
            return status;
        }
    }
    return SMELT_OK;
}

/* Nothing of a call is under way any more when it ends, however it does. */
static smelt_status
run_inside(smelt_session *session, const smelt_tensor *inputs, size_t count, smelt_error *error)
{
    smelt_status status = take_inputs(session, inputs, count, error);
    if (!status) {
        Threads *before = smelt_threads_begin(&session->threads);
        status = smelt_run_states(session, error);
        smelt_threads_end(before);
    }
    for (size_t i = 0; !status && i < count; i++) {
        status = give_back(session, i, &inputs[i], error);
    }
    const smelt_status waited = smelt_settle(session, status ? NULL : error);
    return status ? status : waited;
}

smelt_status
smelt_run(smelt_session *session, const smelt_tensor *inputs, size_t count, smelt_error *error)
{
    if (session == NULL) {
        return smelt_fail(error, SMELT_ERROR_ARGUMENT, "there is no session to run");
    }
    if (atomic_flag_test_and_set(&session->busy)) {
        return smelt_fail(error, SMELT_ERROR_ARGUMENT, "the session is in use: each thread needs its own");
    }
    session->returned = false;
    CudaContext context;
    smelt_status status = smelt_enter(session, &context, error);
    if (!status) {
        status = run_inside(session, inputs, count, error);
        smelt_leave(session, context);
    }
    session->returned = !status;
    atomic_flag_clear(&session->busy);
    return status;
}
