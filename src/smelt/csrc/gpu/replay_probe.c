/* Whether the GPU waits for the host: if not, a CUDA graph does not pay. Asked while the steps are launched one by one. */
#include "gpu/replay_probe.h"

#include "gpu/cuda_module.h"

enum { PROBES = 8, PROBE_LAG = 4, ENOUGH_WAITS = 2, EARLY_CALLS = 4 }; /* see replay_probe */
enum { EVENT_WITHOUT_TIME = 2 };

/* Work steps: launches and calls. */
static int64_t
count_work(const Table *table)
{
    int64_t count = 0;
    for (int64_t i = 0; i < table->counts[STEPS]; i++) {
        count += table->steps[i].kind == LAUNCH_STEP || table->steps[i].kind == CALL_STEP;
    }
    return count;
}

void
begin_probe(Replay *replay, Run *run, int32_t device, CudaStream stream)
{
    ReplayProbe *probe = &run->probe;
    CudaInside inside;
    if (replay->calls >= EARLY_CALLS && (replay->calls & (replay->calls - 1)) != 0) {
        return;
    }
    int status = 0;
    acquire_gil(run);
    const CudaDriver *driver = cuda_driver();
    const bool is_possible = driver && driver->event_create && driver->event_record && driver->event_query
                             && driver->event_destroy && driver->stream_query && smelt_graph_is_possible(driver)
                             && (stream == NULL || (driver->is_capturing(stream, &status) == 0 && status == 0))
                             && cuda_context(driver, device, &probe->context) == 0;
    PyErr_Clear();
    release_gil(run);
    if (is_possible && smelt_cuda_go_inside(&inside, driver, probe->context) == 0) {
        const int64_t work = count_work(run->table);
        if (work < PROBES * PROBE_LAG) {
            atomic_store(&replay->is_slow, driver->stream_query(stream) == 0);
        }
        else if (driver->event_create(&probe->event, EVENT_WITHOUT_TIME) == 0) {
            probe->driver = driver;
            probe->stream = stream;
            probe->every = work / PROBES;
        }
        smelt_cuda_go_outside(&inside);
    }
}

/* After a step of a long program: an event is recorded now and then, and looked at a few launches later. A GPU that waits
   for the host is past it by then; one that has enough to do is far behind. */
int
replay_probe(void *of)
{
    Run *run = of;
    ReplayProbe *probe = &run->probe;
    CudaInside inside;
    const StepRecord *step = &run->table->steps[run->step];
    if (step->kind != LAUNCH_STEP && step->kind != CALL_STEP) {
        return 0;
    }
    const int64_t place = probe->work++ % probe->every;
    if ((place == 0 || place == PROBE_LAG - 1) && smelt_cuda_go_inside(&inside, probe->driver, probe->context) == 0) {
        if (place == 0) {
            probe->driver->event_record(probe->event, probe->stream);
        }
        else {
            probe->waits += probe->driver->event_query(probe->event) == 0;
        }
        smelt_cuda_go_outside(&inside);
    }
    return 0;
}

void
replay_end_probe(Run *run)
{
    ReplayProbe *probe = &run->probe;
    CudaInside inside;
    if (smelt_cuda_go_inside(&inside, probe->driver, probe->context) == 0) {
        probe->driver->event_destroy(probe->event);
        smelt_cuda_go_outside(&inside);
    }
    if (probe->waits >= ENOUGH_WAITS) {
        atomic_store(&run->program->replay->is_slow, true);
    }
}
