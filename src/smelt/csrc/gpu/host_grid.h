/* Grids run by the host, one warp at a time, for machines without a GPU. */
#ifndef SMELT_HOST_GRID_H
#define SMELT_HOST_GRID_H

#include "gpu/grid.h"

/* As `launch` and `finish` of a launcher. */
int host_grid_launch(AnyLauncher *self, LaunchCall *call);
int host_grid_finish(AnyLauncher *self, LaunchCall *call);

/* simt_barrier_address() and set_simt_order(order, seed): see _native.pyi. */
PyObject *simt_barrier_address(PyObject *module, PyObject *unused);
PyObject *set_simt_order(PyObject *module, PyObject *args);

#endif
