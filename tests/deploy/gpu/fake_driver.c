/* A CUDA driver for machines without a GPU: grids run on the host, by code that was made of the same kernels.

   It is as strict as can be. Memory of the "GPU" may be touched by nobody but copies and kernels, and ends where a page
   does. What is enqueued runs when somebody waits for its stream, not before. A pointer that a kernel is given must be in
   memory that was allocated, a launch must have as many threads and as much shared memory as there can be, and every call
   needs the right context. What is left when the process ends is written to a file.

     SMELT_FAKE_KERNELS    the shared library with a function for each grid
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
#include <ucontext.h>
#include <unistd.h>

enum { OK, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_CONTEXT = 201, INVALID_PTX = 218, NOT_FOUND = 500 };
enum { MOST = 65536, WARP = 32, MOST_PARAMETERS = 600, MOST_WARPS = 32, STACK = 256 * 1024, PAGE = 4096 };
typedef void (*WarpFunction)(void **buffers, void *workspace, int64_t block, int64_t warp, void *shared);

typedef struct { char *map, *begin; size_t mapped, size; } Memory;
typedef struct { int live; } Context;
typedef struct { char *text; } Module;
typedef struct {
    WarpFunction run;
    int parameters, pointers, most_shared;
    bool is_pointer[MOST_PARAMETERS];
    char name[128];
} Function;
typedef struct Operation {
    struct Operation *next;
    enum { TO_DEVICE, TO_HOST, WITHIN, LAUNCH } kind;
    void *to, *from;
    size_t size;
    Function *function;
    unsigned blocks, threads, shared;
    uint64_t parameters[MOST_PARAMETERS];
} Operation;
typedef struct { Operation *first, **last; } Stream;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Memory memories[MOST];
static int memory_count, allocations, frees, modules, streams, launches, waits;
static Context only;
static Stream usual; /* the stream NULL */
static _Thread_local Context *current;
static void *kernels;
static bool is_open;

static int
told(const char *name)
{
    static int after = -1;
    const char *given = getenv("SMELT_FAKE_FAIL");
    char wanted[64];
    int count, code;
    if (given == NULL || sscanf(given, "%63s %d %d", wanted, &count, &code) != 3 || strcmp(wanted, name)) {
        return 0;
    }
    after = after < 0 ? count : after - 1;
    return after == 0 ? code : 0;
}

#define MAYBE_FAIL(name) do { const int code = told(name); if (code) { return code; } } while (0)
#define NEEDS_CONTEXT() do { if (current != &only || !only.live) { return INVALID_CONTEXT; } } while (0)

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
    if (size == 0 || memory_count == MOST) {
        return INVALID_VALUE;
    }
    char *map = mmap(NULL, pages + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pthread_mutex_lock(&lock);
    memories[memory_count++] = (Memory){map, map + PAGE + pages - room, pages + 2 * PAGE, size};
    *address = (uint64_t)(uintptr_t)memories[memory_count - 1].begin;
    allocations++;
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

/* --- a grid ------------------------------------------------------------------------------------------------------ */

typedef struct { ucontext_t context; bool waits, done; } Warp;
static _Thread_local struct {
    ucontext_t scheduler;
    Warp warps[MOST_WARPS];
    int running;
    WarpFunction run;
    void **buffers, *workspace, *shared;
    int64_t block;
} at_work;

static void
barrier(void)
{
    at_work.warps[at_work.running].waits = true;
    swapcontext(&at_work.warps[at_work.running].context, &at_work.scheduler);
}

static void
run_warp(void)
{
    const int number = at_work.running;
    at_work.run(at_work.buffers, at_work.workspace, at_work.block, number, at_work.shared);
    at_work.warps[number].done = true;
}

static void
run_block(int count, char *stacks)
{
    for (int i = 0; i < count; i++) {
        Warp *warp = &at_work.warps[i];
        *warp = (Warp){.done = false};
        getcontext(&warp->context);
        warp->context.uc_stack.ss_sp = stacks + (size_t)i * STACK;
        warp->context.uc_stack.ss_size = STACK;
        warp->context.uc_link = &at_work.scheduler;
        makecontext(&warp->context, run_warp, 0);
    }
    for (bool all = false; !all;) {
        all = true;
        for (int i = 0; i < count; i++) {
            if (!at_work.warps[i].done) {
                at_work.running = i;
                swapcontext(&at_work.scheduler, &at_work.warps[i].context);
                all = all && at_work.warps[i].done;
            }
        }
    }
}

/* Pointers and numbers as the host's functions have them: in an array, numbers by address, sizes as its last. */
static int
run_grid(Operation *made)
{
    const Function *function = made->function;
    void *buffers[MOST_PARAMETERS];
    const int sizes = function->parameters - function->pointers - 1;
    for (int i = 0; i < function->pointers; i++) {
        void *given = (void *)(uintptr_t)made->parameters[i];
        if (function->is_pointer[i] && memory_at(given) == NULL) {
            return 700;
        }
        buffers[i] = function->is_pointer[i] ? given : (void *)&made->parameters[i];
    }
    at_work.workspace = (void *)(uintptr_t)made->parameters[function->pointers];
    if (sizes) {
        buffers[function->pointers] = &made->parameters[function->pointers + 1];
    }
    at_work.shared = aligned_alloc(128, (made->shared + 255) / 128 * 128);
    char *stacks = malloc((size_t)(made->threads / WARP) * STACK);
    at_work.run = function->run;
    at_work.buffers = buffers;
    for (at_work.block = 0; at_work.block < made->blocks; at_work.block++) {
        memset(at_work.shared, 0xFF, made->shared);
        run_block((int)(made->threads / WARP), stacks);
    }
    free(stacks);
    free(at_work.shared);
    return OK;
}

/* --- streams ----------------------------------------------------------------------------------------------------- */

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

int
cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t size, Stream *stream)
{
    NEEDS_CONTEXT();
    if (!is_inside((void *)(uintptr_t)to, size) || !is_inside((void *)(uintptr_t)from, size)) {
        return INVALID_VALUE;
    }
    void *target = (void *)(uintptr_t)to, *source = (void *)(uintptr_t)from;
    enqueue(stream, &(Operation){.kind = WITHIN, .to = target, .from = source, .size = size});
    return OK;
}

/* --- devices, contexts, modules ------------------------------------------------------------------------------------ */

static void
report(void)
{
    const char *path = getenv("SMELT_FAKE_REPORT");
    FILE *file = path ? fopen(path, "w") : NULL;
    if (file) {
        fprintf(file, "{\"allocations\": %d, \"left\": %d, \"modules\": %d, \"streams\": %d, \"contexts\": %d, "
                      "\"launches\": %d, \"waits\": %d}\n",
                allocations, allocations - frees, modules, streams, only.live, launches, waits);
        fclose(file);
    }
}

int
cuInit(unsigned flags)
{
    MAYBE_FAIL("cuInit");
    if (!is_open) {
        is_open = true;
        dlopen("libcuda.so.1", RTLD_NOW); /* held for good: what is left is counted when the process ends */
        atexit(report);
    }
    return flags ? INVALID_VALUE : OK;
}

int
cuGetErrorString(int code, const char **text)
{
    *text = code == OUT_OF_MEMORY ? "out of memory" : code == 700 ? "an illegal memory access was encountered"
          : code == INVALID_PTX ? "a PTX JIT compilation failed" : "something else";
    return OK;
}

int
cuDeviceGetCount(int *count)
{
    MAYBE_FAIL("cuDeviceGetCount");
    *count = 1;
    return OK;
}

int
cuDeviceGet(int *device, int number)
{
    *device = number + 100; /* it is no number */
    return number ? INVALID_VALUE : OK;
}

int
cuDeviceGetName(char *name, int length, int device)
{
    snprintf(name, (size_t)length, "Fake GPU %d", device - 100);
    return OK;
}

int
cuDeviceGetAttribute(int *value, int attribute, int device)
{
    const char *given = getenv("SMELT_FAKE_CAPABILITY");
    const int capability = given ? atoi(given) : 80;
    *value = attribute == 75 ? capability / 10 : capability % 10;
    return device == 100 && (attribute == 75 || attribute == 76) ? OK : INVALID_VALUE;
}

int
cuDevicePrimaryCtxRetain(Context **context, int device)
{
    MAYBE_FAIL("cuDevicePrimaryCtxRetain");
    only.live++;
    *context = &only;
    return device == 100 ? OK : INVALID_VALUE;
}

int
cuDevicePrimaryCtxRelease_v2(int device)
{
    only.live--;
    return device == 100 ? OK : INVALID_VALUE;
}

int
cuCtxGetCurrent(Context **context)
{
    *context = current;
    return OK;
}

int
cuCtxSetCurrent(Context *context)
{
    current = context;
    return OK;
}

int
cuModuleLoadDataEx(Module **module, const void *image, unsigned count, int *options, void **values)
{
    MAYBE_FAIL("cuModuleLoadDataEx");
    NEEDS_CONTEXT();
    if (strstr(image, ".version") == NULL) {
        snprintf(values[0], (size_t)values[1], "line 1: Missing .version directive");
        return count == 2 && options[0] == 5 && options[1] == 6 ? INVALID_PTX : INVALID_VALUE;
    }
    const char *path = getenv("SMELT_FAKE_KERNELS");
    kernels = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    void (**waiting)(void) = kernels ? dlsym(kernels, "fake_barrier") : NULL;
    if (waiting == NULL) {
        fprintf(stderr, "no kernels: %s\n", dlerror());
        return NOT_FOUND;
    }
    *waiting = barrier;
    *module = calloc(1, sizeof **module);
    (*module)->text = strdup(image);
    modules++;
    return OK;
}

int
cuModuleUnload(Module *module)
{
    NEEDS_CONTEXT();
    free(module->text);
    free(module);
    modules--;
    return OK;
}

/* Parameters as the PTX has them: buffers and numbers, the workspace, then sizes. Which is which, the kernels' library
   says: `k0_0_buffers` is how many buffers the function k0_0 takes. */
int
cuModuleGetFunction(Function **function, Module *module, const char *name)
{
    MAYBE_FAIL("cuModuleGetFunction");
    NEEDS_CONTEXT();
    char entry[160];
    snprintf(entry, sizeof entry, ".entry %s(", name);
    const char *at = strstr(module->text, entry);
    snprintf(entry, sizeof entry, "%s_buffers", name);
    void *run = dlsym(kernels, name);
    const int *buffers = dlsym(kernels, entry);
    if (at == NULL || run == NULL || buffers == NULL) {
        return NOT_FOUND;
    }
    Function *made = calloc(1, sizeof *made); /* never freed, as the driver's are not */
    memcpy(&made->run, &run, sizeof run);
    snprintf(made->name, sizeof made->name, "%s", name);
    made->pointers = *buffers;
    made->most_shared = 48 * 1024;
    const char *end = strchr(at, ')');
    for (const char *each = strstr(at, ".param"); each && each < end; each = strstr(each + 1, ".param")) {
        const char *line = strchr(each, '\n'), *mark = strstr(each, ".ptr");
        made->is_pointer[made->parameters++] = mark && mark < line;
    }
    *function = made;
    return OK;
}

int
cuFuncSetAttribute(Function *function, int attribute, int value)
{
    if (attribute != 8 || value > 227 * 1024) {
        return INVALID_VALUE;
    }
    function->most_shared = value;
    return OK;
}

int
cuLaunchKernel(Function *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
               unsigned shared, Stream *stream, void **parameters, void **extra)
{
    MAYBE_FAIL("cuLaunchKernel");
    NEEDS_CONTEXT();
    if (gx == 0 || gy != 1 || gz != 1 || bx == 0 || bx > 1024 || bx % WARP || by != 1 || bz != 1 || extra
        || (int)shared > function->most_shared || stream == NULL || function->parameters > MOST_PARAMETERS) {
        return INVALID_VALUE;
    }
    Operation made = {.kind = LAUNCH, .function = function, .blocks = gx, .threads = bx, .shared = shared};
    for (int i = 0; i < function->parameters; i++) {
        memcpy(&made.parameters[i], parameters[i], sizeof(uint64_t));
    }
    enqueue(stream, &made);
    launches++;
    return OK;
}
