/* Launchers: compiled kernels as Python callables. The runner calls all of them the same way (`AnyLauncher`). */
#ifndef SMELT_LAUNCHER_H
#define SMELT_LAUNCHER_H

#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include "executor/table.h"

/* Memory that is kept between calls: whoever acquires it has it alone until it is released. */
typedef struct {
    void *memory;
    size_t size;
} Workspace;

/* A CUDA graph that a program's launches are recorded in. */
typedef struct {
    struct CudaGraph *graph;
    const bool *is_outside;        /* of each value: whether it is given with a call, so that its address may change */
    const ReferenceRecord *values; /* of the launch at hand */
} GraphRecording;

/* One launch: where its buffers are, and what is lent to it. */
typedef struct {
    void **buffers;
    int64_t threads;
    Workspace *workspace; /* on the host, for this call alone */
    int32_t device;       /* the number of the GPU that its memory is on; -1: not asked, or on none */
    int32_t fault, at, phase; /* what `launch` says to `finish`: what went wrong, its number, and where */
    const GraphRecording *recording; /* what is launched becomes part of a CUDA graph; NULL: of none */
} LaunchCall;

/* What all launchers begin with. `launch` needs no GIL; where it returns something else than 0, `finish` is called with
   the GIL: it does what is left, or raises why it cannot be done, and returns 0 or -1. */
typedef struct AnyLauncher {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Py_ssize_t buffers;
    Py_ssize_t device_from; /* a call must say which GPU this buffer is on; -1: it need not */
    int (*launch)(struct AnyLauncher *self, LaunchCall *call);
    int (*finish)(struct AnyLauncher *self, LaunchCall *call);
    Workspace workspace; /* between calls; none yet, or in use: empty */
} AnyLauncher;

typedef void (*Kernel)(void **buffers, int64_t threads, void *workspace);

/* A kernel of one function for the CPU. */
typedef struct {
    AnyLauncher any;
    Kernel kernel;
    size_t fixed, per_thread;
} Launcher;

extern PyTypeObject AnyLauncherType, LauncherType;

static inline bool
is_launcher(PyObject *object)
{
    return Py_TYPE(object) == &LauncherType || PyObject_TypeCheck(object, &AnyLauncherType);
}

/* 0, or -1 with an exception. */
int launcher_init(void);

/* Where the first element of a tensor is, and the number of the GPU that it is on, -1: on none, as its methods say. 0, or
   -1 with an exception. */
int tensor_data(PyObject *tensor, void **data);
int tensor_device(PyObject *tensor, int32_t *device);

/* A number of threads, at least one; 0 with an exception. */
int64_t thread_count(PyObject *number);

/* What was kept, and what shall be: with the GIL. */
Workspace workspace_acquire(Workspace *kept);
void workspace_release(Workspace *kept, Workspace taken);

/* Makes what was taken large enough; false: there is no memory. Needs no GIL. */
bool workspace_fits(Workspace *taken, size_t size);

/* What every launcher is as a Python callable: launcher(threads, *tensors). */
PyObject *launcher_call(PyObject *self, PyObject *const *args, size_t flagged_count, PyObject *names);

#endif
