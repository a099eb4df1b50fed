/* leave_accelerator(): see _native.pyi. */
#ifndef SMELT_ACCELERATOR_H
#define SMELT_ACCELERATOR_H

#include <Python.h>
#include <stdbool.h>

PyObject *leave_accelerator(PyObject *module, PyObject *unused);

#endif
