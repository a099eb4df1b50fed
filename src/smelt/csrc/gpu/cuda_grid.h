/* Launches grids on a GPU, on PyTorch's current stream, with memory of PyTorch's allocator. */
#ifndef SMELT_CUDA_GRID_H
#define SMELT_CUDA_GRID_H

#include "gpu/grid.h"

/* As `launch` and `finish` of a launcher. */
int cuda_grid_launch(AnyLauncher *self, LaunchCall *call);
int cuda_grid_finish(AnyLauncher *self, LaunchCall *call);

/* Frees what a launcher holds: the functions stay loaded if a CUDA graph recorded them. With the GIL. */
void cuda_grid_free(GridLauncher *self);

/* set_cuda_library(functions): see _native.pyi. */
PyObject *set_cuda_library(PyObject *module, PyObject *functions);

#endif
