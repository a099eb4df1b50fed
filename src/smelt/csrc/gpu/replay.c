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
#include "gpu/replay_plan.h"
#include "gpu/replay_probe.h"

#include <stdlib.h>
#include <time.h>

enum { RAISED = -2, NO_ANSWER = 0x5E77 };
enum { MOST_FAILURES = 3, RESTLESS = 12, ALIGNED = 16, FEW_LAUNCHES = 8 };
enum { MAX_PROCESS_GRAPHS = 128 }; /* a graph of 1,000 nodes takes about a MiB of the GPU's memory */

static Replay every = {.next = &every, .previous = &every};
static int process_graphs; /* with the GIL */

Replay *
replay_new(const Runner *program, const char **why_not)
{
    const int64_t count = program->table.counts[TENSORS];
    PyObject *always = PyObject_GetAttrString(program->recorder, "always");
    PyObject *questions = always ? PyObject_GetAttrString(program->recorder, "questions") : NULL;
    *why_not = why_no_graph(program);
    const bool is_forced = always == Py_True;
    Py_XDECREF(always);
    if (questions && !PyTuple_Check(questions)) {
        PyErr_SetString(PyExc_TypeError, "questions is a tuple");
        Py_CLEAR(questions);
    }
    if (*why_not || questions == NULL) {
        Py_XDECREF(questions);
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
        Py_DECREF(questions);
        PyErr_NoMemory();
        return NULL;
    }
    replay->questions = questions;
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
    Py_XDECREF(replay->questions);
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
        if (replay->graph_count > 0) { /* a graph that did not pay is recorded again at most so many times */
            replay->failures = replay->launched - replay->launched_before < FEW_LAUNCHES ? replay->failures + 1 : 0;
            replay->launched_before = replay->launched;
        }
        while (replay->graph_count && count < MAX_PROCESS_GRAPHS) { /* threads at once may record a few more */
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
    return Py_BuildValue("{sLsLsisLsLsNszsO}", "calls", (long long)replay->calls, "launched", (long long)replay->launched,
                         "graphs", replay->graph_count, "nodes", (long long)nodes, "patched", (long long)patched,
                         "host_nanoseconds", tuple_of(replay->host_nanoseconds, HOST_PHASES), "why_not", replay->why_not, "copies",
                         replay->copies ? Py_True : Py_False);
}

/* A question's answer, as a hash. -1 with an exception. */
static Py_hash_t
ask_setting(PyObject *question)
{
    PyObject *function, *arguments;
    if (!PyArg_ParseTuple(question, "OO!", &function, &PyTuple_Type, &arguments)) {
        return -1;
    }
    PyObject *answer = PyObject_Call(function, arguments, NULL);
    if (answer == NULL && PyErr_ExceptionMatches(PyExc_RuntimeError)) {
        PyErr_Clear(); /* settings were made by PyTorch's newer functions, which are asked too */
        return NO_ANSWER;
    }
    const Py_hash_t hash = answer ? PyObject_Hash(answer) : -1;
    Py_XDECREF(answer);
    return hash;
}

int
replay_ask_settings(Run *run)
{
    PyObject *questions = run->program->replay->questions;
    uint64_t settings = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(questions); i++) {
        const Py_hash_t answer = ask_setting(PyTuple_GET_ITEM(questions, i));
        if (answer == -1) {
            return -1;
        }
        settings = (settings ^ (uint64_t)answer) * UINT64_C(0x9E3779B97F4A7C15);
        settings ^= settings >> 29;
    }
    run->settings = (int64_t)settings;
    return 0;
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

/* Moves generators of the host as the recorded calls do. 0, or -1 with an exception and the GIL. */
static int
draw_unread(Run *run)
{
    const Table *table = run->table;
    for (int64_t i = 0; i < table->counts[STEPS]; i++) {
        const StepRecord *step = &table->steps[i];
        if (step->kind == CALL_STEP && draws_unread(&table->calls[step->place])) {
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
        const bool raised = status == 0 && run_steps(run, 0, run->table->counts[STEPS], NULL) < 0;
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
    int64_t times[HOST_PHASES + 1] = {nanoseconds()};
    if (ask_host(run) < 0) {
        return -1;
    }
    const int allocated = allocate_results(replay, run);
    times[1] = nanoseconds();
    if (allocated < 0 || find_addresses(replay, run) < 0) { /* steps may need less memory at once */
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
    times[2] = nanoseconds();
    if (number >= 0 && launch_graph(replay, run, number, stream)) {
        times[3] = nanoseconds();
        for (int i = 0; i < HOST_PHASES; i++) {
            replay->host_nanoseconds[i] += times[i + 1] - times[i];
        }
        return draw_unread(run) < 0 ? -1 : 1;
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
