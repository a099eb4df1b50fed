/* A kernel as phases of grids, launched on the host (gpu/host_grid.c) or by CUDA (gpu/cuda_grid.c). */
#ifndef SMELT_GRID_H
#define SMELT_GRID_H

#include <stdatomic.h>
#include "gpu/cuda_module.h"
#include "runner/launcher.h"

/* A number, or the place of one among the sizes that a launch is given. */
typedef struct {
    int64_t number;
    int slot; /* -1: `number` it is */
} GridSize;

static inline int64_t
grid_size(GridSize size, const int64_t *sizes)
{
    return size.slot < 0 ? size.number : sizes[size.slot];
}

typedef struct {
    void *function; /* the host's; those of GPUs are loaded device by device */
    GridSize blocks;
    unsigned threads, shared_bytes;
    bool has_barriers;
} GridPhase;

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
    GridSize workspace; /* bytes */
    int size_count;     /* sizes that a launch is given, in an array that is the last buffer; 0: there is none */
    unsigned warp;      /* threads that run as one */
    unsigned char *numbers; /* of each buffer: 0, or the bytes of a number that the host has; NULL: all are 0 */
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

/* Why a launch did not work; `phase` of the call says where. */
enum { GRID_MEMORY = 1, GRID_BLOCKS, GRID_DIVERGED, GRID_STRAY_BARRIER, GRID_OVERRUN, GRID_PYTHON, GRID_DRIVER, GRID_UNALIGNED };

static inline bool
is_number(const GridLauncher *self, Py_ssize_t buffer)
{
    return self->numbers && self->numbers[buffer];
}

static inline const int64_t *
grid_sizes(const GridLauncher *self, const LaunchCall *call)
{
    return self->size_count ? call->buffers[self->any.buffers - 1] : NULL;
}

#endif
