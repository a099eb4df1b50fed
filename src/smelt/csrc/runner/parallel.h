/* The function that the code of every kernel calls to share its points out between threads. */
#ifndef SMELT_PARALLEL_H
#define SMELT_PARALLEL_H

#include <Python.h>

int parallel_init(void);

PyObject *parallel_for_address(PyObject *module, PyObject *args);

#endif
