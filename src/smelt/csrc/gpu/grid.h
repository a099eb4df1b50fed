/* A kernel as phases of grids, launched on the host (gpu/host_grid.c) or by CUDA (gpu/cuda_grid.c). */
#ifndef SMELT_GRID_H
#define SMELT_GRID_H

#include <stdatomic.h>
#include "gpu/cuda_module.h"
#include "gpu/host_grid.h"
#include "runner/launcher.h"

/* The phases on one device. */
typedef struct CudaCode {
    struct CudaCode *next;
    const CudaDriver *driver;
    CudaContext context;
    int32_t device;
    CudaFunction functions[];
} CudaCode;

typedef struct {
    AnyLauncher any;
    int phase_count;
    GridPhase *phases;
    int64_t workspace, workspace_slot; /* bytes, or the place of their number among the sizes; -1: of none */
    int size_count;     /* sizes that a launch is given, in an array that is the last buffer; 0: there is none */
    unsigned warp;      /* threads that run as one */
    PyObject *number_bytes;
    const unsigned char *numbers; /* of each buffer: 0, or the bytes of a number that the host has; NULL: all are 0 */
    /* What a lowering does, once buffers are found to be aligned. */
    int (*launch)(AnyLauncher *self, LaunchCall *call);
    int (*finish)(AnyLauncher *self, LaunchCall *call);
    unsigned alignment;              /* of every buffer, in bytes: a power of two */
    PyObject *unaligned;             /* makes a launcher of the same kernel for buffers that are not */
    _Atomic(AnyLauncher *) fallback; /* which it was asked for */
    /* CUDA */
    PyObject *support; /* what Python does: see _native.pyi */
    int32_t device;    /* on which it is launched, whatever its buffers say; -1: on that of its first */
    _Atomic(CudaCode *) code;
    atomic_bool is_recorded; /* somebody's CUDA graph has it, for as long as he likes */
} GridLauncher;

static inline bool
is_number(const GridLauncher *self, Py_ssize_t buffer)
{
    return self->numbers && self->numbers[buffer];
}

/* How many buffers there are beside the array of sizes. */
static inline Py_ssize_t
pointer_count(const GridLauncher *self)
{
    return self->any.buffers - (self->size_count > 0);
}

static inline const int64_t *
grid_sizes(const GridLauncher *self, const LaunchCall *call)
{
    return self->size_count ? call->buffers[self->any.buffers - 1] : NULL;
}

static inline int64_t
workspace_bytes(const GridLauncher *self, const LaunchCall *call)
{
    return cuda_size(self->workspace, self->workspace_slot, grid_sizes(self, call));
}

/* Raises why a launch did not work, up to GRID_OVERRUN: `phase` of the call says where. Returns -1. With the GIL. */
static inline int
grid_raise(const LaunchCall *call)
{
    static const char *const texts[] = {
        [GRID_BLOCKS] = "phase %d: no grid has so many blocks",
        [GRID_DIVERGED] = "phase %d: some warps end while others of their block wait at a barrier",
        [GRID_STRAY_BARRIER] = "phase %d waits at a barrier, and was said to have none",
        [GRID_OVERRUN] = "phase %d writes beyond its shared memory",
    };
    if (call->fault == GRID_MEMORY) {
        PyErr_NoMemory();
    }
    else {
        PyErr_Format(call->fault == GRID_BLOCKS ? PyExc_ValueError : PyExc_RuntimeError, texts[call->fault], call->phase);
    }
    return -1;
}

#endif
