/* Divides the points of a kernel into chunks:

     k0(buffers, threads, workspace)      smelt_parallel_for(k0.part, …)         generated: codegen/cpu/entry_points.py
       smelt_parallel_for                 how many chunks; one: run it here; more: by the process's chunk runner
         run_chunk                        points extent·chunk/chunks up to extent·(chunk + 1)/chunks → k0.part

   The chunk runner is the thread pool of a session (executor/thread_pool.c). The Python extension sets PyTorch's own
   threads instead (runner/openmp.c), so that no second pool competes with them. */
#include "executor/parallel.h"

#include "executor/thread_pool.h"

#include <stdatomic.h>

static _Atomic(smelt_chunk_runner) chunk_runner = smelt_run_by_session;

void
smelt_set_chunk_runner(smelt_chunk_runner runner)
{
    atomic_store_explicit(&chunk_runner, runner, memory_order_release);
}

typedef struct {
    smelt_part part;
    void *buffers;
    char *workspace;
    uint64_t chunks, extent, chunk_bytes;
} Task;

static void
run_chunk(void *data, int64_t number)
{
    const Task *task = data;
    const uint64_t chunk = (uint64_t)number, first = chunk * task->extent / task->chunks;
    const uint64_t last = (chunk + 1) * task->extent / task->chunks;
    smelt_commit_stack();
    char *workspace = task->workspace + chunk * task->chunk_bytes;
    task->part(task->buffers, workspace, (int64_t)first, (int64_t)last, chunk + 1 == task->chunks);
}

GENERATED_CODE int64_t
smelt_parallel_for(smelt_part part, void *buffers, char *workspace, int64_t threads, int64_t most, int64_t extent,
                   int64_t chunk_bytes)
{
    const smelt_chunk_runner runner = atomic_load_explicit(&chunk_runner, memory_order_acquire);
    const int64_t useful = threads < most ? threads : most, chunks = useful < 2 || runner == NULL ? 1 : useful;
    if (chunks == 1) {
        part(buffers, workspace, 0, extent, true);
        return 1;
    }
    Task task = {part, buffers, workspace, (uint64_t)chunks, (uint64_t)extent, (uint64_t)chunk_bytes};
    runner(threads, chunks, run_chunk, &task);
    return chunks;
}
