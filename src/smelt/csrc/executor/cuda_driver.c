/* Opens the driver, loads code and launches grids. */
#include "executor/cuda_driver.h"

#include "executor/platform/platform.h"

#include <string.h>
#include <unistd.h>

enum { INFO_LOG = 3, INFO_LOG_BYTES, ERROR_LOG, ERROR_LOG_BYTES, LOG_VERBOSE = 12, LOG_OPTIONS = 5 }; /* assembler's */
enum { PTX_INPUT = 1, MOST_DYNAMIC_SHARED = 8, USUAL_SHARED = 48 * 1024, RELAXED_CAPTURE = 2 };
enum { MAY_OVERLAP = 6 }; /* CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION */

#define CUDA_ROW(name, field, needed_by, parameters) {#name, offsetof(CudaDriver, field), needed_by},
static const struct {
    const char *name;
    size_t place;
    unsigned needed_by;
} functions[] = {CUDA_FUNCTIONS(CUDA_ROW)};

const char *
smelt_cuda_open_driver(CudaDriver *driver, const char *path, unsigned needed_by)
{
    *driver = (CudaDriver){.library = smelt_library_open(path, false), .process = getpid()};
    if (driver->library == NULL) {
        return smelt_library_problem(path);
    }
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *function = smelt_library_function(driver->library, functions[i].name);
        if (function == NULL && functions[i].needed_by & needed_by) {
            return functions[i].name;
        }
        memcpy((char *)driver + functions[i].place, &function, sizeof function);
    }
    return NULL;
}

const char *
smelt_cuda_error_words(const CudaDriver *driver, CudaResult code)
{
    const char *text = NULL;
    return driver->error_string(code, &text) ? NULL : text;
}

/* --- code ---------------------------------------------------------------------------------------------------- */

CudaResult
smelt_cuda_go_inside(CudaInside *inside, const CudaDriver *driver, CudaContext context)
{
    *inside = (CudaInside){.context = context, .mode = RELAXED_CAPTURE};
    CudaResult status = cuda_enter(driver, context, &inside->before);
    if (status) {
        return status;
    }
    inside->driver = driver;
    if (driver->capture_mode) {
        driver->capture_mode(&inside->mode);
    }
    return 0;
}

void
smelt_cuda_go_outside(CudaInside *inside)
{
    if (inside->driver == NULL) {
        return;
    }
    if (inside->driver->capture_mode) {
        inside->driver->capture_mode(&inside->mode);
    }
    cuda_leave(inside->driver, inside->context, inside->before);
}

static void
begin_log(CudaLog *log)
{
    void *const bytes = (void *)(uintptr_t)(CUDA_LOG_BYTES - 1), *const yes = (void *)(uintptr_t)1;
    *log->info = *log->errors = 0;
    memcpy(log->options, (int[]){INFO_LOG, INFO_LOG_BYTES, ERROR_LOG, ERROR_LOG_BYTES, LOG_VERBOSE}, sizeof log->options);
    memcpy(log->values, (void *[]){log->info, bytes, log->errors, bytes, yes}, sizeof log->values);
}

CudaResult
smelt_cuda_load_module(CudaModule *module, const void *image, CudaLog *log)
{
    CudaInside inside;
    begin_log(log);
    CudaResult status = smelt_cuda_go_inside(&inside, module->driver, module->context);
    status = status ? status : module->driver->load(&module->handle, image, LOG_OPTIONS, log->options, log->values);
    module->handle = status ? NULL : module->handle;
    smelt_cuda_go_outside(&inside);
    return status;
}

void
smelt_cuda_unload_module(CudaModule *module)
{
    CudaInside inside;
    if (module->handle && smelt_cuda_go_inside(&inside, module->driver, module->context) == 0) {
        module->driver->unload(module->handle);
        smelt_cuda_go_outside(&inside);
    }
    module->handle = NULL;
}

CudaResult
smelt_cuda_link(const CudaDriver *driver, const char *ptx, size_t size, void **image, size_t *image_size, CudaLink *link,
                CudaLog *log)
{
    begin_log(log);
    CudaResult status = driver->link_create(LOG_OPTIONS, log->options, log->values, link);
    if (status) {
        *link = NULL;
        return status;
    }
    status = driver->link_add(*link, PTX_INPUT, (void *)(uintptr_t)ptx, size, "smelt.ptx", 0, NULL, NULL);
    return status ? status : driver->link_complete(*link, image, image_size);
}

CudaResult
smelt_cuda_find_function(const CudaModule *module, const char *name, int64_t shared_bytes, CudaFunction *function)
{
    const CudaDriver *driver = module->driver;
    CudaInside inside;
    int allowed = USUAL_SHARED;
    CudaResult status = smelt_cuda_go_inside(&inside, driver, module->context);
    status = status ? status : driver->get_function(function, module->handle, name);
    if (status == 0 && shared_bytes > USUAL_SHARED && driver->get_attribute) {
        status = driver->get_attribute(&allowed, MOST_DYNAMIC_SHARED, *function);
    }
    if (status == 0 && shared_bytes > USUAL_SHARED && shared_bytes > allowed) {
        status = driver->set_attribute(*function, MOST_DYNAMIC_SHARED, (int)shared_bytes);
    }
    smelt_cuda_go_outside(&inside);
    return status;
}

/* --- launches ------------------------------------------------------------------------------------------------ */

void
smelt_cuda_set_parameters(void **parameters, void **buffers, int64_t count, void **workspace, const int64_t *sizes,
                          int64_t size_count)
{
    for (int64_t i = 0; i < count; i++) {
        parameters[i] = &buffers[i];
    }
    parameters[count] = workspace;
    for (int64_t i = 0; i < size_count; i++) {
        parameters[count + 1 + i] = (void *)(uintptr_t)&sizes[i];
    }
}

CudaResult
smelt_cuda_launch_grid(const CudaDriver *driver, CudaFunction function, const GridRecord *grid, const int64_t *sizes,
                       CudaStream stream, void **parameters, bool overlaps)
{
    const int64_t blocks = cuda_size(grid->blocks, grid->slot, sizes);
    if (blocks < 0 || blocks > CUDA_MOST_BLOCKS) {
        return CUDA_TOO_MANY_BLOCKS;
    }
    if (overlaps && blocks && driver->launch_with) {
        CudaLaunchAttribute attribute = {.id = MAY_OVERLAP, .value = {1}};
        const CudaLaunchConfig config = {.grid = {(unsigned)blocks, 1, 1},
                                         .block = {(unsigned)grid->threads, 1, 1},
                                         .shared = (unsigned)grid->shared_bytes,
                                         .stream = stream,
                                         .attributes = &attribute,
                                         .attribute_count = 1};
        return driver->launch_with(&config, function, parameters, NULL);
    }
    return blocks == 0 ? 0 /* which CUDA takes for an error */
                       : driver->launch(function, (unsigned)blocks, 1, 1, (unsigned)grid->threads, 1, 1,
                                        (unsigned)grid->shared_bytes, stream, parameters, NULL);
}
