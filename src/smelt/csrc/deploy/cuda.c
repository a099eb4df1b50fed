/* A GPU through NVIDIA's driver: opens the library by name at run time, queries the device, loads code and weights.

   The driver assembles PTX for the GPU at hand, so that code for an older GPU runs too. Everything is in the GPU's
   primary context, which CUDA's runtime uses as well: a model can use the caller's memory, and others can use what it
   returns. */
#define _GNU_SOURCE
#include "deploy/cuda.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76, MEMORY_TYPE = 2, DEVICE_MEMORY = 2 }; /* questions, an answer */
enum { ERROR_LOG = 5, ERROR_LOG_BYTES = 6, MOST_DYNAMIC_SHARED = 8, USUAL_SHARED = 48 * 1024 };
enum { OUT_OF_MEMORY = 2 };

static const struct {
    const char *name;
    size_t place;
} functions[] = {
    {"cuInit", offsetof(CudaDriver, init)},
    {"cuGetErrorString", offsetof(CudaDriver, error_string)},
    {"cuDeviceGetCount", offsetof(CudaDriver, device_count)},
    {"cuDeviceGet", offsetof(CudaDriver, device_get)},
    {"cuDeviceGetName", offsetof(CudaDriver, device_name)},
    {"cuDeviceGetAttribute", offsetof(CudaDriver, device_attribute)},
    {"cuDevicePrimaryCtxRetain", offsetof(CudaDriver, retain_context)},
    {"cuDevicePrimaryCtxRelease_v2", offsetof(CudaDriver, release_context)},
    {"cuCtxGetCurrent", offsetof(CudaDriver, get_context)},
    {"cuCtxSetCurrent", offsetof(CudaDriver, set_context)},
    {"cuModuleLoadDataEx", offsetof(CudaDriver, load)},
    {"cuModuleUnload", offsetof(CudaDriver, unload)},
    {"cuModuleGetFunction", offsetof(CudaDriver, get_function)},
    {"cuFuncSetAttribute", offsetof(CudaDriver, set_attribute)},
    {"cuMemAlloc_v2", offsetof(CudaDriver, allocate)},
    {"cuMemFree_v2", offsetof(CudaDriver, release)},
    {"cuMemcpyHtoDAsync_v2", offsetof(CudaDriver, to_device)},
    {"cuMemcpyDtoHAsync_v2", offsetof(CudaDriver, to_host)},
    {"cuMemcpyDtoDAsync_v2", offsetof(CudaDriver, within_device)},
    {"cuPointerGetAttribute", offsetof(CudaDriver, pointer_attribute)},
    {"cuStreamCreate", offsetof(CudaDriver, stream_create)},
    {"cuStreamDestroy_v2", offsetof(CudaDriver, stream_destroy)},
    {"cuStreamSynchronize", offsetof(CudaDriver, stream_wait)},
    {"cuLaunchKernel", offsetof(CudaDriver, launch)},
};

smelt_status
smelt_cuda_status(const Cuda *cuda, CudaResult result, const char *doing, smelt_error *error)
{
    if (result == 0) {
        return SMELT_OK;
    }
    const char *text = NULL;
    if (cuda->driver.error_string(result, &text) || text == NULL) {
        text = "an error without a text";
    }
    const smelt_status status = result == OUT_OF_MEMORY ? SMELT_ERROR_MEMORY : SMELT_ERROR_DEVICE;
    return smelt_fail(error, status, "%s: %s (error %d of CUDA)", doing, text, result);
}

/* --- the driver ---------------------------------------------------------------------------------------------- */

static smelt_status
open_driver(Cuda *cuda, smelt_error *error)
{
    cuda->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (cuda->library == NULL) {
        const char *reason = dlerror();
        return smelt_fail(error, SMELT_ERROR_TARGET, "there is no CUDA driver: %s", reason ? reason : "libcuda.so.1");
    }
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *function = dlsym(cuda->library, functions[i].name);
        if (function == NULL) {
            return smelt_fail(error, SMELT_ERROR_TARGET, "the CUDA driver is too old: it has no %s", functions[i].name);
        }
        memcpy((char *)&cuda->driver + functions[i].place, &function, sizeof function);
    }
    return SMELT_OK;
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
    *cuda = (Cuda){.library = NULL};
    smelt_status status = open_driver(cuda, error);
    status = status ? status : find_device(cuda, number, error);
    if (status) {
        smelt_cuda_close(cuda);
    }
    return status;
}

/* --- code and weights ------------------------------------------------------------------------------------------ */

/* What a GPU cannot be given more of than usual, it has to be asked for. */
static smelt_status
find_functions(Cuda *cuda, const Table *table, smelt_error *error)
{
    for (int64_t i = 0; i < table->counts[GRIDS]; i++) {
        const GridRecord *grid = &table->grids[i];
        const char *name = table_string(table, grid->name);
        CudaResult result = cuda->driver.get_function(&cuda->functions[i], cuda->module, name);
        if (!result && grid->shared_bytes > USUAL_SHARED) {
            result = cuda->driver.set_attribute(cuda->functions[i], MOST_DYNAMIC_SHARED, (int)grid->shared_bytes);
        }
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
    CudaContext before;
    char log[160] = "";
    int options[] = {ERROR_LOG, ERROR_LOG_BYTES};
    void *values[] = {log, (void *)(uintptr_t)(sizeof log - 1)};
    cuda->functions = functions;
    cuda->function_count = table->counts[GRIDS];
    CudaResult result = cuda->driver.retain_context(&cuda->context, cuda->device);
    if (result) {
        cuda->context = NULL;
        return smelt_cuda_status(cuda, result, "the GPU cannot be used", error);
    }
    smelt_status status = smelt_cuda_enter(cuda, &before, error);
    if (status) {
        return status;
    }
    result = cuda->driver.load(&cuda->module, ptx, 2, options, values);
    if (result) {
        cuda->module = NULL;
        char doing[sizeof log + 40];
        snprintf(doing, sizeof doing, "the driver refuses the code%s%s", *log ? ", " : "", log);
        status = smelt_cuda_status(cuda, result, doing, error);
    }
    status = status ? status : find_functions(cuda, table, error);
    status = status ? status : load_weights(cuda, weights, bytes, error);
    smelt_cuda_leave(cuda, before);
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
    if (cuda->library) {
        dlclose(cuda->library);
    }
    *cuda = (Cuda){.library = NULL};
}

/* --- at work --------------------------------------------------------------------------------------------------- */

smelt_status
smelt_cuda_enter(const Cuda *cuda, CudaContext *before, smelt_error *error)
{
    CudaResult result = cuda->driver.get_context(before);
    if (!result && *before != cuda->context) {
        result = cuda->driver.set_context(cuda->context);
    }
    return smelt_cuda_status(cuda, result, "the GPU cannot be used", error);
}

void
smelt_cuda_leave(const Cuda *cuda, CudaContext before)
{
    if (before != cuda->context) {
        cuda->driver.set_context(before);
    }
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
