/* Memory and copies of sessions on a GPU. A session's work goes through its own stream, in order. */
#include "deploy/memory.h"

static inline CudaAddress
address_of(const void *memory)
{
    return (CudaAddress)(uintptr_t)memory;
}

static smelt_status
copy(Run *run, Direction direction, void *to, const void *from, int64_t bytes, smelt_error *error)
{
    const smelt_session *session = ((const EntryRun *)run)->session;
    const Cuda *cuda = &session->model->cuda;
    const CudaDriver *driver = &cuda->driver;
    const size_t size = (size_t)bytes;
    switch (direction) {
    case TO_REGISTERS:
        return smelt_cuda_status(cuda, driver->to_device(address_of(to), from, size, session->stream),
                                 "memory cannot be copied to the GPU", error);
    case WITHIN_REGISTERS:
        return smelt_cuda_status(cuda, driver->within_device(address_of(to), address_of(from), size, session->stream),
                                 "memory of the GPU cannot be copied", error);
    default:
        return smelt_cuda_status(cuda, driver->to_host(to, address_of(from), size, session->stream),
                                 "memory of the GPU cannot be read", error);
    }
}

static smelt_status
settle(Run *run, smelt_error *error)
{
    const smelt_session *session = ((const EntryRun *)run)->session;
    const Cuda *cuda = &session->model->cuda;
    return smelt_cuda_status(cuda, cuda->driver.stream_wait(session->stream), "the GPU failed", error);
}

static bool
is_there(const Run *run, const void *address)
{
    enum { MEMORY_TYPE = 2, DEVICE_MEMORY = 2 }; /* a question, and an answer */
    const CudaDriver *driver = &((const EntryRun *)run)->session->model->cuda.driver;
    unsigned kind = 0;
    return driver->pointer_attribute(&kind, MEMORY_TYPE, address_of(address)) == 0 && kind == DEVICE_MEMORY;
}

const Device smelt_gpu_memory = {copy, settle, is_there};

static void *
allocate(void *context, size_t size, size_t alignment)
{
    const CudaDriver *driver = context;
    CudaAddress address = 0;
    (void)alignment; /* 256 at least */
    return driver->allocate(&address, size ? size : 1) ? NULL : (void *)(uintptr_t)address;
}

static void
release(void *context, void *memory, size_t size)
{
    (void)size;
    ((const CudaDriver *)context)->release(address_of(memory));
}

smelt_allocator
smelt_gpu_allocator(CudaDriver *driver)
{
    return (smelt_allocator){driver, allocate, release};
}

smelt_status
smelt_enter(const smelt_session *session, CudaContext *before, smelt_error *error)
{
    *before = NULL;
    const Cuda *cuda = &session->model->cuda;
    const CudaResult result = session->model->on_cuda ? cuda_enter(&cuda->driver, cuda->context, before) : 0;
    return smelt_cuda_status(cuda, result, "the GPU cannot be used", error);
}

void
smelt_leave(const smelt_session *session, CudaContext before)
{
    if (session->model->on_cuda) {
        cuda_leave(&session->model->cuda.driver, session->model->cuda.context, before);
    }
}

smelt_status
smelt_begin_call(smelt_session *session, CudaContext *before, smelt_error *error)
{
    if (atomic_flag_test_and_set(&session->busy)) {
        return smelt_fail(error, SMELT_ERROR_ARGUMENT, "the session is in use: each thread needs its own");
    }
    const smelt_status status = smelt_enter(session, before, error);
    if (status) {
        atomic_flag_clear(&session->busy);
    }
    return status;
}

void
smelt_end_call(smelt_session *session, CudaContext before)
{
    smelt_leave(session, before);
    atomic_flag_clear(&session->busy);
}

/* --- grids --------------------------------------------------------------------------------------------------- */

/* Buffers, with numbers by value, the workspace and sizes; where the sizes are. */
static const int64_t *
set_parameters(EntryRun *at, const VariantRecord *variant, const Plan *plan, const LaunchRecord *launch)
{
    const Table *table = &at->entry->table;
    const KernelRecord *kernel = &table->kernels[launch->kernel];
    const int64_t pointers = launch->value_count - (kernel->sizes > 0);
    const int64_t *sizes = NULL;
    if (kernel->sizes) {
        sizes = (const int64_t *)plan->values[table->references[launch->values + pointers].number].pointer;
    }
    smelt_cuda_set_parameters(at->parameters, at->run.buffers, pointers, &at->run.workspace.memory, sizes,
                              kernel->sizes);
    for (int64_t i = 0; i < pointers; i++) {
        const int64_t place = table->references[launch->values + i].number;
        if (table->values[variant->values + place].kind == SIZES_VALUE) {
            at->parameters[i] = plan->values[place].pointer;
        }
    }
    return sizes;
}

/* Whether a library has computed the product that a grid begins. */
static bool
is_multiplied(EntryRun *at, const GridRecord *grid, const LaunchRecord *launch, const int64_t *sizes)
{
    const Cuda *cuda = &at->session->model->cuda;
    if (grid->product < 0 || cuda->cublas.handle == NULL) {
        return false;
    }
    const ProductLaunch operands = {at->run.buffers, launch->value_count - (sizes != NULL),
                                 at->run.workspace.memory, sizes, at->session->stream};
    return smelt_cublas_multiply(&cuda->cublas, &cuda->driver, &at->products, &at->entry->table, grid->product,
                                 &operands);
}

smelt_status
smelt_launch_grids(Run *run, const VariantRecord *variant, const Plan *plan, const LaunchRecord *launch,
                   smelt_error *error)
{
    EntryRun *at = (EntryRun *)run;
    const Entry *entry = at->entry;
    const CudaDriver *driver = &at->session->model->cuda.driver;
    const Table *table = &entry->table;
    const KernelRecord *kernel = &table->kernels[launch->kernel];
    const int64_t *sizes = set_parameters(at, variant, plan, launch);
    for (int64_t i = kernel->grids; i < kernel->grids + kernel->grid_count; i++) {
        const GridRecord *grid = &table->grids[i];
        if (is_multiplied(at, grid, launch, sizes)) {
            i += table->products[grid->product].grids - 1;
            continue;
        }
        const char *name = table_string(table, kernel->name);
        const CudaResult result = smelt_cuda_launch_grid(driver, entry->functions[i], grid, sizes,
                                                         at->session->stream, at->parameters, false);
        if (result == CUDA_TOO_MANY_BLOCKS) {
            return smelt_fail(error, SMELT_ERROR_SIZE, "with these inputs %s has %lld blocks", name,
                              (long long)cuda_size(grid->blocks, grid->slot, sizes));
        }
        if (result) {
            return smelt_cuda_status(&at->session->model->cuda, result, name, error);
        }
    }
    return SMELT_OK;
}
