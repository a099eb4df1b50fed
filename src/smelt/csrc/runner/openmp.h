/* The threads of PyTorch's OpenMP library, which run the chunks of kernels in Python's process. */
#ifndef SMELT_OPENMP_H
#define SMELT_OPENMP_H

#include <Python.h>

int openmp_init(void);

PyObject *parallel_for_address(PyObject *module, PyObject *args);

#endif
