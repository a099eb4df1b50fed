/* Sessions: made, given inputs, and asked for outputs. What happens in between is in run.c. */
#define _GNU_SOURCE
#include "deploy/session.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* --- memory ------------------------------------------------------------------------------------------------ */

bool
smelt_block_fits(const smelt_allocator *allocator, Block *block, int64_t size)
{
    if ((uint64_t)size <= block->size) {
        return true;
    }
    if (size > MOST_BYTES) {
        return false;
    }
    /* What grows once may grow again, as in loops that append. */
    size_t room = (size_t)size;
    if (block->size && room < block->size + block->size / 2) {
        room = block->size + block->size / 2;
    }
    room = (room + FILE_ALIGN - 1) / FILE_ALIGN * FILE_ALIGN;
    smelt_block_drop(allocator, block);
    block->memory = allocator->allocate(allocator->context, room, FILE_ALIGN);
    block->size = block->memory ? room : 0;
    return block->memory != NULL;
}

void
smelt_block_drop(const smelt_allocator *allocator, Block *block)
{
    if (block->memory) {
        allocator->release(allocator->context, block->memory, block->size);
    }
    *block = (Block){NULL, 0};
}

int64_t
smelt_sized_bytes(const int64_t *sizes, int64_t rank, int64_t item)
{
    int64_t bytes = item;
    bool empty = false;
    for (int64_t i = 0; i < rank; i++) {
        if (sizes[i] < 0) {
            return -1;
        }
        empty = empty || sizes[i] == 0;
    }
    for (int64_t i = 0; !empty && i < rank; i++) {
        if (__builtin_mul_overflow(bytes, sizes[i], &bytes) || bytes > MOST_BYTES) {
            return -1;
        }
    }
    return empty ? 0 : bytes;
}

void
smelt_contiguous_strides(const int64_t *sizes, int64_t rank, int64_t *strides)
{
    int64_t step = 1;
    for (int64_t i = rank; i-- > 0;) {
        strides[i] = step;
        step *= sizes[i] > 1 ? sizes[i] : 1; /* as many as there are elements, which were counted */
    }
}

void
smelt_copy_strided(char *to, const int64_t *to_strides, const char *from, const int64_t *from_strides,
                   const int64_t *sizes, int64_t rank, int64_t item)
{
    int64_t run = 1, inner = rank; /* the last dimensions that are contiguous on both sides are one run of bytes */
    while (inner > 0 && (sizes[inner - 1] == 1 || (to_strides[inner - 1] == run && from_strides[inner - 1] == run))) {
        run *= sizes[--inner];
    }
    if (inner == 0) {
        memcpy(to, from, (size_t)(run * item));
        return;
    }
    for (int64_t i = 0; i < sizes[0]; i++) {
        smelt_copy_strided(to + i * to_strides[0] * item, to_strides + 1, from + i * from_strides[0] * item,
                           from_strides + 1, sizes + 1, rank - 1, item);
    }
}

/* --- making and freeing -------------------------------------------------------------------------------------- */

/* The session's own copy of the STATE section: pages of the file, copied once they are written; or all of it. */
static bool
map_state(smelt_session *session)
{
    const File *file = &session->model->file;
    const FileSection *section = file->state;
    if (section->bytes == 0) {
        session->state_data = session->nothing;
        return true;
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
    session->register_sizes = smelt_allocate(allocator, session->register_size_count, sizeof(int64_t));
    session->plans = smelt_allocate(allocator, (size_t)table->counts[VARIANTS], sizeof(Plan));
    session->outputs = smelt_allocate(allocator, model->outputs.count, sizeof(Output));
    session->symbols = smelt_allocate(allocator, (size_t)model->most_symbols, sizeof(int64_t));
    session->groups = smelt_allocate(allocator, (size_t)model->group_count, sizeof(int64_t));
    session->buffers = smelt_allocate(allocator, (size_t)model->most_buffers, sizeof(void *));
    return session->registers && session->register_sizes && session->plans && session->outputs && session->symbols
           && session->groups && session->buffers && map_state(session);
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
        Register *made = &session->registers[i];
        made->sizes = sizes;
        sizes += record->rank;
        if (record->kind != CONSTANT_REGISTER && record->kind != STATE_REGISTER) {
            continue;
        }
        const char *begin = record->kind == STATE_REGISTER ? session->state_data
                                                           : file_bytes(&model->file, model->file.weights);
        made->data = (char *)begin + record->data; /* constants are never written: no value that is may be one */
        made->bytes = record->bytes;
        made->ready = true;
        for (int64_t k = 0; k < record->rank; k++) {
            made->sizes[k] = table->dims[record->dims + k].low;
        }
    }
}

smelt_status
smelt_session_new(smelt_model *model, const smelt_session_options *options, smelt_session **session, smelt_error *error)
{
    if (model == NULL || session == NULL || (options && options->size != sizeof *options)
        || (options && (options->threads < 0 || options->threads > MOST_THREADS || options->most_states < 0))) {
        return smelt_fail(error, SMELT_ERROR_ARGUMENT, "a session needs a model, a place for it, and sensible options");
    }
    *session = NULL;
    if (!model->runs) {
        return smelt_fail(error, SMELT_ERROR_ARGUMENT, "the model was opened without its code, to be looked at only");
    }
    smelt_session *made = smelt_allocate(&model->allocator, 1, sizeof *made);
    if (made == NULL) {
        return smelt_fail(error, SMELT_ERROR_MEMORY, "no memory for a session");
    }
    made->model = model;
    made->allocator = model->allocator;
    atomic_fetch_add(&model->references, 1);
    atomic_flag_clear(&made->busy);
    const int threads = options && options->threads ? options->threads : smelt_processor_count();
    made->parallel = (Parallel){.threads = threads, .allocator = &made->allocator};
    if (options) {
        made->parallel.parallel_for = options->parallel_for;
        made->parallel.context = options->parallel_context;
        made->most_states = options->most_states;
    }
    if (!make_parts(made)) {
        smelt_session_free(made);
        return smelt_fail(error, SMELT_ERROR_MEMORY, "no memory for a session");
    }
    place_registers(made);
    *session = made;
    return SMELT_OK;
}

static void
drop_parts(smelt_session *session)
{
    const smelt_model *model = session->model;
    const Table *table = &model->table;
    const smelt_allocator *allocator = &session->allocator;
    for (int64_t i = 0; session->registers && i < table->counts[REGISTERS]; i++) {
        smelt_block_drop(allocator, &session->registers[i].current);
        smelt_block_drop(allocator, &session->registers[i].spare);
    }
    for (int64_t i = 0; session->plans && i < table->counts[VARIANTS]; i++) {
        smelt_release(allocator, session->plans[i].memory, session->plans[i].words, sizeof(int64_t));
    }
    for (size_t i = 0; session->outputs && i < model->outputs.count; i++) {
        smelt_block_drop(allocator, &session->outputs[i].copy);
    }
    smelt_block_drop(allocator, &session->arena);
    smelt_block_drop(allocator, &session->workspace);
    smelt_release(allocator, session->registers, (size_t)table->counts[REGISTERS], sizeof(Register));
    smelt_release(allocator, session->register_sizes, session->register_size_count, sizeof(int64_t));
    smelt_release(allocator, session->plans, (size_t)table->counts[VARIANTS], sizeof(Plan));
    smelt_release(allocator, session->outputs, model->outputs.count, sizeof(Output));
    smelt_release(allocator, session->symbols, (size_t)model->most_symbols, sizeof(int64_t));
    smelt_release(allocator, session->groups, (size_t)model->group_count, sizeof(int64_t));
    smelt_release(allocator, session->buffers, (size_t)model->most_buffers, sizeof(void *));
    if (session->state_mapped) {
        munmap(session->state_map, session->state_mapped);
    }
    else if (session->state_data && session->state_data != session->nothing) {
        allocator->release(allocator->context, session->state_data, (size_t)model->file.state->bytes);
    }
}

void
smelt_session_free(smelt_session *session)
{
    if (session == NULL) {
        return;
    }
    smelt_parallel_stop(&session->parallel);
    drop_parts(session);
    smelt_model *model = session->model;
    const smelt_allocator allocator = session->allocator;
    smelt_release(&allocator, session, 1, sizeof *session);
    smelt_model_close(model);
}

smelt_model *
smelt_session_model(const smelt_session *session)
{
    return session->model;
}

/* --- inputs -------------------------------------------------------------------------------------------------- */

static smelt_status
check_sizes(smelt_session *session, const RegisterRecord *record, const smelt_info *info, const smelt_tensor *given,
            smelt_error *error)
{
    for (int i = 0; i < info->rank; i++) {
        const smelt_dim *dim = &info->dims[i];
        const int64_t size = given->sizes[i], group = session->model->dim_groups[record->dims + i];
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

static smelt_status
take_input(smelt_session *session, size_t number, const smelt_tensor *given, smelt_error *error)
{
    const smelt_info *info = &session->model->inputs.infos[number];
    const int64_t place = session->model->inputs.registers[number];
    Register *taken = &session->registers[place];
    taken->ready = taken->staged = false;
    if (given->dtype == SMELT_NONE) {
        return info->flags & SMELT_OPTIONAL ? SMELT_OK
                                            : smelt_fail(error, SMELT_ERROR_INPUT, "input %s is missing", info->name);
    }
    if (given->dtype != info->dtype) {
        return smelt_fail(error, SMELT_ERROR_INPUT, "input %s is %s, and must be %s", info->name,
                          smelt_dtype_name(given->dtype), smelt_dtype_name(info->dtype));
    }
    if (given->rank != info->rank || (given->rank && given->sizes == NULL)) {
        return smelt_fail(error, SMELT_ERROR_INPUT, "input %s has %d dimensions, and must have %d", info->name,
                          given->rank, info->rank);
    }
    smelt_status status = check_sizes(session, &session->model->table.registers[place], info, given, error);
    if (status) {
        return status;
    }
    const int64_t item = smelt_item_size(info->dtype), bytes = smelt_sized_bytes(given->sizes, given->rank, item);
    if (bytes < 0) {
        return smelt_fail(error, SMELT_ERROR_SIZE, "input %s is too large", info->name);
    }
    if (bytes && given->data == NULL) {
        return smelt_fail(error, SMELT_ERROR_INPUT, "input %s has no data", info->name);
    }
    for (int i = 0; i < given->rank; i++) {
        taken->sizes[i] = given->sizes[i];
    }
    taken->bytes = bytes;
    taken->data = bytes ? given->data : session->nothing;
    if (bytes && (!is_contiguous(given) || (uintptr_t)given->data % (uintptr_t)item)) {
        int64_t strides[SMELT_MAX_RANK];
        smelt_contiguous_strides(taken->sizes, given->rank, strides);
        if (!smelt_block_fits(&session->allocator, &taken->current, bytes)) {
            return smelt_fail(error, SMELT_ERROR_MEMORY, "no memory to copy input %s", info->name);
        }
        smelt_copy_strided(taken->current.memory, strides, given->data, given->strides ? given->strides : strides,
                           taken->sizes, given->rank, item);
        taken->data = taken->current.memory;
        taken->staged = true;
    }
    if (info->choice_count) {
        int64_t choice;
        memcpy(&choice, taken->data, sizeof choice);
        if (choice < 0 || (uint64_t)choice >= info->choice_count) {
            return smelt_fail(error, SMELT_ERROR_INPUT, "input %s is choice %lld, and has %zu", info->name,
                              (long long)choice, info->choice_count);
        }
    }
    taken->ready = true;
    return SMELT_OK;
}

/* What the model wrote to an input that was copied. */
static void
give_back(smelt_session *session, size_t number, const smelt_tensor *given)
{
    const smelt_info *info = &session->model->inputs.infos[number];
    const Register *taken = &session->registers[session->model->inputs.registers[number]];
    if (taken->staged && info->flags & SMELT_WRITTEN) {
        int64_t strides[SMELT_MAX_RANK];
        smelt_contiguous_strides(taken->sizes, info->rank, strides);
        smelt_copy_strided(given->data, given->strides ? given->strides : strides, taken->data, strides, taken->sizes,
                           info->rank, smelt_item_size(info->dtype));
    }
}

static smelt_status
take_inputs(smelt_session *session, const smelt_tensor *inputs, size_t count, smelt_error *error)
{
    const size_t expected = session->model->inputs.count;
    if (count != expected || (count && inputs == NULL)) {
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
    smelt_status status = take_inputs(session, inputs, count, error);
    if (!status) {
        Parallel *before = smelt_parallel_begin(&session->parallel);
        status = smelt_run_states(session, error);
        smelt_parallel_end(before);
    }
    for (size_t i = 0; !status && i < count; i++) {
        give_back(session, i, &inputs[i]);
    }
    session->returned = !status;
    atomic_flag_clear(&session->busy);
    return status;
}

/* --- outputs ------------------------------------------------------------------------------------------------- */

/* A view of a register, inside of it. */
static smelt_status
view_output(smelt_session *session, const ReturnedRecord *returned, const int64_t *symbols, Output *output,
            const char *name, smelt_error *error)
{
    const Table *table = &session->model->table;
    const RegisterRecord *record = &table->registers[returned->register_];
    const Register *source = &session->registers[returned->register_];
    const int64_t item = smelt_item_size(record->dtype);
    int64_t strides[SMELT_MAX_RANK], plain[SMELT_MAX_RANK], offset, last;
    bool fits = smelt_evaluate(table, returned->offset, symbols, &offset) && offset >= 0;
    last = offset;
    for (int64_t i = 0; fits && i < returned->rank; i++) {
        int64_t step;
        fits = smelt_evaluate(table, table->references[returned->dims + i].number, symbols, &output->sizes[i])
               && smelt_evaluate(table, table->references[returned->strides + i].number, symbols, &strides[i])
               && output->sizes[i] >= 0 && strides[i] >= 0
               && (output->sizes[i] == 0
                   || (!__builtin_mul_overflow(output->sizes[i] - 1, strides[i], &step)
                       && !__builtin_add_overflow(last, step, &last)));
    }
    const int64_t bytes = fits ? smelt_sized_bytes(output->sizes, returned->rank, item) : -1;
    if (bytes < 0 || (bytes && last >= source->bytes / item)) {
        return smelt_fail(error, SMELT_ERROR_FILE, "output %s lies outside of its register", name);
    }
    smelt_contiguous_strides(output->sizes, returned->rank, plain);
    bool contiguous = true;
    for (int64_t i = 0; i < returned->rank; i++) {
        contiguous = contiguous && (output->sizes[i] == 1 || strides[i] == plain[i]);
    }
    output->tensor.data = bytes ? source->data + offset * item : session->nothing;
    if (bytes && !contiguous) {
        if (!smelt_block_fits(&session->allocator, &output->copy, bytes)) {
            return smelt_fail(error, SMELT_ERROR_MEMORY, "no memory for output %s", name);
        }
        smelt_copy_strided(output->copy.memory, plain, output->tensor.data, strides, output->sizes, returned->rank, item);
        output->tensor.data = output->copy.memory;
    }
    return SMELT_OK;
}

static smelt_status
take_output(smelt_session *session, size_t number, const ReturnedRecord *returned, const int64_t *symbols,
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
    output->tensor.dtype = (smelt_dtype)record->dtype;
    if (returned->offset >= 0) {
        output->tensor.rank = (int)returned->rank;
        const smelt_status status = view_output(session, returned, symbols, output, name, error);
        if (status) {
            return status;
        }
    }
    else {
        output->tensor.rank = (int)record->rank;
        output->tensor.data = source->data;
        memcpy(output->sizes, source->sizes, sizeof(int64_t) * (size_t)record->rank);
        if (record->stride_count) { /* state or a constant */
            int64_t plain[SMELT_MAX_RANK], strides[SMELT_MAX_RANK];
            const int64_t item = smelt_item_size(record->dtype);
            const int64_t bytes = smelt_sized_bytes(output->sizes, record->rank, item);
            for (int64_t i = 0; i < record->rank; i++) {
                strides[i] = table->references[record->strides + i].number;
            }
            if (bytes < 0 || !smelt_block_fits(&session->allocator, &output->copy, bytes)) {
                return smelt_fail(error, SMELT_ERROR_MEMORY, "no memory for output %s", name);
            }
            smelt_contiguous_strides(output->sizes, record->rank, plain);
            if (bytes) {
                smelt_copy_strided(output->copy.memory, plain, source->data, strides, output->sizes, record->rank, item);
                output->tensor.data = output->copy.memory;
            }
        }
    }
    if (output->bound) {
        const int64_t bytes = smelt_sized_bytes(output->sizes, output->tensor.rank, smelt_item_size(record->dtype));
        if (bytes < 0 || (uint64_t)bytes > output->bound_bytes) {
            return smelt_fail(error, SMELT_ERROR_SIZE, "output %s has %lld bytes, and was given room for %zu", name,
                              (long long)bytes, output->bound_bytes);
        }
        memmove(output->bound, output->tensor.data, (size_t)bytes);
        output->tensor.data = output->bound;
    }
    return SMELT_OK;
}

smelt_status
smelt_take_outputs(smelt_session *session, const VariantRecord *variant, const int64_t *symbols, smelt_error *error)
{
    for (int64_t i = 0; i < variant->output_count; i++) {
        const ReturnedRecord *returned = &session->model->table.returned[variant->outputs + i];
        const smelt_status status = take_output(session, (size_t)i, returned, symbols, error);
        if (status) {
            return status;
        }
    }
    return SMELT_OK;
}

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
