/* Runs a program: all its kernels and library calls in order, in one call.

   The GIL is released before the first step of a program that needs no Python, else at the first kernel or library
   call that needs none. It is acquired where Python is needed: for a call that PyTorch's C interface does not offer,
   to drop an object, to create the results. Where that interface is unknown, where a dispatch mode or the profiler is
   active, and for tensors of other classes, Python does every step but the kernels, so that observers see the same
   calls as in eager. An error inside the interface has no message: Python repeats the step and raises it. */
#include "gpu/replay.h"
#include "gpu/replay_probe.h"
#include "runner/dynamic/sizes.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { USUAL_BYTES = 4096 }; /* of what a call has on its stack: more is allocated */

/* --- steps that are timed ------------------------------------------------------------------------- */

static int64_t
nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* What a device's clock says of a call whose steps took so long by the host's. 0, or -1 with an exception. */
static int
ask_clock(PyObject *clock, int64_t *taken, int64_t count)
{
    PyObject *durations = PyObject_CallMethod(clock, "end", "(N)", tuple_of(taken, count));
    int status = durations ? 0 : -1;
    if (status == 0 && (!PyTuple_Check(durations) || PyTuple_GET_SIZE(durations) != count)) {
        PyErr_SetString(PyExc_TypeError, "end() of a clock returns a time for each step");
        status = -1;
    }
    for (int64_t i = 0; status == 0 && i < count; i++) {
        taken[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(durations, i));
        status = taken[i] == -1 && PyErr_Occurred() ? -1 : 0;
    }
    Py_XDECREF(durations);
    return status;
}

/* A look at the clock after a step. A device may have a clock of its own, as it is at work when a step has returned. */
static int
note_time(void *of)
{
    Run *run = of;
    if (run->clock) {
        acquire_gil(run);
        PyObject *result = PyObject_CallMethod(run->clock, "after", NULL);
        if (result == NULL) {
            return -1;
        }
        Py_DECREF(result);
    }
    const int64_t now = nanoseconds();
    run->taken[run->step] = now - run->since;
    run->since = now;
    return 0;
}

/* Whoever asks for times gets those of the steps from here on. 0, or -1 with an exception. */
static int
begin_timing(Run *run)
{
    Runner *program = run->program;
    if (program->taken == NULL) {
        return 0;
    }
    run->taken = calloc((size_t)run->table->counts[STEPS] + 1, sizeof *run->taken);
    if (run->taken && program->clock) {
        PyObject *make = Py_XNewRef(program->clock); /* another thread may just have ceased to ask */
        run->clock = make ? PyObject_CallNoArgs(make) : NULL;
        Py_XDECREF(make);
        return make && run->clock == NULL ? -1 : 0;
    }
    return 0;
}

/* Threads add to what the program has taken so far in turn: each notes its own times first. `status`: of the steps. */
static int
end_timing(Run *run, int status)
{
    Runner *program = run->program;
    const int64_t count = run->table->counts[STEPS];
    if (status == 0 && run->clock) {
        status = ask_clock(run->clock, run->taken, count);
    }
    if (status == 0 && run->taken && program->taken) {
        program->timed_calls++;
        for (int64_t i = 0; i < count; i++) {
            program->taken[i] += run->taken[i];
        }
    }
    Py_CLEAR(run->clock);
    free(run->taken);
    run->taken = NULL;
    return status;
}

int
run_until(Run *run, int64_t first, int64_t end)
{
    run->since = run->taken ? nanoseconds() : 0;
    return run_steps(run, first, end, run->taken ? note_time : run->probe.event ? replay_probe : NULL);
}

/* --- a call ----------------------------------------------------------------------------------- */

/* 1: nobody watches, 0: somebody does, -1 with an exception. */
static int
is_unwatched(const Runner *self)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->watchers); i++) {
        PyObject *answer = PyObject_CallNoArgs(PyTuple_GET_ITEM(self->watchers, i));
        int is_watched = answer ? PyObject_IsTrue(answer) : -1;
        Py_XDECREF(answer);
        if (is_watched) {
            return is_watched < 0 ? -1 : 0;
        }
    }
    return 1;
}

/* An input or a constant. */
static PyObject *
input_at(const Run *run, PyObject *const *inputs, int64_t place)
{
    const int64_t count = run->table->programs->inputs;
    return place < count ? inputs[place] : PyTuple_GET_ITEM(run->program->objects, place - count);
}

/* Inputs, constants and the arena as values. 0, or -1 with an exception. */
static int
begin(Run *run, PyObject *const *inputs)
{
    const Runner *program = run->program;
    const ProgramRecord *counts = run->table->programs;
    const int64_t count = counts->inputs + counts->constants;
    run->native = library.tensor != NULL;
    for (int64_t i = 0; run->native && i < count; i++) {
        run->native = library_handle(input_at(run, inputs, i)) != NULL;
    }
    if (run->native) {
        int unwatched = is_unwatched(program);
        if (unwatched < 0) {
            return -1;
        }
        run->native = unwatched;
    }
    for (int64_t i = 0; i < count; i++) {
        PyObject *object = input_at(run, inputs, i);
        bool owned = counts->consuming && i < counts->inputs;
        set_object(run, &run->values[i], owned ? Py_NewRef(object) : object, owned);
    }
    if (run->native && program->replay && replay_ask_settings(run) < 0) {
        return -1;
    }
    if (counts->arena == 0) {
        return program->sizes ? program_sizes_begin(run) : 0;
    }
    run->arena = PyObject_CallNoArgs(program->acquire);
    if (run->arena == NULL || !PyList_Check(run->arena) || PyList_GET_SIZE(run->arena) != counts->arena) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "an arena is a list with a tensor for each of its places");
        }
        Py_CLEAR(run->arena);
        return -1;
    }
    Value *lent = run->values + run->table->counts[TENSORS] - counts->arena;
    for (int64_t i = 0; i < counts->arena; i++) {
        set_object(run, &lent[i], PyList_GET_ITEM(run->arena, i), false);
    }
    return program->sizes ? program_sizes_begin(run) : 0;
}

/* Inputs that a step will drop, in a form that can be dropped without the GIL: as another tensor of the same memory, so
   that the object goes now; or not before the end, if it has other owners. With the GIL. */
static void
share_consumed(Run *run)
{
    const bool is_possible = run->program->consumed && library.rank && library.sizes && library.strides;
    for (int64_t i = 0; is_possible && i < run->table->programs->inputs; i++) {
        Value *value = &run->values[i];
        int64_t rank, *sizes, *strides;
        Handle view;
        if (!run->program->consumed[i]) {
            continue;
        }
        if (Py_REFCNT(value->object) > 1) {
            value->is_shared = true;
        }
        else if (library.rank(value->handle, &rank) == 0 && library.sizes(value->handle, &sizes) == 0
                 && library.strides(value->handle, &strides) == 0
                 && library.view(value->handle, rank, sizes, strides, 0, &view) == 0) {
            drop_value(run, value);
            *value = (Value){.handle = view, .owns_handle = true};
        }
    }
}

/* Before the first step of a program that needs no Python. 0, or -1 with an exception. */
static int
leave_python(Run *run)
{
    Runner *program = run->program;
    if (program->has_launches && ask_threads(run) < 0) {
        return -1;
    }
    if (!run->native || program->python_steps || !program->has_native_work) {
        return 0;
    }
    if (program->replay == NULL) {
        share_consumed(run);
    }
    release_gil(run);
    return 0;
}

/* No CUDA graph was launched, for which the inputs stay as they are: the steps are next. */
void
go_on_by_steps(Run *run)
{
    if (run->thread && run->program->consumed && run->program->replay) {
        come_back(run);
        share_consumed(run);
        release_gil(run);
    }
}

/* Lets the exception there is say at which step it was raised: who catches it wants to know what was done by then. */
static void
note_step(int64_t step)
{
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    PyObject *number = PyLong_FromLongLong(step);
    if (number == NULL || PyObject_SetAttrString(error, "smelt_step", number) < 0) {
        PyErr_Clear();
    }
    Py_XDECREF(number);
    PyErr_Restore(type, error, trace);
}

/* Lets go of everything, with whatever exception there is left as it is. With the GIL. */
static int
end(Run *run, int status)
{
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    for (int64_t i = 0; i < run->table->counts[TENSORS]; i++) {
        drop_value(run, &run->values[i]);
    }
    if (run->arena) {
        PyObject *released = PyObject_CallOneArg(run->program->release, run->arena);
        Py_DECREF(run->arena);
        Py_XDECREF(released);
        if (released == NULL && type == NULL) {
            return -1;
        }
    }
    PyErr_Restore(type, error, trace);
    return status;
}

int
begin_run(Run *run, PyObject *const *inputs, PyObject *list)
{
    run->workspace = workspace_acquire(&run->program->workspace);
    int status = begin(run, inputs);
    if (status == 0 && list) {
        status = PyList_SetSlice(list, 0, PyList_GET_SIZE(list), NULL); /* now the values are the only owners */
    }
    status = status < 0 ? -1 : begin_timing(run);
    return status < 0 ? -1 : leave_python(run);
}

int
end_run(Run *run, int status)
{
    come_back(run);
    status = end_timing(run, status);
    status = end(run, status);
    workspace_release(&run->program->workspace, run->workspace);
    return status;
}

/* `list`: what the inputs lie in, to be emptied; NULL: they are the caller's. */
static PyObject *
run_program(Runner *self, Run *run, PyObject *const *inputs, PyObject *list)
{
    int status = begin_run(run, inputs, list);
    int replayed = 0;
    if (status == 0 && run->taken == NULL && self->replay && run->native) {
        replayed = replay_steps(run);
        status = replayed < 0 ? -1 : 0;
    }
    if (status == 0 && !replayed) {
        go_on_by_steps(run);
        status = run_until(run, 0, self->table.counts[STEPS]);
        if (run->probe.event) {
            replay_end_probe(run);
        }
    }
    come_back(run);
    if (status < 0 && run->step >= 0) {
        note_step(run->step);
    }
    PyObject *result = status < 0 ? NULL : object_made(run, &run->table->items[run->table->programs->output], true);
    if (end_run(run, result ? 0 : -1) < 0) {
        Py_CLEAR(result);
    }
    return result;
}

size_t
bytes_of_run(const Runner *self)
{
    const size_t values = (size_t)self->table.counts[TENSORS] * sizeof(Value);
    const size_t pointers = (size_t)self->most_buffers * sizeof(void *), handles = (size_t)self->most_tensors * sizeof(Handle);
    const size_t stack = (size_t)self->most_tensors * sizeof(uint64_t);
    return values + pointers + 2 * handles + stack + program_sizes_bytes(self->sizes, &self->table);
}

Run
run_in(Runner *self, char *room)
{
    const size_t values = (size_t)self->table.counts[TENSORS] * sizeof(Value);
    Run run = {.program = self, .table = &self->table, .numbers = &self->table.numbers->number, .step = -1};
    run.values = memset(room, 0, values);
    run.pointers = (void **)(room + values);
    run.handles = (Handle *)(run.pointers + self->most_buffers);
    run.temporary = run.handles + self->most_tensors;
    run.stack = (uint64_t *)(run.temporary + self->most_tensors);
    return run;
}

PyObject *const *
inputs_of_call(Runner *self, PyObject *const *args, Py_ssize_t count, PyObject **list)
{
    const ProgramRecord *counts = self->table.programs;
    bool fits = count == (counts->consuming ? 1 : counts->inputs);
    *list = NULL;
    if (self->objects == NULL) {
        PyErr_SetString(PyExc_SystemError, "this program was freed");
        return NULL;
    }
    if (fits && counts->consuming) {
        *list = args[0];
        fits = PyList_Check(*list) && PyList_GET_SIZE(*list) == counts->inputs;
        args = fits ? ((PyListObject *)*list)->ob_item : NULL;
    }
    if (!fits) {
        const char *how = counts->consuming ? " in a list" : "";
        PyErr_Format(PyExc_TypeError, "this program takes %lld tensors%s", (long long)counts->inputs, how);
        return NULL;
    }
    return args;
}

/* The numbers of a program for all sizes, for those of its inputs. False with an exception: it is not for these. */
static bool
fill_sizes(Run *run, PyObject *const *inputs)
{
    const Runner *program = run->program;
    if (program->sizes == NULL) {
        return true;
    }
    int64_t *numbers = (int64_t *)(void *)(run->stack + program->most_tensors);
    run->numbers = numbers;
    if (!program_sizes_fill(program->sizes, &program->table, inputs, numbers)) {
        PyErr_SetString(PyExc_ValueError, "this program was not compiled for such sizes");
        return false;
    }
    return true;
}

PyObject *
runner_call(PyObject *object, PyObject *const *args, size_t flagged_count, PyObject *names)
{
    Runner *self = (Runner *)object;
    PyObject *list;
    const Py_ssize_t count = names && PyTuple_GET_SIZE(names) ? -1 : PyVectorcall_NARGS(flagged_count);
    args = inputs_of_call(self, args, count, &list);
    if (PyErr_Occurred()) {
        return NULL;
    }
    const size_t bytes = bytes_of_run(self);
    _Alignas(Value) char usual[USUAL_BYTES];
    char *room = bytes <= sizeof usual ? usual : PyMem_Malloc(bytes);
    if (room == NULL) {
        return PyErr_NoMemory();
    }
    Run run = run_in(self, room);
    PyObject *result = fill_sizes(&run, args) ? run_program(self, &run, args, list) : NULL;
    if (room != usual) {
        PyMem_Free(room);
    }
    return result;
}
