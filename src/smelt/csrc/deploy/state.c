/* State of a session: reads and writes registers, saves and loads checkpoints. */
#include "deploy/session_parts.h"

#include "deploy/memory.h"

#include <string.h>

/* Strides of a register, in elements. */
static void
strides_of(const Table *table, const RegisterRecord *record, const int64_t *sizes, int64_t *strides)
{
    smelt_contiguous_strides(sizes, record->rank, strides);
    for (int64_t i = 0; i < record->stride_count; i++) {
        strides[i] = table->references[record->strides + i].number;
    }
}

smelt_status
smelt_state(smelt_session *session, size_t number, smelt_tensor *state, smelt_error *error)
{
    if (session == NULL || state == NULL || number >= session->model->entries->states.count) {
        return smelt_fail(error, SMELT_ERROR_ARGUMENT, "there is no state %zu", number);
    }
    if (session->model->on_cuda) {
        return smelt_fail(error, SMELT_ERROR_ARGUMENT, "state %s is in memory of a GPU: read and write copies of it",
                          session->model->entries->states.infos[number].name);
    }
    const int64_t place = session->model->entries->states.registers[number];
    const Table *table = &session->model->entries->table;
    const RegisterRecord *record = &table->registers[place];
    *state = (smelt_tensor){.dtype = (smelt_dtype)record->dtype, .rank = (int)record->rank,
                            .sizes = session->runs->run.registers[place].sizes, .data = session->runs->run.registers[place].data};
    if (record->stride_count) { /* references are words, one after the other */
        state->strides = &table->references[record->strides].number;
    }
    return SMELT_OK;
}

/* --- between registers, wherever they are, and the host --------------------------------------------------------- */

/* A register of state, and elements elsewhere with other strides. */
typedef struct {
    Register *own;
    const int64_t *strides, *theirs;
    int64_t rank, item;
} Piece;

/* Its bytes on the host: where they are, or copies of a GPU's. */
static smelt_status
look_at(smelt_session *session, const Piece *piece, char **data, smelt_error *error)
{
    *data = piece->own->data;
    if (!session->model->on_cuda) {
        return SMELT_OK;
    }
    if (!smelt_block_fits(&session->allocator, &session->runs->run.fetched, piece->own->bytes)) {
        return smelt_fail(error, SMELT_ERROR_MEMORY, "no memory to copy state");
    }
    *data = session->runs->run.fetched.memory;
    return run_fetch(&session->runs->run, *data, piece->own->data, piece->own->bytes, error);
}

static smelt_status
read_piece(smelt_session *session, const Piece *piece, void *to, smelt_error *error)
{
    char *data;
    const smelt_status status = look_at(session, piece, &data, error);
    if (!status) {
        smelt_copy_strided(to, piece->theirs, data, piece->strides, piece->own->sizes, piece->rank, piece->item);
    }
    return status;
}

/* What lies between its elements stays as it is. */
static smelt_status
write_piece(smelt_session *session, const Piece *piece, const void *from, smelt_error *error)
{
    char *data;
    smelt_status status = look_at(session, piece, &data, error);
    if (status) {
        return status;
    }
    smelt_copy_strided(data, piece->strides, from, piece->theirs, piece->own->sizes, piece->rank, piece->item);
    if (session->model->on_cuda) {
        status = run_copy(&session->runs->run, TO_REGISTERS, piece->own->data, data, piece->own->bytes, error);
        status = status ? status : run_settle(&session->runs->run, error);
    }
    return status;
}

/* All of the state at once: to the host (`to`) or from it. */
static smelt_status
copy_all(smelt_session *session, void *to, const void *from, smelt_error *error)
{
    const int64_t bytes = session->model->file.state->bytes;
    const smelt_status status = to ? run_fetch(&session->runs->run, to, session->state, bytes, error)
                                   : run_copy(&session->runs->run, TO_REGISTERS, session->state, from, bytes, error);
    return status ? status : run_settle(&session->runs->run, error);
}

/* Contiguous elements from or to a register. */
static smelt_status
copy_state(smelt_session *session, size_t number, void *to, const void *from, size_t bytes, smelt_error *error)
{
    if (session == NULL || number >= session->model->entries->states.count) {
        return smelt_fail(error, SMELT_ERROR_ARGUMENT, "there is no state %zu", number);
    }
    CudaContext before;
    smelt_status status = smelt_begin_call(session, &before, error);
    if (status) {
        return status;
    }
    const int64_t place = session->model->entries->states.registers[number];
    const Table *table = &session->model->entries->table;
    const RegisterRecord *record = &table->registers[place];
    Register *own = &session->runs->run.registers[place];
    const int64_t item = table_item_size(record->dtype), expected = smelt_sized_bytes(own->sizes, record->rank, item);
    int64_t plain[SMELT_MAX_RANK], strides[SMELT_MAX_RANK];
    if (bytes && to == NULL && from == NULL) {
        status = smelt_fail(error, SMELT_ERROR_ARGUMENT, "state %s cannot be copied to or from NULL",
                            table_string(table, record->name));
    }
    else if (expected < 0 || (uint64_t)expected != bytes) {
        status = smelt_fail(error, SMELT_ERROR_ARGUMENT, "state %s has %lld bytes, not %zu",
                            table_string(table, record->name), (long long)expected, bytes);
    }
    else if (bytes) {
        smelt_contiguous_strides(own->sizes, record->rank, plain);
        strides_of(table, record, own->sizes, strides);
        const Piece piece = {own, strides, plain, record->rank, item};
        status = from ? write_piece(session, &piece, from, error) : read_piece(session, &piece, to, error);
    }
    smelt_end_call(session, before);
    return status;
}

smelt_status
smelt_state_read(smelt_session *session, size_t number, void *data, size_t bytes, smelt_error *error)
{
    return copy_state(session, number, data, NULL, bytes, error);
}

smelt_status
smelt_state_write(smelt_session *session, size_t number, const void *data, size_t bytes, smelt_error *error)
{
    return copy_state(session, number, NULL, data, bytes, error);
}

/* For calls that are about all of the state. */
static smelt_status
begin_all(smelt_session *session, const char *path, CudaContext *before, smelt_error *error)
{
    return session && path ? smelt_begin_call(session, before, error)
                           : smelt_fail(error, SMELT_ERROR_ARGUMENT, "there is no session, or no path");
}

smelt_status
smelt_session_reset(smelt_session *session, smelt_error *error)
{
    CudaContext before;
    smelt_status status = begin_all(session, "", &before, error);
    if (!status) {
        const File *file = &session->model->file;
        status = copy_all(session, NULL, file_bytes(file, file->state), error);
        smelt_end_call(session, before);
    }
    return status;
}

smelt_status
smelt_session_save(smelt_session *session, const char *path, smelt_error *error)
{
    CudaContext before;
    smelt_status status = begin_all(session, path, &before, error);
    if (status) {
        return status;
    }
    const File *file = &session->model->file;
    const char *state = session->state;
    if (session->model->on_cuda) {
        status = smelt_block_fits(&session->allocator, &session->runs->run.fetched, file->state->bytes)
                     ? copy_all(session, session->runs->run.fetched.memory, NULL, error)
                     : smelt_fail(error, SMELT_ERROR_MEMORY, "no memory to copy state");
        state = file->state->bytes ? session->runs->run.fetched.memory : session->nothing;
    }
    status = status ? status : smelt_file_save(file, path, state, error);
    smelt_end_call(session, before);
    return status;
}

/* --- checkpoints ---------------------------------------------------------------------------------------------- */

static bool
is_same(const smelt_info *one, const smelt_info *other)
{
    bool same = one->dtype == other->dtype && one->rank == other->rank;
    for (int i = 0; same && i < one->rank; i++) {
        same = one->dims[i].low == other->dims[i].low;
    }
    return same;
}

/* Nothing is copied unless all fits. */
static smelt_status
load_state(smelt_session *session, const smelt_model *from, smelt_error *error)
{
    const smelt_model *model = session->model;
    for (size_t i = 0; i < model->entries->states.count; i++) {
        const smelt_info *info = &model->entries->states.infos[i];
        const ptrdiff_t source_number = smelt_model_find_state(from, info->name);
        if (source_number < 0 || !is_same(info, &from->entries->states.infos[source_number])) {
            return smelt_fail(error, SMELT_ERROR_MISMATCH, "the checkpoint has no state %s, or one of another shape",
                              info->name);
        }
    }
    const char *saved = file_bytes(&from->file, from->file.state);
    for (size_t i = 0; i < model->entries->states.count; i++) {
        const ptrdiff_t source_number = smelt_model_find_state(from, model->entries->states.infos[i].name);
        const RegisterRecord *source = &from->entries->table.registers[from->entries->states.registers[source_number]];
        const RegisterRecord *record = &model->entries->table.registers[model->entries->states.registers[i]];
        Register *own = &session->runs->run.registers[model->entries->states.registers[i]];
        int64_t strides[SMELT_MAX_RANK], theirs[SMELT_MAX_RANK];
        if (own->bytes) {
            strides_of(&model->entries->table, record, own->sizes, strides);
            strides_of(&from->entries->table, source, own->sizes, theirs);
            const Piece piece = {own, strides, theirs, record->rank, table_item_size(record->dtype)};
            const smelt_status status = write_piece(session, &piece, saved + source->data, error);
            if (status) {
                return status;
            }
        }
    }
    return SMELT_OK;
}

smelt_status
smelt_session_load(smelt_session *session, const char *path, smelt_error *error)
{
    CudaContext before;
    smelt_status status = begin_all(session, path, &before, error);
    if (status) {
        return status;
    }
    smelt_model *from;
    status = smelt_checkpoint_open(path, &session->allocator, &from, error);
    if (!status) {
        status = load_state(session, from, error);
        smelt_model_close(from);
    }
    smelt_end_call(session, before);
    return status;
}
