/* Memory and copies of sessions on a GPU; on the host, plain copies. A session's work goes through its own stream, in
   order. */
#include "deploy/memory.h"

#include <string.h>

static inline CudaAddress
address_of(const void *memory)
{
    return (CudaAddress)(uintptr_t)memory;
}

smelt_status
smelt_put(smelt_session *session, void *to, const void *from, int64_t bytes, smelt_error *error)
{
    const smelt_model *model = session->model;
    if (bytes == 0) {
        return SMELT_OK;
    }
    if (!model->on_cuda) {
        memmove(to, from, (size_t)bytes);
        return SMELT_OK;
    }
    const CudaResult result = model->cuda.driver.to_device(address_of(to), from, (size_t)bytes, session->stream);
    return smelt_cuda_status(&model->cuda, result, "memory cannot be copied to the GPU", error);
}

smelt_status
smelt_move(smelt_session *session, void *to, const void *from, int64_t bytes, smelt_error *error)
{
    const smelt_model *model = session->model;
    if (bytes == 0) {
        return SMELT_OK;
    }
    if (!model->on_cuda) {
        memmove(to, from, (size_t)bytes);
        return SMELT_OK;
    }
    const CudaResult result = model->cuda.driver.within_device(address_of(to), address_of(from), (size_t)bytes,
                                                               session->stream);
    return smelt_cuda_status(&model->cuda, result, "memory of the GPU cannot be copied", error);
}

smelt_status
smelt_begin_fetch(smelt_session *session, void *to, const void *from, int64_t bytes, smelt_error *error)
{
    const smelt_model *model = session->model;
    if (bytes == 0) {
        return SMELT_OK;
    }
    if (!model->on_cuda) {
        memmove(to, from, (size_t)bytes);
        return SMELT_OK;
    }
    const CudaResult result = model->cuda.driver.to_host(to, address_of(from), (size_t)bytes, session->stream);
    return smelt_cuda_status(&model->cuda, result, "memory of the GPU cannot be read", error);
}

smelt_status
smelt_settle(smelt_session *session, smelt_error *error)
{
    const smelt_model *model = session->model;
    return model->on_cuda ? smelt_cuda_status(&model->cuda, model->cuda.driver.stream_wait(session->stream),
                                              "the GPU failed", error)
                          : SMELT_OK;
}

smelt_status
smelt_fetch(smelt_session *session, void *to, const void *from, int64_t bytes, smelt_error *error)
{
    const smelt_status status = smelt_begin_fetch(session, to, from, bytes, error);
    return status || bytes == 0 ? status : smelt_settle(session, error);
}

bool
smelt_is_there(const smelt_session *session, const void *address)
{
    return session->model->on_cuda && smelt_cuda_is_device(&session->model->cuda, address);
}

smelt_status
smelt_enter(const smelt_session *session, CudaContext *before, smelt_error *error)
{
    *before = NULL;
    return session->model->on_cuda ? smelt_cuda_enter(&session->model->cuda, before, error) : SMELT_OK;
}

void
smelt_leave(const smelt_session *session, CudaContext before)
{
    if (session->model->on_cuda) {
        smelt_cuda_leave(&session->model->cuda, before);
    }
}

/* --- grids --------------------------------------------------------------------------------------------------- */

/* Buffers, with numbers by value, the workspace and sizes; where the sizes are. */
static const int64_t *
set_parameters(smelt_session *session, const VariantRecord *variant, const Plan *plan, const LaunchRecord *launch)
{
    const Table *table = &session->model->table;
    const KernelRecord *kernel = &table->kernels[launch->kernel];
    const int64_t pointers = launch->value_count - (kernel->sizes > 0);
    const int64_t *sizes = NULL;
    if (kernel->sizes) {
        sizes = (const int64_t *)plan->values[table->references[launch->values + pointers].number].pointer;
    }
    smelt_cuda_set_parameters(session->parameters, session->buffers, pointers, &session->workspace.memory, sizes,
                              kernel->sizes);
    for (int64_t i = 0; i < pointers; i++) {
        const int64_t place = table->references[launch->values + i].number;
        if (table->values[variant->values + place].kind == SIZES_VALUE) {
            session->parameters[i] = plan->values[place].pointer;
        }
    }
    return sizes;
}

smelt_status
smelt_launch_grids(smelt_session *session, const VariantRecord *variant, const Plan *plan, const LaunchRecord *launch,
                   smelt_error *error)
{
    const smelt_model *model = session->model;
    const Table *table = &model->table;
    const KernelRecord *kernel = &table->kernels[launch->kernel];
    const int64_t *sizes = set_parameters(session, variant, plan, launch);
    for (int64_t i = kernel->grids; i < kernel->grids + kernel->grid_count; i++) {
        const GridRecord *grid = &table->grids[i];
        const char *name = table_string(table, kernel->name);
        const CudaResult result = smelt_cuda_launch_grid(&model->cuda.driver, model->functions[i], grid, sizes,
                                                         session->stream, session->parameters);
        if (result == CUDA_TOO_MANY_BLOCKS) {
            return smelt_fail(error, SMELT_ERROR_SIZE, "with these inputs %s has %lld blocks", name,
                              (long long)cuda_size(grid->blocks, grid->slot, sizes));
        }
        if (result) {
            return smelt_cuda_status(&model->cuda, result, name, error);
        }
    }
    return SMELT_OK;
}
