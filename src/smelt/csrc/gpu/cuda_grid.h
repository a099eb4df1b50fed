/* Launches grids on a GPU, on PyTorch's current stream, with memory of PyTorch's allocator. */
#ifndef SMELT_CUDA_GRID_H
#define SMELT_CUDA_GRID_H

#include "executor/cuda_graph.h"
#include "gpu/grid.h"

/* The current stream of a device, as PyTorch says without Python. 0: it does. */
int cuda_current_stream(int32_t device, CudaStream *stream);

/* As `launch` and `finish` of a launcher. */
int cuda_grid_launch(AnyLauncher *self, LaunchCall *call);
int cuda_grid_finish(AnyLauncher *self, LaunchCall *call);

/* Frees what a launcher holds: the functions stay loaded if a CUDA graph recorded them. With the GIL. */
void cuda_grid_free(GridLauncher *self);

/* set_cuda_library(functions): see _native.pyi. */
PyObject *set_cuda_library(PyObject *module, PyObject *functions);

#endif
