/* State of a session: registers read and written, checkpoints saved and loaded. */
#include "deploy/session.h"

#include <string.h>

/* A state register of the session, held for this call: smelt_fail, or SMELT_OK with the session busy. */
static smelt_status
begin(smelt_session *session, size_t number, smelt_error *error)
{
    if (session == NULL || number >= session->model->states.count) {
        return smelt_fail(error, SMELT_ERROR_ARGUMENT, "there is no state %zu", number);
    }
    if (atomic_flag_test_and_set(&session->busy)) {
        return smelt_fail(error, SMELT_ERROR_ARGUMENT, "the session is in use: each thread needs its own");
    }
    return SMELT_OK;
}

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
    if (session == NULL || state == NULL || number >= session->model->states.count) {
        return smelt_fail(error, SMELT_ERROR_ARGUMENT, "there is no state %zu", number);
    }
    const int64_t place = session->model->states.registers[number];
    const Table *table = &session->model->table;
    const RegisterRecord *record = &table->registers[place];
    *state = (smelt_tensor){.dtype = (smelt_dtype)record->dtype, .rank = (int)record->rank,
                            .sizes = session->registers[place].sizes, .data = session->registers[place].data};
    if (record->stride_count) { /* references are words, one after the other */
        state->strides = &table->references[record->strides].number;
    }
    return SMELT_OK;
}

/* Contiguous elements from or to a register. */
static smelt_status
copy_state(smelt_session *session, size_t number, void *to, const void *from, size_t bytes, smelt_error *error)
{
    smelt_status status = begin(session, number, error);
    if (status) {
        return status;
    }
    const int64_t place = session->model->states.registers[number];
    const Table *table = &session->model->table;
    const RegisterRecord *record = &table->registers[place];
    Register *own = &session->registers[place];
    const int64_t item = smelt_item_size(record->dtype), expected = smelt_sized_bytes(own->sizes, record->rank, item);
    int64_t plain[SMELT_MAX_RANK], strides[SMELT_MAX_RANK];
    if (expected < 0 || (uint64_t)expected != bytes || (bytes && to == NULL && from == NULL)) {
        status = smelt_fail(error, SMELT_ERROR_ARGUMENT, "state %s has %lld bytes, not %zu",
                            table_string(table, record->name), (long long)expected, bytes);
    }
    else if (bytes) {
        smelt_contiguous_strides(own->sizes, record->rank, plain);
        strides_of(table, record, own->sizes, strides);
        if (from) {
            smelt_copy_strided(own->data, strides, from, plain, own->sizes, record->rank, item);
        }
        else {
            smelt_copy_strided(to, plain, own->data, strides, own->sizes, record->rank, item);
        }
    }
    atomic_flag_clear(&session->busy);
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
begin_all(smelt_session *session, const char *path, smelt_error *error)
{
    if (session == NULL || path == NULL) {
        return smelt_fail(error, SMELT_ERROR_ARGUMENT, "there is no session, or no path");
    }
    if (atomic_flag_test_and_set(&session->busy)) {
        return smelt_fail(error, SMELT_ERROR_ARGUMENT, "the session is in use: each thread needs its own");
    }
    return SMELT_OK;
}

smelt_status
smelt_session_reset(smelt_session *session, smelt_error *error)
{
    const smelt_status status = begin_all(session, "", error);
    if (!status) {
        const File *file = &session->model->file;
        memcpy(session->state_data, file_bytes(file, file->state), (size_t)file->state->bytes);
        atomic_flag_clear(&session->busy);
    }
    return status;
}

smelt_status
smelt_session_save(smelt_session *session, const char *path, smelt_error *error)
{
    smelt_status status = begin_all(session, path, error);
    if (!status) {
        status = smelt_file_save(&session->model->file, path, session->state_data, error);
        atomic_flag_clear(&session->busy);
    }
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
    for (size_t i = 0; i < model->states.count; i++) {
        const smelt_info *info = &model->states.infos[i];
        const ptrdiff_t found = smelt_model_find_state(from, info->name);
        if (found < 0 || !is_same(info, &from->states.infos[found])) {
            return smelt_fail(error, SMELT_ERROR_MISMATCH, "the checkpoint has no state %s, or one of another shape",
                              info->name);
        }
    }
    const char *saved = file_bytes(&from->file, from->file.state);
    for (size_t i = 0; i < model->states.count; i++) {
        const ptrdiff_t found = smelt_model_find_state(from, model->states.infos[i].name);
        const RegisterRecord *source = &from->table.registers[from->states.registers[found]];
        const RegisterRecord *record = &model->table.registers[model->states.registers[i]];
        Register *own = &session->registers[model->states.registers[i]];
        int64_t strides[SMELT_MAX_RANK], theirs[SMELT_MAX_RANK];
        if (own->bytes) {
            strides_of(&model->table, record, own->sizes, strides);
            strides_of(&from->table, source, own->sizes, theirs);
            smelt_copy_strided(own->data, strides, saved + source->data, theirs, own->sizes, record->rank,
                               smelt_item_size(record->dtype));
        }
    }
    return SMELT_OK;
}

smelt_status
smelt_session_load(smelt_session *session, const char *path, smelt_error *error)
{
    smelt_status status = begin_all(session, path, error);
    if (status) {
        return status;
    }
    const smelt_open_options options = {sizeof options, SMELT_OPEN_WITHOUT_CODE, &session->allocator};
    smelt_model *from;
    status = smelt_model_open(path, &options, &from, error);
    if (!status) {
        status = load_state(session, from, error);
        smelt_model_close(from);
    }
    atomic_flag_clear(&session->busy);
    return status;
}
