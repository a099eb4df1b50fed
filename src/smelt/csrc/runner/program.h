/* Runner: a whole program as one call, built once (runner/make.c) from a flat table (executor/table.h), run many times
   (runner/runner.c).

   A program works on values: tensors, by number. First come the inputs, then the constants, then the results of steps,
   then what the arena lends for the time of a call. All sizes, strides and offsets are in one array of numbers, which
   records refer to by position: a program with dynamic shapes has its own array in each call (runner/dynamic/sizes.c). */
#ifndef SMELT_PROGRAM_H
#define SMELT_PROGRAM_H

#include <Python.h>
#include <stdbool.h>
#include "runner/launcher.h"
#include "runner/native_call.h"
#include "executor/table.h"

/* What a Runner is given beside its table: a tuple of what the table refers to; how many threads to use; the arena; what
   Python does where the C interface does not (see _native.pyi); and callables, of which one that yields something true
   says that Python makes every call itself; what recording CUDA graphs takes of Python, or None. */
#define RUNNER_OBJECTS(F) F(objects) F(threads) F(acquire) F(release) F(allocate) F(view) F(fit) F(watchers) F(recorder)

typedef struct ProgramSizes ProgramSizes;

#define RUNNER_OBJECT(name) PyObject *name;
typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *dict;
    PyObject *table_bytes; /* the bytes that the table lies in */
    RUNNER_OBJECTS(RUNNER_OBJECT)
    Table table;
    NativeCall *natives; /* of each of the table's: how it is called */
    ProgramSizes *sizes; /* NULL: they are fixed */
    int most_buffers; /* of a kernel */
    int most_tensors; /* that a native call takes, as arguments or on its stack, or returns */
    int python_steps; /* how many Python must do */
    bool has_launches, has_native_work; /* kernels; kernels or native calls */
    bool *consumed; /* which inputs a step drops; NULL: not a consuming program */
    int64_t acquisitions; /* how often the GIL was acquired between two steps, in all calls */
    Workspace workspace;
    struct Replay *replay;     /* its CUDA graphs; NULL: it has none */
    const char *why_no_graphs; /* NULL: it has some, or nobody asked for them */
    int64_t *taken; /* nanoseconds per step, over `timed_calls` calls; NULL: nobody asks */
    int64_t timed_calls;
    PyObject *clock; /* makes the clock of a device for each call that is timed; NULL: the host's will do */
} Runner;

extern PyTypeObject RunnerType, PausedRunType;

/* `count` numbers as a tuple. */
PyObject *tuple_of(const int64_t *numbers, int64_t count);

/* What launches machine code, or NULL: Python runs this kernel. */
static inline AnyLauncher *
launcher_at(const Runner *self, const LaunchRecord *launch)
{
    PyObject *object = PyTuple_GET_ITEM(self->objects, self->table.kernels[launch->kernel].object);
    return is_launcher(object) ? (AnyLauncher *)object : NULL;
}

/* How to make a call without Python, or NULL. */
static inline const NativeCall *
native_at(const Runner *self, const CallRecord *call)
{
    return call->native >= 0 && self->natives[call->native].is_known ? &self->natives[call->native] : NULL;
}

/* free_cuda_graphs(): see _native.pyi (gpu/replay.c). */
PyObject *free_cuda_graphs(PyObject *module, PyObject *unused);

PyObject *runner_new(PyTypeObject *type, PyObject *args, PyObject *kwargs);
PyObject *runner_begin(PyObject *self, PyObject *list); /* autograd/paused_run.c */
PyObject *runner_call(PyObject *self, PyObject *const *args, size_t flagged_count, PyObject *names);

#endif
