/* A CUDA driver for machines without one: memory of a GPU is memory of the host, and grids run thread by thread.

   A module is its PTX; what `.entry` names in it is a function, which does what `kernels` says for its name, or nothing.
   It is as strict as the real one: launches fail in another context than the function's, with grids of no blocks, with
   more shared memory than was allowed. All calls are counted; any may be told to fail. The functions of PyTorch that
   launches call beside it are here too. */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEVICES = 4, MOST_PARAMETERS = 128, MOST_LAUNCHES = 4096 };
enum {
    INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 101, INVALID_CONTEXT = 201,
    INVALID_IMAGE = 200, INVALID_PTX = 218, NOT_FOUND = 500, ILLEGAL_ADDRESS = 700, CAPTURE_UNSUPPORTED = 900
};

typedef struct { int device; } Context;
typedef struct { char *text; Context *context; bool is_loaded; } Module;
typedef struct { char name[64]; Module *module; int parameters, most_shared; } Function;
typedef struct { char *image, *errors, *info; size_t error_bytes, info_bytes; Context *context; } Link;
typedef struct {
    char name[64];
    int device;
    unsigned grid[3], block[3], shared;
    void *stream;
    int count;
    uint64_t parameters[MOST_PARAMETERS];
} LaunchRecord;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Context contexts[DEVICES] = {{0}, {1}, {2}, {3}};
static _Thread_local Context *current;
static _Thread_local int capture_mode;

/* What tests set, and read. */
int fake_version, fake_devices, fake_major, fake_minor, fake_newer; /* the last: by how much each device's minor number is */
int fake_capturing;
void *fake_streams[DEVICES];
LaunchRecord fake_launches[MOST_LAUNCHES];
int fake_launch_count, fake_modules, fake_links, fake_blocks_taken, fake_blocks_free, fake_retained[DEVICES];
int fake_allocated_on[MOST_LAUNCHES];

static struct { char name[64]; int code, after; } failure;
static bool is_initialized;

void
fake_reset(void)
{
    fake_version = 12040, fake_devices = 2, fake_major = 9, fake_minor = 0, fake_newer = 0;
    fake_capturing = fake_launch_count = fake_links = fake_blocks_taken = fake_blocks_free = 0;
    memset(fake_streams, 0, sizeof fake_streams);
    memset(fake_retained, 0, sizeof fake_retained);
    failure.name[0] = 0;
    current = NULL;
}

/* The call of `name` after so many more fails with `code`. */
void
fake_fail(const char *name, int code, int after)
{
    snprintf(failure.name, sizeof failure.name, "%s", name);
    failure.code = code;
    failure.after = after;
}

void *
fake_current(void)
{
    return current;
}

void
fake_set_current(int device)
{
    current = device < 0 ? NULL : &contexts[device];
}

static int
told(const char *name)
{
    pthread_mutex_lock(&lock);
    int code = 0;
    if (strcmp(failure.name, name) == 0 && failure.after-- == 0) {
        code = failure.code;
        failure.name[0] = 0;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

#define MAYBE_FAIL(name) do { int code = told(name); if (code) { return code; } } while (0)

/* --- the driver ------------------------------------------------------------------------------------- */

int
cuInit(unsigned flags)
{
    MAYBE_FAIL("cuInit");
    is_initialized = true;
    return flags ? INVALID_VALUE : 0;
}

int
cuDriverGetVersion(int *version)
{
    *version = fake_version;
    return 0;
}

int
cuGetErrorName(int code, const char **name)
{
    *name = code == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : code == INVALID_PTX ? "CUDA_ERROR_INVALID_PTX"
          : code == ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_OTHER";
    return code < 0 ? INVALID_VALUE : 0;
}

int
cuGetErrorString(int code, const char **text)
{
    *text = code == OUT_OF_MEMORY ? "out of memory" : code == INVALID_PTX ? "a PTX JIT compilation failed"
          : code == ILLEGAL_ADDRESS ? "an illegal memory access was encountered"
          : code == 222 ? "the provided PTX was compiled with an unsupported toolchain." : "something else";
    return code < 0 ? INVALID_VALUE : 0;
}

int
cuDeviceGetCount(int *count)
{
    MAYBE_FAIL("cuDeviceGetCount");
    *count = fake_devices;
    return is_initialized ? 0 : NOT_INITIALIZED;
}

int
cuDeviceGet(int *device, int number)
{
    *device = number + 100; /* it is no number */
    return number >= 0 && number < fake_devices ? 0 : NO_DEVICE;
}

int
cuDeviceGetName(char *name, int length, int device)
{
    snprintf(name, (size_t)length, "Fake GPU %d", device - 100);
    return 0;
}

int
cuDeviceGetAttribute(int *value, int attribute, int device)
{
    MAYBE_FAIL("cuDeviceGetAttribute");
    *value = attribute == 75 ? fake_major : attribute == 76 ? fake_minor + fake_newer * (device - 100)
           : attribute == 10 ? 32 : 1000 + attribute;
    return device >= 100 ? 0 : INVALID_VALUE;
}

int
cuDevicePrimaryCtxRetain(Context **context, int device)
{
    MAYBE_FAIL("cuDevicePrimaryCtxRetain");
    *context = &contexts[device - 100];
    fake_retained[device - 100]++;
    return 0;
}

int
cuCtxGetCurrent(Context **context)
{
    *context = current;
    return 0;
}

int
cuCtxSetCurrent(Context *context)
{
    MAYBE_FAIL("cuCtxSetCurrent");
    current = context;
    return 0;
}

int
cuThreadExchangeStreamCaptureMode(int *mode)
{
    int before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return 0;
}

int
cuStreamIsCapturing(void *stream, int *status)
{
    *status = fake_capturing;
    return 0;
}

static bool
is_unsafe(void)
{
    return fake_capturing && capture_mode != 2;
}

int
cuModuleLoadDataEx(Module **module, const void *image, unsigned count, int *options, void **values)
{
    MAYBE_FAIL("cuModuleLoadDataEx");
    if (current == NULL || is_unsafe()) {
        return current ? CAPTURE_UNSUPPORTED : INVALID_CONTEXT;
    }
    if (strncmp(image, "cubin of\n", 9) != 0) {
        return INVALID_IMAGE;
    }
    *module = calloc(1, sizeof **module);
    **module = (Module){strdup((const char *)image + 9), current, true};
    fake_modules++;
    return 0;
}

int
cuModuleUnload(Module *module)
{
    if (current != module->context || is_unsafe()) {
        return INVALID_CONTEXT;
    }
    module->is_loaded = false; /* its memory stays, so that a late launch is seen */
    fake_modules--;
    return 0;
}

int
cuModuleGetFunction(Function **function, Module *module, const char *name)
{
    MAYBE_FAIL("cuModuleGetFunction");
    char entry[128];
    snprintf(entry, sizeof entry, ".entry %s(", name);
    const char *at = strstr(module->text, entry);
    if (at == NULL) {
        return NOT_FOUND;
    }
    Function *made = calloc(1, sizeof *made);
    snprintf(made->name, sizeof made->name, "%s", name);
    made->module = module;
    made->most_shared = 48 * 1024;
    const char *end = strchr(at, ')');
    for (const char *each = strstr(at, ".param"); each && each < end; each = strstr(each + 1, ".param")) {
        made->parameters++;
    }
    *function = made;
    return 0;
}

int
cuFuncGetAttribute(int *value, int attribute, Function *function)
{
    *value = attribute == 4 ? 24 : attribute == 3 ? 16 : attribute == 8 ? function->most_shared : 128;
    return 0;
}

int
cuFuncSetAttribute(Function *function, int attribute, int value)
{
    if (attribute != 8 || value > 227 * 1024) {
        return INVALID_VALUE;
    }
    function->most_shared = value;
    return 0;
}

int
cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, Function *function, int threads, size_t shared)
{
    *blocks = 2048 / threads;
    return function && shared < 1 << 20 ? 0 : INVALID_VALUE;
}

static void
find_logs(Link *link, unsigned count, int *options, void **values)
{
    for (unsigned i = 0; i < count; i++) {
        switch (options[i]) {
        case 3: link->info = values[i]; break;
        case 4: link->info_bytes = (size_t)values[i]; break;
        case 5: link->errors = values[i]; break;
        case 6: link->error_bytes = (size_t)values[i]; break;
        }
    }
}

int
cuLinkCreate_v2(unsigned count, int *options, void **values, Link **link)
{
    MAYBE_FAIL("cuLinkCreate");
    if (current == NULL || is_unsafe()) {
        return current ? CAPTURE_UNSUPPORTED : INVALID_CONTEXT;
    }
    *link = calloc(1, sizeof **link);
    find_logs(*link, count, options, values);
    (*link)->context = current;
    fake_links++;
    return 0;
}

int
cuLinkAddData_v2(Link *link, int kind, void *data, size_t size, const char *name, unsigned count, int *options,
                 void **values)
{
    const char *text = data;
    MAYBE_FAIL("cuLinkAddData");
    if (kind != 1 || size == 0 || text[size - 1] != 0) {
        return INVALID_VALUE;
    }
    if (strncmp(text, ".version", 8) != 0) {
        snprintf(link->errors, link->error_bytes, "%s, line 1; fatal   : Missing .version directive", name);
        return INVALID_PTX;
    }
    link->image = malloc(size + 9);
    memcpy(link->image, "cubin of\n", 9);
    memcpy(link->image + 9, text, size);
    snprintf(link->info, link->info_bytes, "ptxas info    : Used 24 registers for sm_%d%d", fake_major, fake_minor);
    return 0;
}

int
cuLinkComplete(Link *link, void **image, size_t *size)
{
    MAYBE_FAIL("cuLinkComplete");
    *image = link->image;
    *size = strlen(link->image) + 1;
    return 0;
}

int
cuLinkDestroy(Link *link)
{
    free(link->image);
    free(link);
    fake_links--;
    return 0;
}

/* --- kernels ---------------------------------------------------------------------------------------- */

static void *
pointer(void **parameters, int number)
{
    return *(void **)parameters[number];
}

/* (in, out, workspace, n) */
static void
add_one(void **parameters, unsigned block, unsigned threads, unsigned thread)
{
    int64_t i = (int64_t)block * threads + thread, n = *(int64_t *)parameters[3];
    if (i < n) {
        ((float *)pointer(parameters, 1))[i] = ((float *)pointer(parameters, 0))[i] + 1;
    }
}

/* (in, out, workspace, n): a sum per block of as many elements as it has threads */
static void
sum_blocks(void **parameters, unsigned block, unsigned threads, unsigned thread)
{
    int64_t n = *(int64_t *)parameters[3];
    float sum = 0;
    for (int64_t i = (int64_t)block * threads; thread == 0 && i < (int64_t)(block + 1) * threads && i < n; i++) {
        sum += ((float *)pointer(parameters, 0))[i];
    }
    if (thread == 0) {
        ((float *)pointer(parameters, 2))[block] = sum;
    }
}

/* (in, out, workspace, n, blocks): their sum; parameters after n are sizes of the launch too */
static void
sum_workspace(void **parameters, unsigned block, unsigned threads, unsigned thread)
{
    float sum = 0;
    for (int64_t i = 0; thread == 0 && i < *(int64_t *)parameters[4]; i++) {
        sum += ((float *)pointer(parameters, 2))[i];
    }
    if (block == 0 && thread == 0) {
        ((float *)pointer(parameters, 1))[0] = sum;
    }
    (void)threads;
}

static const struct {
    const char *name;
    void (*run)(void **parameters, unsigned block, unsigned threads, unsigned thread);
} kernels[] = {{"add_one", add_one}, {"sum_blocks", sum_blocks}, {"sum_workspace", sum_workspace}};

static void
record(const Function *function, const unsigned *grid, const unsigned *block, unsigned shared, void *stream,
       void **parameters)
{
    pthread_mutex_lock(&lock);
    LaunchRecord *made = &fake_launches[fake_launch_count++ % MOST_LAUNCHES];
    *made = (LaunchRecord){.device = current->device, .shared = shared, .stream = stream, .count = function->parameters};
    memcpy(made->name, function->name, sizeof made->name);
    memcpy(made->grid, grid, sizeof made->grid);
    memcpy(made->block, block, sizeof made->block);
    for (int i = 0; i < function->parameters && i < MOST_PARAMETERS; i++) {
        memcpy(&made->parameters[i], parameters[i], sizeof(uint64_t));
    }
    pthread_mutex_unlock(&lock);
}

int
cuLaunchKernel(Function *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
               unsigned shared, void *stream, void **parameters, void **extra)
{
    MAYBE_FAIL("cuLaunchKernel");
    if (current != function->module->context || !function->module->is_loaded) {
        return INVALID_CONTEXT;
    }
    if (gx == 0 || gy != 1 || gz != 1 || bx == 0 || bx > 1024 || by != 1 || bz != 1 || extra
        || (int)shared > function->most_shared) {
        return INVALID_VALUE;
    }
    record(function, (unsigned[]){gx, gy, gz}, (unsigned[]){bx, by, bz}, shared, stream, parameters);
    for (size_t k = 0; k < sizeof kernels / sizeof *kernels; k++) {
        for (unsigned i = 0; strcmp(kernels[k].name, function->name) == 0 && i < gx * bx; i++) {
            kernels[k].run(parameters, i / bx, bx, i % bx);
        }
    }
    return 0;
}

/* --- PyTorch's functions ---------------------------------------------------------------------------- */

int32_t
aoti_torch_get_current_cuda_stream(int32_t device, void **stream)
{
    MAYBE_FAIL("stream");
    *stream = fake_streams[device];
    return 0;
}

int32_t
aoti_torch_cuda_caching_allocator_raw_alloc(uint64_t bytes, void **memory)
{
    MAYBE_FAIL("raw_alloc");
    *memory = malloc(bytes);
    pthread_mutex_lock(&lock);
    fake_allocated_on[fake_blocks_taken++ % MOST_LAUNCHES] = current ? current->device : -1;
    pthread_mutex_unlock(&lock);
    return 0;
}

int32_t
aoti_torch_cuda_caching_allocator_raw_delete(void *memory)
{
    free(memory);
    pthread_mutex_lock(&lock);
    fake_blocks_free++;
    pthread_mutex_unlock(&lock);
    return 0;
}
