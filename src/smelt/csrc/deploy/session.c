/* Creates sessions, takes inputs and returns outputs. executor/run runs the model. */
#include "deploy/session_parts.h"

#include "executor/platform/platform.h"
#include "executor/run/run.h"
#include "deploy/memory.h"

#include <string.h>

/* --- making and freeing -------------------------------------------------------------------------------------- */

/* The session's own copy of the STATE section: pages of the file, copied once they are written; or all of it. */
static bool
map_state(smelt_session *session)
{
    const File *file = &session->model->file;
    const FileSection *section = file->state;
    if (section->bytes == 0) {
        session->state = session->empty;
        return true;
    }
    if (session->model->on_cuda) {
        session->state = session->memory.allocate(session->memory.context, (size_t)section->bytes, FILE_ALIGN);
        return session->state
               && !run_copy(&session->runs->run, TO_REGISTERS, session->state, file_bytes(file, section), section->bytes,
                            NULL);
    }
    if (file->descriptor < 0) {
        session->state = session->allocator.allocate(session->allocator.context, (size_t)section->bytes, FILE_ALIGN);
        if (session->state) {
            memcpy(session->state, file_bytes(file, section), (size_t)section->bytes);
        }
        return session->state != NULL;
    }
    const int64_t before = section->offset % (int64_t)smelt_map_granularity();
    char *map = smelt_map_new(file->descriptor, section->offset - before, (size_t)(before + section->bytes), true);
    if (map == NULL) {
        return false;
    }
    session->state_map = map;
    session->state_mapped = (size_t)(before + section->bytes);
    session->state = map + before;
    return true;
}

static size_t
parameter_count(const Entry *entry)
{
    return (size_t)(entry->most_buffers + 1 + entry->most_sizes);
}

/* A stream, and memory of a GPU for what has none. */
static bool
prepare_gpu(smelt_session *session)
{
    enum { NON_BLOCKING = 1 };
    if (session->model->cuda.driver.stream_create(&session->stream, NON_BLOCKING)) {
        session->stream = NULL;
        return false;
    }
    session->empty = session->memory.allocate(session->memory.context, sizeof session->nothing, FILE_ALIGN);
    return session->empty != NULL;
}

/* Where there is a library that multiplies. */
static bool
make_product_plans(EntryRun *at)
{
    smelt_session *session = at->session;
    const size_t count = (size_t)at->entry->table.counts[PRODUCTS];
    if (session->model->cuda.cublas.handle == NULL) {
        return true;
    }
    at->products.plans = smelt_allocate(&session->allocator, count, sizeof *at->products.plans);
    at->products.next = smelt_allocate(&session->allocator, count, sizeof *at->products.next);
    return at->products.plans && at->products.next;
}

static void
drop_product_plans(EntryRun *at)
{
    smelt_session *session = at->session;
    const Cuda *cuda = &session->model->cuda;
    const int64_t count = at->entry->table.counts[PRODUCTS];
    smelt_cublas_drop_plans(&cuda->cublas, &cuda->driver, &at->products, count);
    smelt_release(&session->allocator, at->products.plans, (size_t)count, sizeof *at->products.plans);
    smelt_release(&session->allocator, at->products.next, (size_t)count, sizeof *at->products.next);
}

static smelt_status
launch_kernel(Run *run, const VariantRecord *variant, const Plan *plan, const LaunchRecord *launch, smelt_error *error)
{
    (void)variant, (void)plan, (void)error;
    const Code *code = &((const EntryRun *)run)->entry->code;
    smelt_commit_stack();
    code_kernel(code, launch->kernel)(run->buffers, run->threads, run->workspace.memory);
    return SMELT_OK;
}

/* The fields of a run that its session sets, but for its state. */
static void
describe_run(smelt_session *session, const Entry *entry, EntryRun *at, const smelt_session_options *options)
{
    smelt_model *model = session->model;
    at->session = session;
    at->entry = entry;
    at->run = (Run){.table = &entry->table,
                    .allocator = &session->allocator,
                    .memory = &session->memory,
                    .launch = launch_kernel,
                    .constants = model_weights(model),
                    .nothing = session->nothing,
                    .threads = session->threads.threads,
                    .most_states = options->most_states};
    if (model->on_cuda) {
        at->run.device = &smelt_gpu_memory;
        at->run.launch = smelt_launch_grids;
        if (model->cuda.weights) {
            at->run.constants = (const char *)(uintptr_t)model->cuda.weights;
        }
    }
}

static bool
begin_run(EntryRun *at)
{
    smelt_session *session = at->session;
    at->run.state_data = session->state;
    at->run.empty = session->empty;
    at->inputs = smelt_allocate(&session->allocator, at->entry->inputs.count, sizeof *at->inputs);
    at->parameters = smelt_allocate(&session->allocator, parameter_count(at->entry), sizeof(void *));
    return at->inputs && at->parameters && make_product_plans(at) && smelt_run_begin(&at->run);
}

static bool
make_parts(smelt_session *session, const smelt_session_options *options)
{
    const smelt_model *model = session->model;
    session->runs = session->chosen = smelt_allocate(&session->allocator, model->entry_count, sizeof *session->runs);
    if (session->runs == NULL) {
        return false;
    }
    for (size_t i = 0; i < model->entry_count; i++) {
        describe_run(session, &model->entries[i], &session->runs[i], options);
    }
    bool is_made = (!model->on_cuda || prepare_gpu(session)) && map_state(session);
    for (size_t i = 0; is_made && i < model->entry_count; i++) {
        is_made = begin_run(&session->runs[i]);
    }
    return is_made;
}

/* Memory and threads, as its caller wants them. */
static void
describe_session(smelt_session *session, const smelt_session_options *options)
{
    smelt_model *model = session->model;
    session->allocator = session->memory = model->allocator;
    session->empty = session->nothing;
    if (model->on_cuda) {
        session->memory = smelt_gpu_allocator(&model->cuda.driver);
        session->empty = NULL;
    }
    session->threads = (Threads){.threads = options->threads ? options->threads : smelt_processor_count(),
                                 .parallel_for = options->parallel_for,
                                 .context = options->parallel_context,
                                 .allocator = &session->allocator};
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
    describe_session(new_session, &options);
    atomic_fetch_add(&model->references, 1);
    atomic_flag_clear(&new_session->busy);
    CudaContext before;
    const smelt_status status = smelt_enter(new_session, &before, error);
    const bool is_made = !status && make_parts(new_session, &options);
    if (!status) {
        smelt_leave(new_session, before);
    }
    if (!is_made) {
        smelt_session_free(new_session);
        return status ? status : smelt_fail(error, SMELT_ERROR_MEMORY, "no memory for a session");
    }
    *session = new_session;
    return SMELT_OK;
}

static void
drop_run(EntryRun *at)
{
    smelt_session *session = at->session;
    const size_t inputs = at->entry->inputs.count;
    smelt_run_end(&at->run);
    for (size_t i = 0; at->inputs && i < inputs; i++) {
        smelt_block_drop(&session->allocator, &at->inputs[i].host);
    }
    smelt_release(&session->allocator, at->inputs, inputs, sizeof *at->inputs);
    smelt_release(&session->allocator, at->parameters, parameter_count(at->entry), sizeof(void *));
    drop_product_plans(at);
}

static void
drop_parts(smelt_session *session)
{
    const smelt_model *model = session->model;
    const smelt_allocator *memory = &session->memory;
    for (size_t i = 0; session->runs && i < model->entry_count; i++) {
        drop_run(&session->runs[i]);
    }
    smelt_release(&session->allocator, session->runs, model->entry_count, sizeof *session->runs);
    if (session->state_mapped) {
        smelt_map_free(session->state_map, session->state_mapped);
    }
    else if (session->state && session->state != session->empty) {
        memory->release(memory->context, session->state, (size_t)model->file.state->bytes);
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
check_sizes(EntryRun *at, const RegisterRecord *record, const smelt_info *info, const smelt_tensor *tensor,
            smelt_error *error)
{
    const int64_t i = smelt_run_wrong_dimension(&at->run, record, tensor->sizes);
    if (i < 0) {
        return SMELT_OK;
    }
    const smelt_dim *dim = &info->dims[i];
    const long long size = tensor->sizes[i], place = i, low = dim->low, high = dim->high;
    if (size >= low && size <= high) {
        const long long elsewhere = ~at->run.named[at->entry->table.dims[record->dims + i].name];
        return smelt_fail(error, SMELT_ERROR_SIZE, "input %s: dimension %lld is %lld, and %s is %lld elsewhere", info->name,
                          place, size, dim->name, elsewhere);
    }
    if (low == high) {
        return smelt_fail(error, SMELT_ERROR_SIZE, "input %s: dimension %lld is %lld, and must be %lld", info->name, place,
                          size, low);
    }
    return smelt_fail(error, SMELT_ERROR_SIZE, "input %s: dimension %lld%s%s is %lld, and must be from %lld to %lld",
                      info->name, place, dim->name ? " " : "", dim->name ? dim->name : "", size, low, high);
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
gather_input(EntryRun *at, const smelt_tensor *tensor, Register *taken, Block *block)
{
    int64_t strides[SMELT_MAX_RANK];
    smelt_contiguous_strides(taken->sizes, tensor->rank, strides);
    if (!smelt_block_fits(at->run.allocator, block, taken->bytes)) {
        return false;
    }
    smelt_copy_strided(block->memory, strides, tensor->data, tensor->strides ? tensor->strides : strides, taken->sizes,
                       tensor->rank, table_item_size(tensor->dtype));
    return true;
}

static smelt_status
take_to_host(EntryRun *at, const smelt_info *info, const smelt_tensor *tensor, Register *taken,
             TakenInput *input, smelt_error *error)
{
    if (is_contiguous(tensor) && (uintptr_t)tensor->data % (uintptr_t)table_item_size(info->dtype) == 0) {
        return SMELT_OK;
    }
    if (!gather_input(at, tensor, taken, &taken->current)) {
        return smelt_fail(error, SMELT_ERROR_MEMORY, "no memory to copy input %s", info->name);
    }
    taken->data = taken->current.memory;
    input->staged = true;
    return SMELT_OK;
}

/* Memory of the GPU is used where it is, if it begins where kernels take all memory to begin. */
static smelt_status
take_to_gpu(EntryRun *at, const smelt_info *info, const smelt_tensor *tensor, Register *taken,
            TakenInput *input, bool is_there, smelt_error *error)
{
    enum { ALIGNMENT = 16 };
    const bool contiguous = is_contiguous(tensor);
    if (is_there && !contiguous) {
        return smelt_fail(error, SMELT_ERROR_INPUT, "input %s is in memory of a GPU, and not contiguous", info->name);
    }
    if (is_there && (uintptr_t)tensor->data % ALIGNMENT == 0) {
        return SMELT_OK;
    }
    if (!smelt_block_fits(at->run.memory, &taken->current, taken->bytes)
        || (!contiguous && !gather_input(at, tensor, taken, &input->host))) {
        return smelt_fail(error, SMELT_ERROR_MEMORY, "no memory to copy input %s", info->name);
    }
    taken->data = taken->current.memory;
    input->staged = true;
    return is_there ? run_copy(&at->run, WITHIN_REGISTERS, taken->data, tensor->data, taken->bytes, error)
                    : run_copy(&at->run, TO_REGISTERS, taken->data, contiguous ? tensor->data : input->host.memory,
                               taken->bytes, error);
}

static smelt_status
take_input(EntryRun *at, size_t number, const smelt_tensor *tensor, smelt_error *error)
{
    const smelt_info *info = &at->entry->inputs.infos[number];
    const int64_t place = at->entry->inputs.registers[number];
    Register *taken = &at->run.registers[place];
    TakenInput *input = &at->inputs[number];
    taken->ready = input->staged = false;
    if (tensor->dtype == SMELT_NONE) {
        return info->flags & SMELT_OPTIONAL ? SMELT_OK
                                            : smelt_fail(error, SMELT_ERROR_INPUT, "input %s is missing", info->name);
    }
    if (tensor->dtype != info->dtype) {
        return smelt_fail(error, SMELT_ERROR_INPUT, "input %s is %s, and must be %s", info->name,
                          smelt_dtype_name(tensor->dtype), smelt_dtype_name(info->dtype));
    }
    if (tensor->rank != info->rank) {
        return smelt_fail(error, SMELT_ERROR_INPUT, "input %s has %d dimensions, and must have %d", info->name,
                          tensor->rank, info->rank);
    }
    if (tensor->rank && tensor->sizes == NULL) {
        return smelt_fail(error, SMELT_ERROR_INPUT, "input %s has no sizes", info->name);
    }
    smelt_status status = check_sizes(at, &at->entry->table.registers[place], info, tensor, error);
    if (status) {
        return status;
    }
    const int64_t item = table_item_size(info->dtype), bytes = smelt_sized_bytes(tensor->sizes, tensor->rank, item);
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
    taken->data = bytes ? tensor->data : at->run.empty;
    const bool is_there = bytes && run_is_there(&at->run, tensor->data);
    status = !bytes ? SMELT_OK
             : at->run.device ? take_to_gpu(at, info, tensor, taken, input, is_there, error)
                                       : take_to_host(at, info, tensor, taken, input, error);
    if (status) {
        return status;
    }
    if (info->rank == 0) {
        taken->number = 0;
        const int64_t known = bytes < (int64_t)sizeof taken->number ? bytes : (int64_t)sizeof taken->number;
        status = is_there ? run_fetch(&at->run, &taken->number, tensor->data, known, error) : SMELT_OK;
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
give_back(EntryRun *at, size_t number, const smelt_tensor *tensor, smelt_error *error)
{
    const smelt_info *info = &at->entry->inputs.infos[number];
    const Register *taken = &at->run.registers[at->entry->inputs.registers[number]];
    TakenInput *input = &at->inputs[number];
    if (!input->staged || !(info->flags & SMELT_WRITTEN)) {
        return SMELT_OK;
    }
    if (run_is_there(&at->run, tensor->data)) {
        return run_copy(&at->run, WITHIN_REGISTERS, tensor->data, taken->data, taken->bytes, error);
    }
    const char *from = taken->data;
    if (at->run.device) {
        smelt_status status = smelt_block_fits(at->run.allocator, &input->host, taken->bytes)
                                  ? run_fetch(&at->run, input->host.memory, from, taken->bytes, error)
                                  : smelt_fail(error, SMELT_ERROR_MEMORY, "no memory to copy input %s", info->name);
        if (status) {
            return status;
        }
        from = input->host.memory;
    }
    int64_t strides[SMELT_MAX_RANK];
    smelt_contiguous_strides(taken->sizes, info->rank, strides);
    smelt_copy_strided(tensor->data, tensor->strides ? tensor->strides : strides, from, strides, taken->sizes, info->rank,
                       table_item_size(info->dtype));
    return SMELT_OK;
}

static smelt_status
take_inputs(EntryRun *at, const smelt_tensor *inputs, size_t count, smelt_error *error)
{
    const size_t expected = at->entry->inputs.count;
    if (count && inputs == NULL) {
        return smelt_fail(error, SMELT_ERROR_INPUT, "the inputs are NULL, and the model takes %zu", expected);
    }
    if (count != expected) {
        return smelt_fail(error, SMELT_ERROR_INPUT, "the model takes %zu inputs, and got %zu", expected, count);
    }
    for (size_t i = 0; i < count; i++) {
        smelt_run_forget(&at->run, &at->entry->table.registers[at->entry->inputs.registers[i]]);
    }
    for (size_t i = 0; i < count; i++) {
        const smelt_status status = take_input(at, i, &inputs[i], error);
        if (status) {
            return status;
        }
    }
    return SMELT_OK;
}

/* Nothing of a call is under way any more when it ends, however it does. */
static smelt_status
run_inside(EntryRun *at, const smelt_tensor *inputs, size_t count, smelt_error *error)
{
    smelt_status status = take_inputs(at, inputs, count, error);
    if (!status) {
        Threads *before = smelt_threads_begin(&at->session->threads);
        status = smelt_run_states(&at->run, error);
        smelt_threads_end(before);
    }
    for (size_t i = 0; !status && i < count; i++) {
        status = give_back(at, i, &inputs[i], error);
    }
    const smelt_status waited = run_settle(&at->run, status ? NULL : error);
    return status ? status : waited;
}

smelt_status
smelt_session_choose(smelt_session *session, size_t entry, smelt_error *error)
{
    if (session == NULL || entry >= session->model->entry_count) {
        return smelt_fail(error, SMELT_ERROR_ARGUMENT, "there is no entry point %zu", entry);
    }
    CudaContext before;
    const smelt_status status = smelt_begin_call(session, &before, error);
    if (!status) {
        session->chosen = &session->runs[entry];
        smelt_end_call(session, before);
    }
    return status;
}

smelt_status
smelt_run(smelt_session *session, const smelt_tensor *inputs, size_t count, smelt_error *error)
{
    if (session == NULL) {
        return smelt_fail(error, SMELT_ERROR_ARGUMENT, "there is no session to run");
    }
    CudaContext before;
    smelt_status status = smelt_begin_call(session, &before, error);
    if (!status) {
        EntryRun *at = session->chosen;
        at->returned = false;
        status = run_inside(at, inputs, count, error);
        at->returned = !status;
        smelt_end_call(session, before);
    }
    return status;
}

/* --- outputs ------------------------------------------------------------------------------------------------- */

smelt_status
smelt_output(const smelt_session *session, size_t number, smelt_tensor *output, smelt_error *error)
{
    if (session == NULL || output == NULL || number >= session->chosen->entry->outputs.count) {
        return smelt_fail(error, SMELT_ERROR_ARGUMENT, "there is no output %zu", number);
    }
    if (!session->chosen->returned) {
        return smelt_fail(error, SMELT_ERROR_ARGUMENT, "there are no outputs before a call that succeeds");
    }
    *output = session->chosen->run.outputs[number].tensor;
    return SMELT_OK;
}

smelt_status
smelt_bind_output(smelt_session *session, size_t number, void *data, size_t bytes, smelt_error *error)
{
    if (session == NULL || number >= session->chosen->entry->outputs.count) {
        return smelt_fail(error, SMELT_ERROR_ARGUMENT, "there is no output %zu", number);
    }
    session->chosen->run.outputs[number].bound = data;
    session->chosen->run.outputs[number].bound_bytes = data ? bytes : 0;
    return SMELT_OK;
}

smelt_status
smelt_returned(const smelt_session *session, int64_t *state, int64_t *variant, smelt_error *error)
{
    if (session == NULL || state == NULL || variant == NULL || !session->chosen->returned) {
        return smelt_fail(error, SMELT_ERROR_ARGUMENT, "no call has returned");
    }
    *state = session->chosen->run.state;
    *variant = session->chosen->run.variant;
    return SMELT_OK;
}
