/* Runs the chunks of kernels (executor/parallel.c) on the threads of the OpenMP library that PyTorch uses.

   There are always as many threads as the caller asked for, as in PyTorch's own loops: libgomp keeps its threads only
   while their number stays the same. The library is found by name at run time; without it, kernels have one chunk.

   In a child of fork() the threads of the parent are gone, and libgomp waits for them forever. There the calling
   thread runs all chunks, unless the parent had no other thread that could have been one of them. */
#include "runner/openmp.h"

#include <dirent.h>
#include <pthread.h>

#include "executor/parallel.h"

static struct {
    void (*parallel)(void (*run)(void *), void *data, unsigned threads, unsigned flags);
    int (*thread)(void);
    int (*threads)(void);
} openmp;

typedef struct {
    smelt_task task;
    void *data;
    int64_t count;
} Job;

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
openmp_init(void)
{
    if (pthread_atfork(count_threads, NULL, lose_threads) == 0) {
        return 0;
    }
    PyErr_NoMemory();
    return -1;
}

/* Chunks thread, thread + threads, …, so that any number of threads runs them all. */
static void
run_share(void *data)
{
    const Job *job = data;
    const int threads = openmp.threads();
    for (int64_t chunk = openmp.thread(); chunk < job->count; chunk += threads) {
        job->task(job->data, chunk);
    }
}

static void
run_by_openmp(int64_t threads, int64_t count, smelt_task task, void *data)
{
    Job job = {task, data, count};
    if (!is_orphan) {
        openmp.parallel(run_share, &job, (unsigned)threads, 0);
        return;
    }
    for (int64_t chunk = 0; chunk < count; chunk++) {
        task(data, chunk);
    }
}

/* parallel_for_address(parallel, thread, threads) → address of `smelt_parallel_for` */
PyObject *
parallel_for_address(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned long long parallel, thread, threads;
    if (!PyArg_ParseTuple(args, "KKK:parallel_for_address", &parallel, &thread, &threads)) {
        return NULL;
    }
    const bool has_openmp = parallel && thread && threads;
    if (has_openmp) {
        openmp.parallel = (void (*)(void (*)(void *), void *, unsigned, unsigned))(uintptr_t)parallel;
        openmp.thread = (int (*)(void))(uintptr_t)thread;
        openmp.threads = (int (*)(void))(uintptr_t)threads;
    }
    smelt_set_chunk_runner(has_openmp ? run_by_openmp : NULL);
    return PyLong_FromVoidPtr((void *)(uintptr_t)smelt_parallel_for);
}
