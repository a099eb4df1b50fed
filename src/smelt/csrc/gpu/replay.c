/* Runs programs by CUDA graphs.

   A graph is recorded from the program's own steps, on a stream beside the current one, with memory that belongs to the
   graphs of the current stream (runtime/cuda/graph_recorder.py). Nobody notices by what a call returns:

   - Results are allocated anew for each call. Kernels of ours write there, as they read inputs wherever those are. What a
     library call returned is copied there.
   - A library call has the addresses that it was recorded with. If an input, an arena or a result that it uses is elsewhere
     now, another graph is used that was recorded so, or the steps are done one by one.
   - A graph is recorded once the addresses that library calls use come back, and for a few sets of addresses. If results
     never come back to an address, library calls write beside them, and they are copied.
   - A graph is recorded where it pays: unless the recorder says "always", the GPU must have waited for the host in calls
     that were done step by step (see replay_probe), and the graph must take little memory.
   - Graphs and their memory are freed with the program, by free_cuda_graphs(), and where memory is short.
   - Graphs belong to a stream and to PyTorch's settings. A program that somebody else records, profiles or runs on another
     thread at the same time is run step by step. */
#include "gpu/replay.h"

#include "gpu/cuda_grid.h"
#include "gpu/grid_launcher.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

enum { CUDA_KIND = 1 };      /* the number of such devices in PyTorch's C interface */
enum { RAISED = -2 };
enum { FEW_BYTES = 64 << 20, LARGE_PART = 8 }; /* see has_many_copies */
enum { MOST_GRAPHS = 8, MOST_SEEN = 8, FEW_STEPS = 3, MOST_FAILURES = 3, RESTLESS = 12, ALIGNED = 16 };
enum { MAX_PROCESS_GRAPHS = 128 }; /* a graph of 1,000 nodes takes about a MiB of the GPU's memory */
enum { PROBES = 8, PROBE_LAG = 4, ENOUGH_WAITS = 2, EARLY_CALLS = 4 }; /* see replay_probe */
enum { EVENT_WITHOUT_TIME = 2 };

/* Memory that a call returns. */
typedef struct {
    int64_t value;
    int64_t bytes;
    bool is_library; /* a library call returns it */
    Value kept;      /* the memory itself, while steps are recorded that write elsewhere */
} Result;

/* A graph, and what must be as it was when it was recorded. */
typedef struct {
    CudaGraph *graph;
    PyObject *memory; /* keeps what library calls allocated while it was recorded */
    CudaStream stream;
    int64_t settings;
    int64_t used; /* in which call it was launched last */
    bool copies; /* results that library calls write are copied */
    uint64_t *addresses;
} Recorded;

struct Replay {
    Replay *next, *previous; /* of the process's, in a ring that begins with `every`; with the GIL */
    pthread_mutex_t lock;
    int64_t value_count, result_count;
    bool *is_outside; /* of each value: it is there before the first step */
    bool *is_used;    /* of each value: library calls use its address */
    bool *is_result;  /* of each value: allocated for each call, and used by library calls */
    bool *is_asked;   /* of each value: a number that the host was asked for */
    Result *results;
    uint64_t *addresses; /* of the call at hand */
    uint64_t seen[MOST_SEEN]; /* hashes of what library calls used in the last calls */
    Recorded graphs[MOST_GRAPHS];
    int graph_count;
    int failures, restless;
    bool copies;
    bool is_forced;       /* graphs are recorded whether they pay or not */
    atomic_bool is_slow;  /* the GPU waited for the host when steps were launched one by one */
    int64_t calls, launched, host_nanoseconds;
    const CudaDriver *driver; /* once one was asked for */
    const char *why_not; /* the last call was done step by step */
};

static Replay every = {.next = &every, .previous = &every};
static int process_graphs; /* with the GIL */

/* --- which programs ------------------------------------------------------------------------------------------ */

static bool
is_on_gpu(const Table *table, int64_t value)
{
    return table->devices[table->tensors[value].device].kind == CUDA_KIND;
}

/* From the first byte of a value to its last; -1 where that is not known (ir/tensorspec.py, WORKSPACE). */
static int64_t
extent(const Runner *program, int64_t value)
{
    const TensorRecord *tensor = &program->table.tensors[value];
    const int64_t *sizes = &program->table.numbers->number + tensor->numbers, *strides = sizes + tensor->rank;
    const int64_t element = (int64_t)library.element_size((int32_t)program->table.dtypes[tensor->dtype].code);
    int64_t last = 0;
    if (tensor->rank == 3 && sizes[0] == 0 && sizes[1] == 0 && sizes[2] == 0) {
        return -1;
    }
    for (int64_t i = 0; i < tensor->rank; i++) {
        if (sizes[i] <= 0) {
            return 0;
        }
        last += (sizes[i] - 1) * strides[i];
    }
    return (last + 1) * element;
}

/* Whether a call is made before a graph is launched: it asks the host for numbers, which kernels are given. */
static bool
is_host_call(const Table *table, const CallRecord *call)
{
    return strncmp(table_string(table, call->name), "smelt::philox_state", strlen("smelt::philox_state")) == 0;
}

/* Calls a function for every tensor among the items, until one returns something else than NULL: that. */
typedef const char *(*ForValue)(void *of, int64_t value);

static const char *
for_values(const Table *table, int64_t first, int64_t count, ForValue function, void *of)
{
    const char *answer = NULL;
    for (int64_t i = first; answer == NULL && i < first + count; i++) {
        const ItemRecord *item = &table->items[i];
        if (item->kind == VALUE_ITEM) {
            answer = function(of, item->what);
        }
        else if (item->kind == TUPLE_ITEM || item->kind == LIST_ITEM) {
            answer = for_values(table, item->what, item->length, function, of);
        }
    }
    return answer;
}

static const char *
why_not_argument(void *of, int64_t value)
{
    const Table *table = of;
    return is_on_gpu(table, value) ? NULL : "a library call uses tensors of the host";
}

static const char *
why_not_host_argument(void *of, int64_t value)
{
    const Table *table = of;
    const int64_t constants = table->programs->inputs + table->programs->constants;
    return value < constants ? NULL : "dropout depends on where the program has its memory";
}

static const char *
why_no_call(const Table *table, const CallRecord *call)
{
    const bool is_host = is_host_call(table, call);
    if (call->unless >= 0) {
        return "it raises by what it computes";
    }
    if (call->draws && !is_host) {
        return "a library call draws random numbers";
    }
    if (!is_host && strncmp(table_string(table, call->name), "aten::", strlen("aten::"))) {
        return "an operator that is not PyTorch's may do more than compute";
    }
    for (int64_t k = 0; !is_host && k < call->result_count; k++) {
        const int64_t value = table->references[call->results + k].number;
        if (value >= 0 && !is_on_gpu(table, value)) {
            return "a library call returns tensors of the host";
        }
    }
    return for_values(table, call->arguments, call->argument_count, is_host ? why_not_host_argument : why_not_argument,
                      (void *)(uintptr_t)table);
}

static const char *
why_no_launch(const Runner *program, const LaunchRecord *launch)
{
    const Table *table = &program->table;
    const AnyLauncher *launcher = launcher_at(program, launch);
    if (launcher == NULL || Py_TYPE(launcher) != &GridLauncherType || ((const GridLauncher *)launcher)->support == NULL) {
        return "it has kernels for the host";
    }
    const bool has_sizes = ((const GridLauncher *)launcher)->size_count > 0;
    const int64_t last = table->references[launch->values + launch->value_count - 1].number;
    return has_sizes && last < table->programs->inputs ? "its sizes come with each call" : NULL;
}

/* Why a program's steps cannot become a graph; NULL: they can. */
static const char *
why_no_graph(const Runner *program)
{
    const Table *table = &program->table;
    int64_t work = 0, device = -2;
    for (int64_t i = 0; i < table->counts[TENSORS]; i++) {
        const DeviceRecord *on = &table->devices[table->tensors[i].device];
        if (on->kind == CUDA_KIND && device != -2 && device != on->number) {
            return "it uses several GPUs";
        }
        device = on->kind == CUDA_KIND ? on->number : device;
    }
    if (device == -2 || library.element_size == NULL || library.device_index == NULL) {
        return "it uses no GPU";
    }
    for (int64_t i = 0; i < table->counts[STEPS]; i++) {
        const StepRecord *step = &table->steps[i];
        const char *why = NULL;
        work += step->kind == LAUNCH_STEP || step->kind == CALL_STEP;
        if (step->kind == ALLOCATE_STEP && !is_on_gpu(table, step->place)) {
            why = "it has tensors of the host";
        }
        if (step->kind == LAUNCH_STEP) {
            why = why_no_launch(program, &table->launches[step->place]);
        }
        if (step->kind == CALL_STEP) {
            why = why_no_call(table, &table->calls[step->place]);
        }
        if (why) {
            return why;
        }
    }
    return work < FEW_STEPS ? "it has few steps" : NULL;
}

static const char *
mark(void *of, int64_t value)
{
    ((bool *)of)[value] = true;
    return NULL;
}

/* What the table says of values. False: what a library call returns is as large as it likes. */
static bool
fill(Replay *replay, const Runner *program)
{
    const Table *table = &program->table;
    const ProgramRecord *counts = table->programs;
    const int64_t count = replay->value_count, first_arena = count - counts->arena;
    bool *leaves = replay->is_outside; /* at first */
    for_values(table, counts->output, 1, mark, leaves);
    for (int64_t i = counts->inputs + counts->constants; i < first_arena; i++) {
        if (leaves[i] && is_on_gpu(table, i)) {
            replay->results[replay->result_count++] =
                (Result){.value = i, .bytes = extent(program, i), .is_library = true};
        }
    }
    for (int64_t i = 0; i < count; i++) {
        replay->is_outside[i] = i < counts->inputs + counts->constants || i >= first_arena;
    }
    for (int64_t i = 0; i < table->counts[STEPS]; i++) {
        const StepRecord *step = &table->steps[i];
        for (int64_t k = 0; step->kind == ALLOCATE_STEP && k < replay->result_count; k++) {
            Result *result = &replay->results[k];
            result->is_library = result->is_library && result->value != step->place;
            replay->is_outside[step->place] = replay->is_outside[step->place] || result->value == step->place;
        }
        const CallRecord *call = step->kind == CALL_STEP ? &table->calls[step->place] : NULL;
        if (call) {
            for_values(table, call->arguments, call->argument_count, mark, replay->is_used);
        }
        for (int64_t k = 0; call && is_host_call(table, call) && k < call->result_count; k++) {
            const int64_t value = table->references[call->results + k].number;
            if (value >= 0) {
                replay->is_asked[value] = replay->is_outside[value] = true;
            }
        }
    }
    bool is_known = true;
    for (int64_t k = 0; k < replay->result_count; k++) {
        const Result *result = &replay->results[k];
        replay->is_result[result->value] = !result->is_library && replay->is_used[result->value];
        is_known = is_known && result->bytes >= 0;
    }
    return is_known;
}

static bool
is_much(int64_t bytes, int64_t all)
{
    return bytes > FEW_BYTES && bytes > all / LARGE_PART;
}

/* Why a graph would take much more memory than the steps one by one; NULL: it would not. It has memory for what library
   calls return, which is copied. And all results are there from the beginning, when the inputs that steps drop still are. */
static const char *
why_too_large(const Replay *replay, const Runner *program)
{
    int64_t copied = 0, returned = 0, dropped = 0;
    for (int64_t i = 0; i < replay->result_count; i++) {
        returned += replay->results[i].bytes;
        copied += replay->results[i].is_library ? replay->results[i].bytes : 0;
    }
    for (int64_t i = 0; program->consumed && i < program->table.programs->inputs; i++) {
        const int64_t bytes = program->consumed[i] && is_on_gpu(&program->table, i) ? extent(program, i) : 0;
        dropped += bytes > 0 ? bytes : 0;
    }
    const int64_t overlap = returned < dropped ? returned : dropped;
    return is_much(copied, returned)               ? "library calls return much that would be copied"
           : is_much(overlap, returned + dropped) ? "its results and the inputs that it frees would take memory together"
                                                  : NULL;
}

Replay *
replay_new(const Runner *program, const char **why_not)
{
    const int64_t count = program->table.counts[TENSORS];
    PyObject *always = PyObject_GetAttrString(program->recorder, "always");
    *why_not = why_no_graph(program);
    const bool is_forced = always == Py_True;
    Py_XDECREF(always);
    if (*why_not || always == NULL) {
        return NULL;
    }
    Replay *replay = calloc(1, sizeof *replay);
    const size_t flags = (size_t)count * sizeof(bool);
    if (replay) {
        replay->value_count = count;
        replay->is_outside = calloc(4, flags + 1);
        replay->results = calloc((size_t)count + 1, sizeof *replay->results);
        replay->addresses = calloc((size_t)count + 1, sizeof *replay->addresses);
    }
    if (replay == NULL || !replay->is_outside || !replay->results || !replay->addresses
        || pthread_mutex_init(&replay->lock, NULL)) {
        replay_free(replay);
        PyErr_NoMemory();
        return NULL;
    }
    replay->is_used = replay->is_outside + count;
    replay->is_result = replay->is_used + count;
    replay->is_asked = replay->is_result + count;
    replay->is_forced = is_forced;
    *why_not = !fill(replay, program) ? "a library call returns as much as it likes"
               : !is_forced          ? why_too_large(replay, program)
                                     : NULL;
    replay->next = &every;
    replay->previous = every.previous;
    replay->previous->next = every.previous = replay;
    if (*why_not) {
        replay_free(replay);
        return NULL;
    }
    return replay;
}

/* Frees a graph; its memory is the caller's to let go of, with the lock released. With the GIL. */
static PyObject *
forget(Replay *replay, int number)
{
    Recorded *recorded = &replay->graphs[number];
    PyObject *memory = recorded->memory;
    smelt_graph_free(recorded->graph);
    free(recorded->addresses);
    *recorded = replay->graphs[--replay->graph_count];
    process_graphs--;
    return memory;
}

void
replay_free(Replay *replay)
{
    if (replay == NULL) {
        return;
    }
    if (replay->next) {
        replay->next->previous = replay->previous;
        replay->previous->next = replay->next;
    }
    while (replay->graph_count) {
        Py_XDECREF(forget(replay, replay->graph_count - 1));
    }
    free(replay->is_outside);
    free(replay->results);
    free(replay->addresses);
    free(replay);
}

PyObject *
free_cuda_graphs(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    PyObject *memories[MAX_PROCESS_GRAPHS];
    int count = 0;
    for (Replay *replay = every.next; replay != &every; replay = replay->next) {
        if (pthread_mutex_trylock(&replay->lock)) {
            continue; /* in use */
        }
        replay->failures += replay->graph_count > 0; /* recorded again at most so many times */
        while (replay->graph_count) {
            memories[count++] = forget(replay, replay->graph_count - 1);
        }
        pthread_mutex_unlock(&replay->lock);
    }
    for (int i = 0; i < count; i++) { /* this may run Python, and so change which programs there are */
        Py_XDECREF(memories[i]);
    }
    return PyLong_FromLong(count);
}

PyObject *
replay_told(const Runner *program)
{
    const Replay *replay = program->replay;
    if (replay == NULL) {
        return Py_BuildValue("{sz}", "why_not", program->why_no_graphs);
    }
    int64_t nodes = 0, patched = 0;
    for (int i = 0; i < replay->graph_count; i++) {
        nodes += smelt_graph_node_count(replay->graphs[i].graph);
        patched += smelt_graph_patch_count(replay->graphs[i].graph);
    }
    return Py_BuildValue("{sLsLsisLsLsLszsO}", "calls", (long long)replay->calls, "launched", (long long)replay->launched,
                         "graphs", replay->graph_count, "nodes", (long long)nodes, "patched", (long long)patched,
                         "host_nanoseconds", (long long)replay->host_nanoseconds, "why_not", replay->why_not, "copies",
                         replay->copies ? Py_True : Py_False);
}

int
replay_ask_settings(Run *run)
{
    PyObject *settings = PyObject_GetAttrString(run->program->recorder, "settings");
    PyObject *answer = settings ? PyObject_CallNoArgs(settings) : NULL;
    run->settings = answer ? PyLong_AsLongLong(answer) : -1;
    Py_XDECREF(settings);
    Py_XDECREF(answer);
    return PyErr_Occurred() ? -1 : 0;
}

/* --- a call -------------------------------------------------------------------------------------------------- */

/* Whether a graph has to have been recorded with the address of a value. */
static bool
is_fixed(const Replay *replay, int64_t value, bool copies)
{
    return replay->is_outside[value] && replay->is_used[value] && !(copies && replay->is_result[value]);
}

static uint64_t
hash_of(const Replay *replay, const Run *run, CudaStream stream)
{
    uint64_t hash = (uint64_t)(uintptr_t)stream * 31 + (uint64_t)run->settings + replay->copies + 1;
    for (int64_t i = 0; i < replay->value_count; i++) {
        if (is_fixed(replay, i, replay->copies)) {
            hash = (hash ^ replay->addresses[i]) * UINT64_C(0x9E3779B97F4A7C15);
            hash ^= hash >> 29;
        }
    }
    return hash;
}

/* Whether a graph does what the call at hand is to do. */
static bool
fits(const Replay *replay, const Recorded *recorded, const Run *run, CudaStream stream)
{
    if (recorded->stream != stream || recorded->settings != run->settings) {
        return false;
    }
    for (int64_t i = 0; i < replay->value_count; i++) {
        const uint64_t moved = recorded->addresses[i] ^ replay->addresses[i];
        if (moved && replay->is_outside[i] && (is_fixed(replay, i, recorded->copies) || moved % ALIGNED)) {
            return false;
        }
    }
    return true;
}

/* Asks the host for numbers. 0, or -1 with an exception and the GIL. */
static int
ask_host(Run *run)
{
    const Table *table = run->table;
    for (int64_t i = 0; i < table->counts[STEPS]; i++) {
        const StepRecord *step = &table->steps[i];
        if (step->kind == CALL_STEP && is_host_call(table, &table->calls[step->place])) {
            run->step = i;
            if (call_operator(run, &table->calls[step->place]) < 0) {
                return -1;
            }
        }
    }
    return 0;
}

/* Allocates what the call returns. 0, or -1 with an exception and the GIL. */
static int
allocate_results(Replay *replay, Run *run)
{
    for (int64_t i = 0; i < replay->result_count; i++) {
        if (allocate_value(run, replay->results[i].value) < 0) {
            return -1;
        }
    }
    return 0;
}

/* Where everything is. 0, or -1 with an exception and the GIL. */
static int
find_addresses(Replay *replay, Run *run)
{
    for (int64_t i = 0; i < replay->value_count; i++) {
        void *data = NULL;
        if (run->values[i].handle && data_of(run, &run->values[i], &data) < 0) {
            return -1;
        }
        replay->addresses[i] = (uintptr_t)data;
    }
    return 0;
}

/* What is made while steps are recorded, gone; what library calls write is copied to what the call returns. */
static CudaResult
finish_values(Replay *replay, Run *run, CudaGraph *graph)
{
    CudaResult status = 0;
    for (int64_t i = 0; i < replay->result_count; i++) {
        Result *result = &replay->results[i];
        Value *value = &run->values[result->value];
        void *from, *to;
        if (result->kept.handle == NULL) {
            continue;
        }
        if (status == 0 && graph && result->bytes) {
            int32_t device;
            bool failed = value->handle == NULL || library.data_ptr(value->handle, &from) || library.data_ptr(result->kept.handle, &to)
                          || library.device_index(value->handle, &device) || device < 0;
            status = failed ? CUDA_INVALID_VALUE : smelt_graph_add_copy(graph, result->value, to, from, result->bytes);
        }
        drop_value(run, value);
        *value = result->kept;
        result->kept = (Value){.handle = NULL};
    }
    const int64_t first = run->table->programs->inputs + run->table->programs->constants;
    for (int64_t i = first; graph && i < replay->value_count; i++) {
        bool stays = replay->is_outside[i];
        for (int64_t k = 0; !stays && k < replay->result_count; k++) {
            stays = replay->results[k].value == i;
        }
        if (!stays) {
            drop_value(run, &run->values[i]);
        }
    }
    return status;
}

/* Records the steps on a stream. 0: there is a graph. Otherwise nothing was done, and there may be an exception. With the
   GIL at the end as at the beginning. */
static int
record_on(Replay *replay, Run *run, const CudaDriver *driver, CudaContext context, CudaStream stream, Recorded *recorded)
{
    CudaGraph *graph = NULL;
    GraphRecording recording = {.is_outside = replay->is_outside};
    CudaContext before;
    bool *kept = NULL;
    for (int64_t i = 0; i < replay->result_count; i++) {
        Result *result = &replay->results[i];
        if (result->is_library || (replay->copies && replay->is_result[result->value])) {
            result->kept = run->values[result->value];
            run->values[result->value] = (Value){.handle = NULL};
        }
    }
    if (replay->copies) { /* kernels write beside the results that are copied, too */
        kept = malloc((size_t)replay->value_count + 1);
        for (int64_t i = 0; kept && i < replay->value_count; i++) {
            kept[i] = replay->is_outside[i] && !replay->is_result[i];
        }
        recording.is_outside = kept ? kept : replay->is_outside;
    }
    CudaResult status = replay->copies && kept == NULL ? CUDA_OUT_OF_MEMORY : cuda_enter(driver, context, &before);
    if (status == 0) {
        status = smelt_graph_begin(&graph, driver, context, stream);
        recording.graph = graph;
        run->recording = &recording;
        release_gil(run);
        const bool raised = status == 0 && run_steps(run, NULL) < 0;
        status = status || raised ? CUDA_INVALID_VALUE : 0;
        run->recording = NULL;
        const CudaResult finished = finish_values(replay, run, status ? NULL : graph);
        status = status ? status : finished;
        status = status ? status : smelt_graph_end(graph);
        if (status) {
            smelt_graph_free(graph);
            graph = NULL;
        }
        cuda_leave(driver, context, before);
        acquire_gil(run);
    }
    else {
        finish_values(replay, run, NULL);
    }
    free(kept);
    recorded->graph = graph;
    return status ? -1 : 0;
}

/* Everything that is no input and nobody's but the call's, gone: steps that were recorded half may have left it. */
static void
drop_rest(Replay *replay, Run *run)
{
    const int64_t first = run->table->programs->inputs + run->table->programs->constants;
    for (int64_t i = first; i < replay->value_count - run->table->programs->arena; i++) {
        if (!replay->is_asked[i]) {
            drop_value(run, &run->values[i]);
        }
    }
}

/* Records a graph for the addresses of the call at hand. 1: it is there, and the call's results as well; 0: it is not; -1
   with an exception that has nothing to do with it, and the GIL. */
static int
record(Replay *replay, Run *run, int32_t device, CudaStream stream)
{
    Recorded recorded = {.stream = stream, .settings = run->settings, .copies = replay->copies};
    const size_t bytes = ((size_t)replay->value_count + 1) * sizeof *recorded.addresses;
    CudaContext context;
    bool is_made = false;
    acquire_gil(run);
    const CudaDriver *driver = cuda_driver();
    PyObject *side = driver && smelt_graph_is_possible(driver) && cuda_context(driver, device, &context) == 0
                         ? PyObject_CallMethod(run->program->recorder, "begin", "i", (int)device)
                         : NULL;
    const bool is_busy = side == Py_None; /* another thread records, or the caller does */
    PyObject *number = side && !is_busy ? PyObject_GetAttrString(side, "stream") : NULL;
    recorded.memory = number ? PyObject_GetAttrString(side, "memory") : NULL;
    recorded.addresses = malloc(bytes);
    if (recorded.memory && recorded.addresses) {
        memcpy(recorded.addresses, replay->addresses, bytes);
        CudaStream on = PyLong_AsVoidPtr(number);
        is_made = on && record_on(replay, run, driver, context, on, &recorded) == 0;
    }
    PyObject *type = NULL, *error = NULL, *trace = NULL;
    if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_Clear();
    }
    PyErr_Fetch(&type, &error, &trace); /* somebody interrupts */
    Py_XDECREF(number);
    PyObject *ended = number ? PyObject_CallMethod(side, "end", NULL) : NULL;
    PyErr_Clear();
    Py_XDECREF(ended);
    Py_XDECREF(side);
    replay->driver = driver;
    if (is_made) {
        replay->graphs[replay->graph_count++] = recorded;
        process_graphs++;
    }
    else {
        free(recorded.addresses);
        Py_CLEAR(recorded.memory);
        drop_rest(replay, run);
        replay->failures += !is_busy;
    }
    if (type) {
        PyErr_Restore(type, error, trace);
        return -1;
    }
    return is_made;
}

/* Whether the addresses that library calls use were seen a short while ago; if not, they are noted. */
static bool
comes_back(Replay *replay, uint64_t hash)
{
    for (int i = 0; i < MOST_SEEN; i++) {
        if (replay->seen[i] == hash) {
            return true;
        }
    }
    memmove(replay->seen + 1, replay->seen, sizeof replay->seen - sizeof *replay->seen);
    replay->seen[0] = hash;
    return false;
}

static bool
launch_graph(Replay *replay, Run *run, int number, CudaStream stream)
{
    Recorded *recorded = &replay->graphs[number];
    if (smelt_graph_launch(recorded->graph, stream, replay->addresses)) {
        acquire_gil(run);
        Py_XDECREF(forget(replay, number));
        replay->failures++;
        replay->why_not = "the driver refused to launch its graph";
        return false;
    }
    replay->launched++;
    recorded->used = replay->calls;
    replay->restless = 0;
    return true;
}

/* Frees the graph that was launched longest ago, if there are too many. -1: they are all other programs'. */
static int
make_room(Replay *replay, Run *run)
{
    int oldest = 0;
    acquire_gil(run);
    if (replay->graph_count < MOST_GRAPHS && process_graphs < MAX_PROCESS_GRAPHS) {
        return 0;
    }
    for (int i = 1; i < replay->graph_count; i++) {
        oldest = replay->graphs[i].used < replay->graphs[oldest].used ? i : oldest;
    }
    if (replay->graph_count == 0) {
        return -1;
    }
    Py_XDECREF(forget(replay, oldest));
    return 0;
}

/* The graph for the call at hand, recorded now if it is worth it; -1: none; RAISED: there is an exception. */
static int
find_graph(Replay *replay, Run *run, int32_t device, CudaStream stream)
{
    for (int i = 0; i < replay->graph_count; i++) {
        if (fits(replay, &replay->graphs[i], run, stream)) {
            return i;
        }
    }
    if (!comes_back(replay, hash_of(replay, run, stream))) {
        replay->why_not = "library calls use other memory than before";
        replay->restless++;
        if (replay->restless >= RESTLESS && !replay->copies) {
            replay->copies = true;
            replay->restless = 0;
        }
        return -1;
    }
    if (make_room(replay, run) < 0) {
        replay->why_not = "other programs have as many graphs as there may be";
        return -1;
    }
    const int status = record(replay, run, device, stream);
    if (status <= 0) {
        replay->why_not = "its steps could not be recorded";
        return status < 0 ? RAISED : -1;
    }
    return replay->graph_count - 1;
}

/* --- whether the GPU waits for the host ----------------------------------------------------------------------- */

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

/* Finds out whether the GPU waits for the host, in the first calls and then ever more rarely. A short program: whether it
   has nothing to do when the call begins. A long one: see replay_probe. */
static void
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

static int64_t
nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int
try_graph(Replay *replay, Run *run)
{
    int32_t device = -1;
    CudaStream stream;
    for (int64_t i = 0; device < 0 && i < replay->value_count; i++) {
        if (run->values[i].handle && is_on_gpu(run->table, i) && device_of(run, &run->values[i], &device) < 0) {
            return -1;
        }
    }
    replay->calls++;
    if (replay->calls == 1 || device < 0 || replay->failures >= MOST_FAILURES || cuda_current_stream(device, &stream)) {
        replay->why_not = replay->calls == 1 ? "it was the first call" : "its steps could not be recorded";
        return 0;
    }
    int status = 0;
    if (replay->driver && stream && (replay->driver->is_capturing(stream, &status) || status)) {
        replay->why_not = "somebody else records";
        return 0;
    }
    if (!replay->is_forced && !atomic_load(&replay->is_slow)) {
        begin_probe(replay, run, device, stream);
        replay->why_not = "the GPU does not wait for the host";
        return 0;
    }
    const int64_t begin = nanoseconds();
    if (ask_host(run) < 0) {
        return -1;
    }
    if (allocate_results(replay, run) < 0 || find_addresses(replay, run) < 0) { /* steps may need less memory at once */
        PyErr_Clear();
        drop_rest(replay, run);
        release_gil(run);
        replay->why_not = "there is no memory for all results at once";
        return 0;
    }
    const int number = find_graph(replay, run, device, stream);
    if (number == RAISED) {
        return -1;
    }
    release_gil(run); /* a launch may wait until earlier ones are done, and they for other threads */
    if (number >= 0 && launch_graph(replay, run, number, stream)) {
        replay->host_nanoseconds += nanoseconds() - begin;
        return 1;
    }
    for (int64_t i = 0; i < replay->result_count; i++) {
        if (replay->results[i].is_library) {
            drop_value(run, &run->values[replay->results[i].value]);
        }
    }
    return 0;
}

int
replay_steps(Run *run)
{
    Replay *replay = run->program->replay;
    if (pthread_mutex_trylock(&replay->lock)) {
        return 0;
    }
    const int status = try_graph(replay, run);
    pthread_mutex_unlock(&replay->lock);
    return status;
}
