/* The function by which the code of every kernel shares its points out between threads. */
#ifndef SMELT_PARALLEL_H
#define SMELT_PARALLEL_H

#include <Python.h>

int parallel_init(void);

PyObject *parallel_for_address(PyObject *module, PyObject *args);

#endif
