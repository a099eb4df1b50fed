/* A GPU through NVIDIA's driver: queries the device, loads code and weights.

   The driver assembles PTX for the GPU at hand, so that code for an older GPU runs too. Everything is in the GPU's
   primary context, which CUDA's runtime uses as well: a model can use the caller's memory, and others can use what it
   returns. */
#include "deploy/cuda.h"

#include "executor/platform/platform.h"

#include <stdio.h>

enum { CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76 }; /* questions */

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
    *cuda = (Cuda){.weights = 0};
    const char *problem = smelt_cuda_open_driver(&cuda->driver, CUDA_DRIVER_NAME, CUDA_MEMORY);
    const char *text = cuda->driver.library ? "the CUDA driver is too old: it has no %s" : "there is no CUDA driver: %s";
    const smelt_status status = problem ? smelt_fail(error, SMELT_ERROR_TARGET, text, problem)
                                        : find_device(cuda, number, error);
    if (status) {
        smelt_cuda_close(cuda);
    }
    return status;
}

/* --- code and weights ------------------------------------------------------------------------------------------ */

/* In the GPU's context. */
static smelt_status
copy_weights(Cuda *cuda, const void *weights, int64_t bytes, smelt_error *error)
{
    CudaResult result = cuda->driver.allocate(&cuda->weights, (size_t)bytes);
    if (result) {
        cuda->weights = 0;
        return smelt_cuda_status(cuda, result, "no memory for the weights", error);
    }
    result = cuda->driver.to_device(cuda->weights, weights, (size_t)bytes, NULL);
    result = result ? result : cuda->driver.stream_wait(NULL);
    return smelt_cuda_status(cuda, result, "the weights cannot be copied", error);
}

smelt_status
smelt_cuda_load_weights(Cuda *cuda, const void *weights, int64_t bytes, bool multiplies, smelt_error *error)
{
    CudaInside inside = {.driver = NULL};
    CudaResult result = cuda->driver.retain_context(&cuda->context, cuda->device);
    if (result) {
        cuda->context = NULL;
    }
    result = result ? result : smelt_cuda_go_inside(&inside, &cuda->driver, cuda->context);
    smelt_status status = smelt_cuda_status(cuda, result, "the GPU cannot be used", error);
    status = status || bytes == 0 ? status : copy_weights(cuda, weights, bytes, error);
    if (!status && multiplies) {
        smelt_cublas_open(&cuda->cublas);
    }
    smelt_cuda_go_outside(&inside);
    return status;
}

smelt_status
smelt_cuda_load_code(const Cuda *cuda, CudaModule *module, const Table *table, const char *ptx, CudaFunction *functions,
                     smelt_error *error)
{
    CudaInside inside = {.driver = NULL};
    CudaLog log = {0};
    char doing[200];
    *module = (CudaModule){.driver = &cuda->driver, .context = cuda->context};
    CudaResult result = smelt_cuda_go_inside(&inside, &cuda->driver, cuda->context);
    smelt_status status = smelt_cuda_status(cuda, result, "the GPU cannot be used", error);
    if (!status) {
        result = smelt_cuda_load_module(module, ptx, &log);
        snprintf(doing, sizeof doing, "the driver refuses the code%s%.160s", *log.errors ? ", " : "", log.errors);
        status = smelt_cuda_status(cuda, result, doing, error);
    }
    for (int64_t i = 0; !status && i < table->counts[GRIDS]; i++) {
        const GridRecord *grid = &table->grids[i];
        const char *name = table_string(table, grid->name);
        result = smelt_cuda_find_function(module, name, grid->shared_bytes, &functions[i]);
        status = smelt_cuda_status(cuda, result, name, error);
    }
    smelt_cuda_go_outside(&inside);
    return status;
}

void
smelt_cuda_close(Cuda *cuda)
{
    CudaInside inside;
    if (cuda->context && smelt_cuda_go_inside(&inside, &cuda->driver, cuda->context) == 0) {
        if (cuda->weights) {
            cuda->driver.release(cuda->weights);
        }
        smelt_cublas_close(&cuda->cublas);
        smelt_cuda_go_outside(&inside);
    }
    if (cuda->context) {
        cuda->driver.release_context(cuda->device);
    }
    if (cuda->driver.library) {
        smelt_library_close(cuda->driver.library);
    }
    *cuda = (Cuda){.weights = 0};
}
