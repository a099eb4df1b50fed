/* A CUDA driver for machines without one, which runs grids on the host.

   A module is its PTX; what `.entry` names in it is a function. It is as strict as the real one: launches fail in another
   context than the function's, with grids of no blocks, with more shared memory than was allowed. All calls are counted;
   any may be told to fail. There are two kinds of GPUs:

   - Without SMELT_FAKE_KERNELS memory of a GPU is memory of the host, modules are assembled first, and a launch does at
     once what `kernels` says for the name of the function, or nothing, thread by thread. Tests in this process set and
     read the variables that begin with fake_. The functions of PyTorch that launches call beside the driver are here too.
   - With it, kernels are code that was made of the same kernels as the PTX, run by what runs grids on the host in smelt
     (gpu/host_grid.c). Memory of the GPU may be touched by nobody but copies and kernels, and ends where a page does. What
     is enqueued runs when somebody waits for its stream, not before. A pointer that a kernel is given must be in memory
     that was allocated. What is left when the process ends is written to a file.

     SMELT_FAKE_KERNELS    the shared library with a function for each grid; of the second module that is loaded, the one
                           with "2" behind its name, if there is one, and so on
     SMELT_FAKE_REPORT     where counts of calls, and of what was not given back, are written at the end
     SMELT_FAKE_FAIL       "cuLaunchKernel 3 700": the call after three others fails with this number
     SMELT_FAKE_CAPABILITY 80 unless it is said */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "executor/cuda_driver.h"
#include "gpu/host_grid.h"

enum { MOST_DEVICES = 4, RECORDED_PARAMETERS = 128, MOST_PARAMETERS = 600, MOST_LAUNCHES = 4096 };
enum { MOST_MEMORIES = 65536, WARP = 32, PAGE = 4096 };
enum {
    OK, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 101, INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201, INVALID_PTX = 218, NOT_FOUND = 500, NOT_READY = 600, ILLEGAL_ADDRESS = 700, LAUNCH_FAILED = 719,
    CAPTURE_UNSUPPORTED = 900
};

typedef struct { int device, retained; } Context;
typedef struct { char *text; Context *context; bool is_loaded; void *kernels; } Module;
typedef struct {
    char name[64];
    Module *module;
    int parameters, most_shared;
    WarpFunction run; /* of the kernels' library, and what that says of parameters; NULL: there is none */
    int pointers;
    bool is_pointer[MOST_PARAMETERS];
} Function;
typedef struct { char *image, *errors, *info; size_t error_bytes, info_bytes; } Link;
typedef struct {
    char name[64];
    int device;
    unsigned grid[3], block[3], shared;
    void *stream;
    int count;
    uint64_t parameters[RECORDED_PARAMETERS];
} LaunchNote;
typedef struct { char *map, *begin; size_t mapped, size; } Memory;
typedef struct Operation {
    struct Operation *next;
    enum { TO_DEVICE, TO_HOST, WITHIN, LAUNCH, CALL } kind;
    void *to, *from;
    size_t size;
    Function *function;
    void (*call)(void *); /* of a library, given `to` */
    unsigned blocks, threads, shared;
    uint64_t parameters[MOST_PARAMETERS];
} Operation;
typedef struct { Operation *first, **last; } Stream;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Context contexts[MOST_DEVICES] = {{.device = 0}, {.device = 1}, {.device = 2}, {.device = 3}};
static _Thread_local Context *current;
static _Thread_local int capture_mode;

/* What tests set, and read. */
int fake_version = 12040, fake_devices = 1, fake_major = 8, fake_minor;
int fake_newer; /* by how much each device's minor number is */
int fake_capturing;
int fake_events; /* that there are */
int fake_busy; /* the GPU is far behind the host: no stream is idle, no event was reached */
int fake_graphs, fake_host_nodes; /* CUDA graphs that there are; whether the next one has a node of the host */
void *fake_streams[MOST_DEVICES];
LaunchNote fake_launches[MOST_LAUNCHES];
int fake_launch_count, fake_modules, fake_links, fake_blocks_taken, fake_blocks_free;
int fake_allocated_on[MOST_LAUNCHES];

static struct { char name[64]; int code, after; } failure;
static bool is_initialized;
static Memory memories[MOST_MEMORIES];
static int memory_count, frees, streams, waits;
static Stream usual; /* the stream NULL */

void
fake_reset(void)
{
    fake_version = 12040, fake_devices = 2, fake_major = 9, fake_minor = 0, fake_newer = 0;
    fake_capturing = fake_busy = fake_host_nodes = fake_launch_count = fake_links = fake_blocks_taken = fake_blocks_free = 0;
    memset(fake_streams, 0, sizeof fake_streams);
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

#define NEEDS_NO_CAPTURE() do { if (fake_capturing && capture_mode != 2) { return CAPTURE_UNSUPPORTED; } } while (0)
#define NEEDS_CONTEXT() do { if (current == NULL || !current->retained) { return INVALID_CONTEXT; } } while (0)

/* --- settings of a process that the driver is in, and what it leaves --------------------------------- */

static void
report(void)
{
    FILE *file = fopen(getenv("SMELT_FAKE_REPORT"), "w");
    if (file) {
        fprintf(file, "{\"allocations\": %d, \"left\": %d, \"modules\": %d, \"streams\": %d, \"contexts\": %d, "
                      "\"launches\": %d, \"waits\": %d}\n",
                memory_count, memory_count - frees, fake_modules, streams, contexts[0].retained, fake_launch_count, waits);
        fclose(file);
    }
}

__attribute__((constructor)) static void
read_settings(void)
{
    const char *capability = getenv("SMELT_FAKE_CAPABILITY"), *failing = getenv("SMELT_FAKE_FAIL");
    if (capability) {
        fake_major = atoi(capability) / 10;
        fake_minor = atoi(capability) % 10;
    }
    if (failing && sscanf(failing, "%63s %d %d", failure.name, &failure.after, &failure.code) != 3) {
        failure.name[0] = 0;
    }
}

/* --- the driver ------------------------------------------------------------------------------------- */

int
cuInit(unsigned flags)
{
    MAYBE_FAIL("cuInit");
    if (!is_initialized && getenv("SMELT_FAKE_REPORT")) {
        dlopen("libcuda.so.1", RTLD_NOW); /* held for good: what is left is counted when the process ends */
        atexit(report);
    }
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
    contexts[device - 100].retained++;
    return 0;
}

int
cuDevicePrimaryCtxRelease_v2(int device)
{
    contexts[device - 100].retained--;
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

int
cuStreamQuery(void *stream)
{
    NEEDS_NO_CAPTURE();
    return fake_busy ? NOT_READY : 0;
}

int
cuEventCreate(void **event, unsigned flags)
{
    MAYBE_FAIL("cuEventCreate");
    NEEDS_CONTEXT();
    *event = malloc(1);
    fake_events++;
    return flags == 2 ? 0 : INVALID_VALUE;
}

int
cuEventRecord(void *event, void *stream)
{
    return event ? 0 : INVALID_VALUE;
}

int
cuEventQuery(void *event)
{
    NEEDS_NO_CAPTURE();
    return event == NULL ? INVALID_VALUE : fake_busy ? NOT_READY : 0;
}

int
cuEventDestroy_v2(void *event)
{
    free(event);
    fake_events--;
    return 0;
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

/* Nothing is wrong with a text that begins as PTX does. */
static int
check_ptx(const char *text, const char *name, const Link *link)
{
    if (strstr(text, ".version")) {
        return OK;
    }
    snprintf(link->errors, link->error_bytes, "%s, line 1; fatal   : Missing .version directive", name);
    return INVALID_PTX;
}

/* The kernels of the module that is loaded next. */
static void *
open_kernels(const char *path)
{
    static int modules;
    char own[4096];
    snprintf(own, sizeof own, "%s%d", path, ++modules);
    void *kernels = modules > 1 ? dlopen(own, RTLD_NOW | RTLD_LOCAL) : NULL;
    return kernels ? kernels : dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

int
cuModuleLoadDataEx(Module **module, const void *image, unsigned count, int *options, void **values)
{
    MAYBE_FAIL("cuModuleLoadDataEx");
    const char *path = getenv("SMELT_FAKE_KERNELS"), *text = image;
    Link link = {.image = NULL};
    NEEDS_CONTEXT();
    NEEDS_NO_CAPTURE();
    if (path == NULL && strncmp(text, "cubin of\n", 9) != 0) {
        return INVALID_IMAGE;
    }
    find_logs(&link, count, options, values);
    if (check_ptx(text, "module", &link)) {
        return INVALID_PTX;
    }
    void *kernels = path ? open_kernels(path) : NULL;
    void (**waiting)(void) = kernels ? dlsym(kernels, "fake_barrier") : NULL;
    if (path && waiting == NULL) {
        fprintf(stderr, "no kernels: %s\n", dlerror());
        return NOT_FOUND;
    }
    if (waiting) {
        *waiting = host_grid_barrier;
    }
    *module = calloc(1, sizeof **module);
    **module = (Module){strdup(text), current, true, kernels};
    fake_modules++;
    return 0;
}

int
cuModuleUnload(Module *module)
{
    if (current != module->context) {
        return INVALID_CONTEXT;
    }
    NEEDS_NO_CAPTURE();
    module->is_loaded = false; /* its memory stays, so that a late launch is seen */
    fake_modules--;
    return 0;
}

/* Parameters as the PTX has them: buffers and numbers, the workspace, then sizes. Which is which, the kernels' library
   says: `k0_0_buffers` is how many buffers the function k0_0 takes. */
int
cuModuleGetFunction(Function **function, Module *module, const char *name)
{
    MAYBE_FAIL("cuModuleGetFunction");
    char entry[128];
    snprintf(entry, sizeof entry, ".entry %s(", name);
    const char *at = strstr(module->text, entry);
    snprintf(entry, sizeof entry, "%s_buffers", name);
    void *run = module->kernels ? dlsym(module->kernels, name) : NULL;
    const int *buffers = run ? dlsym(module->kernels, entry) : NULL;
    if (at == NULL || (module->kernels && buffers == NULL)) {
        return NOT_FOUND;
    }
    Function *made = calloc(1, sizeof *made); /* never freed, as the driver's are not */
    snprintf(made->name, sizeof made->name, "%s", name);
    memcpy(&made->run, &run, sizeof run);
    made->module = module;
    made->most_shared = 48 * 1024;
    made->pointers = buffers ? *buffers : 0;
    const char *end = strchr(at, ')');
    for (const char *each = strstr(at, ".param"); each && each < end && made->parameters < MOST_PARAMETERS;
         each = strstr(each + 1, ".param")) {
        const char *line = strchr(each, '\n'), *mark = strstr(each, ".ptr");
        made->is_pointer[made->parameters++] = mark && mark < line;
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

int
cuLinkCreate_v2(unsigned count, int *options, void **values, Link **link)
{
    MAYBE_FAIL("cuLinkCreate");
    NEEDS_CONTEXT();
    NEEDS_NO_CAPTURE();
    *link = calloc(1, sizeof **link);
    find_logs(*link, count, options, values);
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
    if (check_ptx(text, name, link)) {
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

/* --- memory ---------------------------------------------------------------------------------------------------- */

static void
protect(int how)
{
    for (int i = 0; i < memory_count; i++) {
        if (memories[i].map) {
            mprotect(memories[i].map + PAGE, memories[i].mapped - 2 * PAGE, how);
        }
    }
}

static Memory *
memory_at(const void *address)
{
    for (int i = 0; i < memory_count; i++) {
        const char *begin = memories[i].begin;
        if (memories[i].map && (const char *)address >= begin && (const char *)address < begin + memories[i].size) {
            return &memories[i];
        }
    }
    return NULL;
}

static bool
is_inside(const void *address, size_t size)
{
    pthread_mutex_lock(&lock);
    const Memory *found = memory_at(address);
    const bool fits = found && size <= (size_t)(found->begin + found->size - (const char *)address);
    pthread_mutex_unlock(&lock);
    return fits;
}

int
cuMemAlloc_v2(uint64_t *address, size_t size)
{
    MAYBE_FAIL("cuMemAlloc");
    NEEDS_CONTEXT();
    const size_t room = (size + 255) / 256 * 256, pages = (room + PAGE - 1) / PAGE * PAGE;
    if (size == 0 || memory_count == MOST_MEMORIES) {
        return INVALID_VALUE;
    }
    char *map = mmap(NULL, pages + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pthread_mutex_lock(&lock);
    memories[memory_count++] = (Memory){map, map + PAGE + pages - room, pages + 2 * PAGE, size};
    *address = (uint64_t)(uintptr_t)memories[memory_count - 1].begin;
    mprotect(map + PAGE, pages, PROT_READ | PROT_WRITE);
    memset(map + PAGE, 0xFF, pages); /* what nobody wrote shows */
    mprotect(map + PAGE, pages, PROT_NONE);
    pthread_mutex_unlock(&lock);
    return OK;
}

int
cuMemFree_v2(uint64_t address)
{
    NEEDS_CONTEXT();
    pthread_mutex_lock(&lock);
    Memory *found = memory_at((void *)(uintptr_t)address);
    if (found == NULL || (uint64_t)(uintptr_t)found->begin != address) {
        pthread_mutex_unlock(&lock);
        return INVALID_VALUE;
    }
    munmap(found->map, found->mapped);
    found->map = NULL;
    frees++;
    pthread_mutex_unlock(&lock);
    return OK;
}

int
cuPointerGetAttribute(void *value, int attribute, uint64_t address)
{
    pthread_mutex_lock(&lock);
    const bool found = memory_at((void *)(uintptr_t)address) != NULL;
    pthread_mutex_unlock(&lock);
    if (attribute != 2 || !found) {
        return INVALID_VALUE;
    }
    *(unsigned *)value = 2;
    return OK;
}

/* --- streams ---------------------------------------------------------------------------------------- */

/* Pointers and numbers as the host's functions have them: in an array, numbers by address, sizes as its last. */
static int
run_grid(Operation *made)
{
    const Function *function = made->function;
    void *buffers[MOST_PARAMETERS];
    for (int i = 0; i < function->pointers; i++) {
        void *given = (void *)(uintptr_t)made->parameters[i];
        if (function->is_pointer[i] && memory_at(given) == NULL) {
            return ILLEGAL_ADDRESS;
        }
        buffers[i] = function->is_pointer[i] ? given : (void *)&made->parameters[i];
    }
    buffers[function->pointers] = &made->parameters[function->pointers + 1];
    const GridPhase phase = {{.threads = made->threads, .shared_bytes = made->shared}, function->run, true};
    void *workspace = (void *)(uintptr_t)made->parameters[function->pointers];
    return host_grid_run(&phase, WARP, made->blocks, buffers, workspace) ? LAUNCH_FAILED : OK;
}

static Stream *
stream_of(Stream *given)
{
    Stream *found = given ? given : &usual;
    if (found->last == NULL) {
        found->last = &found->first;
    }
    return found;
}

static void
enqueue(Stream *given, const Operation *operation)
{
    Stream *stream = stream_of(given);
    Operation *made = malloc(sizeof *made);
    *made = *operation;
    made->next = NULL;
    *stream->last = made;
    stream->last = &made->next;
}

/* What another library does with memory of the GPU. */
void
fake_enqueue_call(Stream *stream, void (*call)(void *), void *data)
{
    pthread_mutex_lock(&lock);
    enqueue(stream, &(Operation){.kind = CALL, .call = call, .to = data});
    pthread_mutex_unlock(&lock);
}

/* All that was enqueued, up to what fails; `result`: what has failed already. */
static int
drain(Stream *given, int result)
{
    Stream *stream = stream_of(given);
    pthread_mutex_lock(&lock);
    protect(PROT_READ | PROT_WRITE);
    while (stream->first) {
        Operation *each = stream->first;
        stream->first = each->next;
        if (result == OK && each->kind == LAUNCH) {
            result = run_grid(each);
        }
        else if (each->kind == CALL) {
            each->call(each->to);
        }
        else if (result == OK) {
            memmove(each->to, each->from, each->size);
        }
        if (each->kind == TO_DEVICE) {
            free(each->from);
        }
        free(each);
    }
    stream->last = &stream->first;
    protect(PROT_NONE);
    pthread_mutex_unlock(&lock);
    return result;
}

int
cuStreamCreate(Stream **stream, unsigned flags)
{
    MAYBE_FAIL("cuStreamCreate");
    NEEDS_CONTEXT();
    *stream = calloc(1, sizeof **stream);
    streams++;
    return flags == 1 ? OK : INVALID_VALUE;
}

int
cuStreamDestroy_v2(Stream *stream)
{
    NEEDS_CONTEXT();
    const int result = drain(stream, OK);
    free(stream);
    streams--;
    return result;
}

int
cuStreamSynchronize(Stream *stream)
{
    NEEDS_CONTEXT();
    waits++;
    return drain(stream, told("cuStreamSynchronize"));
}

/* What is copied from the host is read at once, as from memory that is not pinned. */
int
cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t size, Stream *stream)
{
    MAYBE_FAIL("cuMemcpyHtoD");
    NEEDS_CONTEXT();
    if (!is_inside((void *)(uintptr_t)to, size)) {
        return INVALID_VALUE;
    }
    void *staged = malloc(size);
    memcpy(staged, from, size);
    enqueue(stream, &(Operation){.kind = TO_DEVICE, .to = (void *)(uintptr_t)to, .from = staged, .size = size});
    return OK;
}

int
cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t size, Stream *stream)
{
    MAYBE_FAIL("cuMemcpyDtoH");
    NEEDS_CONTEXT();
    if (!is_inside((void *)(uintptr_t)from, size)) {
        return INVALID_VALUE;
    }
    enqueue(stream, &(Operation){.kind = TO_HOST, .to = to, .from = (void *)(uintptr_t)from, .size = size});
    return OK;
}

/* --- CUDA graphs ------------------------------------------------------------------------------------ */

/* What is launched and copied on a stream that is recorded becomes nodes, which a launch of the graph goes through. */
enum { MOST_NODES = 256, KERNEL_NODE = 0, COPY_NODE = 1, HOST_NODE = 3, RELAXED = 2 };

typedef struct {
    int type, place;
    Function *function;
    unsigned blocks, threads, shared;
    uint64_t words[RECORDED_PARAMETERS]; /* parameters, or where to copy to, where from and how much */
} GraphNode;

typedef struct {
    int count;
    GraphNode nodes[MOST_NODES];
} Graph;

static void *recorded_stream;
static Graph *recorded;

static GraphNode *
add_node(int type)
{
    GraphNode *node = &recorded->nodes[recorded->count];
    node->type = type;
    node->place = recorded->count++;
    return node;
}

int
cuStreamBeginCapture_v2(void *stream, int mode)
{
    MAYBE_FAIL("cuStreamBeginCapture_v2");
    if (recorded || stream == NULL || mode != RELAXED) {
        return CAPTURE_UNSUPPORTED;
    }
    recorded_stream = stream;
    recorded = calloc(1, sizeof *recorded);
    fake_graphs++;
    if (fake_host_nodes) {
        add_node(HOST_NODE);
    }
    return 0;
}

int
cuStreamEndCapture(void *stream, Graph **graph)
{
    *graph = recorded;
    recorded = NULL;
    recorded_stream = NULL;
    return *graph ? 0 : CAPTURE_UNSUPPORTED;
}

int
cuStreamGetCaptureInfo_v2(void *stream, int *status, uint64_t *number, Graph **graph, GraphNode *const **last, size_t *count)
{
    static GraphNode *node;
    *status = stream == recorded_stream;
    *number = 1;
    *graph = recorded;
    node = recorded && recorded->count ? &recorded->nodes[recorded->count - 1] : NULL;
    *last = &node;
    *count = node != NULL;
    return 0;
}

int
cuGraphGetNodes(Graph *graph, GraphNode **nodes, size_t *count)
{
    for (int i = 0; nodes && i < graph->count; i++) {
        nodes[i] = &graph->nodes[i];
    }
    *count = (size_t)graph->count;
    return 0;
}

int
cuGraphNodeGetType(GraphNode *node, int *type)
{
    *type = node->type;
    return 0;
}

int
cuGraphMemcpyNodeGetParams(GraphNode *node, CudaCopyNode *copy)
{
    *copy = (CudaCopyNode){.from = {.memory_type = 2, .device = node->words[1]},
                           .to = {.memory_type = 2, .device = node->words[0]},
                           .width = node->words[2],
                           .height = 1,
                           .depth = 1};
    return 0;
}

int
cuGraphInstantiateWithFlags(Graph **exec, Graph *graph, uint64_t flags)
{
    MAYBE_FAIL("cuGraphInstantiateWithFlags");
    fake_graphs++;
    *exec = malloc(sizeof **exec);
    **exec = *graph;
    return 0;
}

int
cuGraphExecKernelNodeSetParams_v2(Graph *exec, GraphNode *node, const CudaKernelNode *kernel)
{
    MAYBE_FAIL("cuGraphExecKernelNodeSetParams_v2");
    GraphNode *changed = &exec->nodes[node->place];
    if (changed->type != KERNEL_NODE || (Function *)kernel->function != changed->function
        || kernel->grid[0] != changed->blocks || kernel->block[0] != changed->threads) {
        return INVALID_VALUE;
    }
    for (int i = 0; i < changed->function->parameters; i++) {
        memcpy(&changed->words[i], kernel->parameters[i], sizeof(uint64_t));
    }
    return 0;
}

int
cuGraphExecMemcpyNodeSetParams(Graph *exec, GraphNode *node, const CudaCopyNode *copy, Context *context)
{
    GraphNode *changed = &exec->nodes[node->place];
    if (changed->type != COPY_NODE || copy->height != 1 || copy->depth != 1 || context == NULL) {
        return INVALID_VALUE;
    }
    changed->words[0] = copy->to.device;
    changed->words[1] = copy->from.device;
    changed->words[2] = copy->width;
    return 0;
}

int cuLaunchKernel(Function *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **parameters, void **extra);

int
cuGraphLaunch(Graph *exec, void *stream)
{
    MAYBE_FAIL("cuGraphLaunch");
    int status = 0;
    for (int i = 0; status == 0 && i < exec->count; i++) {
        GraphNode *node = &exec->nodes[i];
        void *parameters[RECORDED_PARAMETERS];
        for (int k = 0; k < RECORDED_PARAMETERS; k++) {
            parameters[k] = &node->words[k];
        }
        if (node->type == COPY_NODE) {
            memmove((void *)(uintptr_t)node->words[0], (void *)(uintptr_t)node->words[1], node->words[2]);
        }
        else {
            status = cuLaunchKernel(node->function, node->blocks, 1, 1, node->threads, 1, 1, node->shared, stream,
                                    parameters, NULL);
        }
    }
    return status;
}

int
cuGraphDestroy(Graph *graph)
{
    fake_graphs--;
    free(graph);
    return 0;
}

int
cuGraphExecDestroy(Graph *exec)
{
    return cuGraphDestroy(exec);
}

int
cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t size, Stream *stream)
{
    NEEDS_CONTEXT();
    if (!is_inside((void *)(uintptr_t)to, size) || !is_inside((void *)(uintptr_t)from, size)) {
        return INVALID_VALUE;
    }
    if (recorded && stream == recorded_stream) {
        GraphNode *node = add_node(COPY_NODE);
        node->words[0] = to, node->words[1] = from, node->words[2] = size;
        return OK;
    }
    void *target = (void *)(uintptr_t)to, *source = (void *)(uintptr_t)from;
    enqueue(stream, &(Operation){.kind = WITHIN, .to = target, .from = source, .size = size});
    return OK;
}

/* --- kernels by name ---------------------------------------------------------------------------------------- */

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

/* (in, out) */
static void
square(void **parameters, unsigned block, unsigned threads, unsigned thread)
{
    const float *from = pointer(parameters, 0);
    ((float *)pointer(parameters, 1))[block * threads + thread] = from[block * threads + thread] * from[block * threads + thread];
}

static const struct {
    const char *name;
    void (*run)(void **parameters, unsigned block, unsigned threads, unsigned thread);
} kernels[] = {{"add_one", add_one}, {"square", square}, {"sum_blocks", sum_blocks}, {"sum_workspace", sum_workspace}};

static void
note(const Function *function, unsigned blocks, unsigned threads, unsigned shared, void *stream, void **parameters)
{
    pthread_mutex_lock(&lock);
    LaunchNote *made = &fake_launches[fake_launch_count++ % MOST_LAUNCHES];
    *made = (LaunchNote){.device = current->device, .grid = {blocks, 1, 1}, .block = {threads, 1, 1}, .shared = shared,
                         .stream = stream, .count = function->parameters};
    memcpy(made->name, function->name, sizeof made->name);
    for (int i = 0; i < function->parameters && i < RECORDED_PARAMETERS; i++) {
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
        || (int)shared > function->most_shared || (function->run && (bx % WARP || stream == NULL))) {
        return INVALID_VALUE;
    }
    if (recorded && stream == recorded_stream) {
        GraphNode *node = add_node(KERNEL_NODE);
        node->function = function, node->blocks = gx, node->threads = bx, node->shared = shared;
        for (int i = 0; i < function->parameters; i++) {
            memcpy(&node->words[i], parameters[i], sizeof(uint64_t));
        }
        return 0;
    }
    note(function, gx, bx, shared, stream, parameters);
    if (function->run) {
        Operation made = {.kind = LAUNCH, .function = function, .blocks = gx, .threads = bx, .shared = shared};
        for (int i = 0; i < function->parameters; i++) {
            memcpy(&made.parameters[i], parameters[i], sizeof(uint64_t));
        }
        enqueue(stream, &made);
        return 0;
    }
    for (size_t k = 0; k < sizeof kernels / sizeof *kernels; k++) {
        for (unsigned i = 0; strcmp(kernels[k].name, function->name) == 0 && i < gx * bx; i++) {
            kernels[k].run(parameters, i / bx, bx, i % bx);
        }
    }
    return 0;
}

/* What a library would launch on the current stream: `count` numbers, squared. */
int
fake_library_square(const float *from, float *to, int count)
{
    static Module module = {.context = &contexts[0], .is_loaded = true};
    static Function function = {.name = "square", .module = &module, .parameters = 2, .most_shared = 48 * 1024};
    void *parameters[] = {&from, &to};
    Context *before = current;
    current = &contexts[0];
    int status = cuLaunchKernel(&function, 1, 1, 1, (unsigned)count, 1, 1, 0, fake_streams[0], parameters, NULL);
    current = before;
    return status;
}

/* --- PyTorch's functions ---------------------------------------------------------------------------- */

/* In the place of aoti_torch_empty_strided, which has no such device here, and takes long to say so. */
int32_t
fake_empty_strided(void)
{
    return 1;
}

/* In the place of aoti_torch_get_device_index: every tensor says that it is on the first GPU. */
int32_t
fake_device_index(void *tensor, int32_t *number)
{
    *number = 0;
    return 0;
}

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
