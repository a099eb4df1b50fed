/* GridLauncher: a kernel of grids as a Python callable. */
#ifndef SMELT_GRID_LAUNCHER_H
#define SMELT_GRID_LAUNCHER_H

#include <Python.h>

extern PyTypeObject GridLauncherType;

/* Adds the type and the functions round it to the module. 0, or -1 with an exception. */
int grid_launcher_init(PyObject *module);

#endif
