/* Shares the points of a kernel out between threads: generated code calls it as `smelt_parallel_for`.

     k0(buffers, threads, workspace)   smelt_parallel_for(k0.part, …)               generated: codegen/cpu/entry_points.py
       parallel_for                    how many chunks; one: run it here; more: GOMP_parallel(run_share, …)
         run_share                     chunks thread, thread + threads, …, so that any number of threads runs them all
           run_chunk                   points extent·chunk/chunks up to extent·(chunk + 1)/chunks → k0.part

   In a child of fork() the threads of the parent are gone, and libgomp waits for them forever. There the calling
   thread runs all chunks, unless the parent had no other thread that could have been one of them.

   There are always as many threads as the caller asked for, as in PyTorch's own loops: libgomp keeps its threads only
   while their number stays the same. It is the OpenMP library that PyTorch uses, found by name at run time; without it
   the calling thread runs everything. */
#include "runner/parallel.h"

#include <dirent.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

typedef void (*Part)(void *buffers, char *workspace, int64_t first, int64_t last, bool ends);

typedef struct {
    Part part;
    void *buffers;
    char *workspace;
    uint64_t chunks;
    uint64_t extent;
    uint64_t chunk_bytes; /* of workspace */
} Task;

static struct {
    void (*parallel)(void (*run)(void *), void *data, unsigned threads, unsigned flags);
    int (*thread)(void);
    int (*threads)(void);
} openmp;

static bool had_threads, is_orphan;

/* Before fork(): "." and ".." and a name for each thread. */
static void
count_threads(void)
{
    DIR *threads = opendir("/proc/self/task");
    int count = 0;
    while (threads && count < 4 && readdir(threads)) {
        count++;
    }
    if (threads) {
        closedir(threads);
    }
    had_threads = threads == NULL || count > 3;
}

static void
lose_threads(void)
{
    is_orphan = is_orphan || had_threads;
}

int
parallel_init(void)
{
    if (pthread_atfork(count_threads, NULL, lose_threads) == 0) {
        return 0;
    }
    PyErr_NoMemory();
    return -1;
}

static void
run_chunk(const Task *task, uint64_t chunk)
{
    uint64_t first = chunk * task->extent / task->chunks;
    uint64_t last = (chunk + 1) * task->extent / task->chunks;
    char *workspace = task->workspace + chunk * task->chunk_bytes;
    task->part(task->buffers, workspace, (int64_t)first, (int64_t)last, chunk + 1 == task->chunks);
}

static void
run_share(void *data)
{
    const Task *task = data;
    uint64_t threads = (uint64_t)openmp.threads();
    for (uint64_t chunk = (uint64_t)openmp.thread(); chunk < task->chunks; chunk += threads) {
        run_chunk(task, chunk);
    }
}

/* Into how many chunks the points were divided: at most `most`, of `chunk_bytes` of workspace each. */
static int64_t
parallel_for(Part part, void *buffers, char *workspace, int64_t threads, int64_t most, int64_t extent, int64_t chunk_bytes)
{
    int64_t chunks = threads < most ? threads : most;
    bool alone = chunks < 2 || openmp.parallel == NULL;
    Task task = {part, buffers, workspace, alone ? 1 : (uint64_t)chunks, (uint64_t)extent, (uint64_t)chunk_bytes};
    if (alone || is_orphan) {
        for (uint64_t chunk = 0; chunk < task.chunks; chunk++) {
            run_chunk(&task, chunk);
        }
    } else {
        openmp.parallel(run_share, &task, (unsigned)threads, 0);
    }
    return (int64_t)task.chunks;
}

/* parallel_for_address(parallel, thread, threads) → address of `parallel_for` */
PyObject *
parallel_for_address(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned long long parallel, thread, threads;
    if (!PyArg_ParseTuple(args, "KKK:parallel_for_address", &parallel, &thread, &threads)) {
        return NULL;
    }
    bool has_openmp = parallel && thread && threads;
    openmp.parallel = has_openmp ? (void (*)(void (*)(void *), void *, unsigned, unsigned))(uintptr_t)parallel : NULL;
    openmp.thread = has_openmp ? (int (*)(void))(uintptr_t)thread : NULL;
    openmp.threads = has_openmp ? (int (*)(void))(uintptr_t)threads : NULL;
    return PyLong_FromVoidPtr((void *)(uintptr_t)parallel_for);
}
