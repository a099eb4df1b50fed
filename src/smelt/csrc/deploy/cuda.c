/* A GPU through NVIDIA's driver: queries the device, loads code and weights.

   The driver assembles PTX for the GPU at hand, so that code for an older GPU runs too. Everything is in the GPU's
   primary context, which CUDA's runtime uses as well: a model can use the caller's memory, and others can use what it
   returns. */
#include "deploy/cuda.h"

#include <dlfcn.h>
#include <stdio.h>

enum { CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76, MEMORY_TYPE = 2, DEVICE_MEMORY = 2 }; /* questions, an answer */

smelt_status
smelt_cuda_status(const Cuda *cuda, CudaResult result, const char *doing, smelt_error *error)
{
    if (result == 0) {
        return SMELT_OK;
    }
    const char *text = smelt_cuda_error_words(&cuda->driver, result);
    const smelt_status status = result == CUDA_OUT_OF_MEMORY ? SMELT_ERROR_MEMORY : SMELT_ERROR_DEVICE;
    return smelt_fail(error, status, "%s: %s (error %d of CUDA)", doing, text ? text : "an error without a text",
                      result);
}

/* --- the driver ---------------------------------------------------------------------------------------------- */

static smelt_status
open_driver(Cuda *cuda, smelt_error *error)
{
    const char *problem = smelt_cuda_open_driver(&cuda->driver, "libcuda.so.1", CUDA_MEMORY);
    const bool is_open = cuda->driver.library != NULL;
    return problem ? smelt_fail(error, SMELT_ERROR_TARGET,
                                is_open ? "the CUDA driver is too old: it has no %s" : "there is no CUDA driver: %s", problem)
                   : SMELT_OK;
}

static smelt_status
find_device(Cuda *cuda, int number, smelt_error *error)
{
    const CudaDriver *driver = &cuda->driver;
    int count = 0, major = 0, minor = 0;
    CudaResult result = driver->init(0);
    result = result ? result : driver->device_count(&count);
    if (!result && (number < 0 || number >= count)) {
        return smelt_fail(error, SMELT_ERROR_TARGET, "there is no GPU of number %d, the CUDA driver sees %d", number, count);
    }
    result = result ? result : driver->device_get(&cuda->device, number);
    result = result ? result : driver->device_name(cuda->name, sizeof cuda->name - 1, cuda->device);
    result = result ? result : driver->device_attribute(&major, CAPABILITY_MAJOR, cuda->device);
    result = result ? result : driver->device_attribute(&minor, CAPABILITY_MINOR, cuda->device);
    cuda->capability = 10 * major + minor;
    return result ? (smelt_cuda_status(cuda, result, "the CUDA driver has no GPU", error), SMELT_ERROR_TARGET) : SMELT_OK;
}

smelt_status
smelt_cuda_open(Cuda *cuda, int number, smelt_error *error)
{
    *cuda = (Cuda){.context = NULL};
    smelt_status status = open_driver(cuda, error);
    status = status ? status : find_device(cuda, number, error);
    if (status) {
        smelt_cuda_close(cuda);
    }
    return status;
}

/* --- code and weights ------------------------------------------------------------------------------------------ */

static smelt_status
find_functions(Cuda *cuda, const Table *table, smelt_error *error)
{
    for (int64_t i = 0; i < table->counts[GRIDS]; i++) {
        const GridRecord *grid = &table->grids[i];
        const char *name = table_string(table, grid->name);
        const CudaResult result =
            smelt_cuda_find_function(&cuda->driver, cuda->module, name, grid->shared_bytes, &cuda->functions[i]);
        if (result) {
            return smelt_cuda_status(cuda, result, name, error);
        }
    }
    return SMELT_OK;
}

static smelt_status
load_weights(Cuda *cuda, const void *weights, int64_t bytes, smelt_error *error)
{
    CudaResult result = bytes ? cuda->driver.allocate(&cuda->weights, (size_t)bytes) : 0;
    if (result) {
        cuda->weights = 0;
        return smelt_cuda_status(cuda, result, "no memory for the weights", error);
    }
    result = bytes ? cuda->driver.to_device(cuda->weights, weights, (size_t)bytes, NULL) : 0;
    result = result ? result : cuda->driver.stream_wait(NULL);
    return smelt_cuda_status(cuda, result, "the weights cannot be copied", error);
}

smelt_status
smelt_cuda_load(Cuda *cuda, const Table *table, const char *ptx, const void *weights, int64_t bytes,
                CudaFunction *functions, smelt_error *error)
{
    CudaInside inside;
    CudaLog log;
    cuda->functions = functions;
    CudaResult result = cuda->driver.retain_context(&cuda->context, cuda->device);
    if (result) {
        cuda->context = NULL;
        return smelt_cuda_status(cuda, result, "the GPU cannot be used", error);
    }
    result = smelt_cuda_go_inside(&inside, &cuda->driver, cuda->context);
    smelt_status status = smelt_cuda_status(cuda, result, "the GPU cannot be used", error);
    result = status ? 0 : smelt_cuda_load_module(&cuda->driver, ptx, &cuda->module, &log);
    if (result) {
        char doing[200];
        snprintf(doing, sizeof doing, "the driver refuses the code%s%.160s", *log.errors ? ", " : "", log.errors);
        status = smelt_cuda_status(cuda, result, doing, error);
    }
    status = status ? status : find_functions(cuda, table, error);
    status = status ? status : load_weights(cuda, weights, bytes, error);
    smelt_cuda_go_outside(&inside);
    return status;
}

void
smelt_cuda_close(Cuda *cuda)
{
    CudaContext before;
    if (cuda->context && smelt_cuda_enter(cuda, &before, NULL) == SMELT_OK) {
        if (cuda->weights) {
            cuda->driver.release(cuda->weights);
        }
        if (cuda->module) {
            cuda->driver.unload(cuda->module);
        }
        smelt_cuda_leave(cuda, before);
    }
    if (cuda->context) {
        cuda->driver.release_context(cuda->device);
    }
    if (cuda->driver.library) {
        dlclose(cuda->driver.library);
    }
    *cuda = (Cuda){.context = NULL};
}

/* --- at work --------------------------------------------------------------------------------------------------- */

smelt_status
smelt_cuda_enter(const Cuda *cuda, CudaContext *before, smelt_error *error)
{
    return smelt_cuda_status(cuda, cuda_enter(&cuda->driver, cuda->context, before), "the GPU cannot be used", error);
}

void
smelt_cuda_leave(const Cuda *cuda, CudaContext before)
{
    cuda_leave(&cuda->driver, cuda->context, before);
}

bool
smelt_cuda_is_device(const Cuda *cuda, const void *address)
{
    unsigned kind = 0;
    return cuda->driver.pointer_attribute(&kind, MEMORY_TYPE, (CudaAddress)(uintptr_t)address) == 0
           && kind == DEVICE_MEMORY;
}

void *
smelt_cuda_allocate(void *context, size_t size, size_t alignment)
{
    const Cuda *cuda = context;
    CudaAddress address = 0;
    (void)alignment; /* 256 at least */
    return cuda->driver.allocate(&address, size ? size : 1) ? NULL : (void *)(uintptr_t)address;
}

void
smelt_cuda_release(void *context, void *memory, size_t size)
{
    const Cuda *cuda = context;
    (void)size;
    cuda->driver.release((CudaAddress)(uintptr_t)memory);
}
