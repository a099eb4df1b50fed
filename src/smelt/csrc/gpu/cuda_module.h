/* The CUDA driver as Python sees it: functions, errors as exceptions, and modules as objects. */
#ifndef SMELT_CUDA_MODULE_H
#define SMELT_CUDA_MODULE_H

#include <Python.h>

#include "executor/cuda_driver.h"

enum { CUDA_MOST_DEVICES = 128 };

/* 0, or -1 with an exception. */
int cuda_module_init(PyObject *module);

/* The driver that cuda_open opened; NULL with an exception if none was. With the GIL. */
const CudaDriver *cuda_driver(void);

/* The context of a device that PyTorch works in. 0, or -1 with an exception. With the GIL. */
int cuda_context(const CudaDriver *driver, int device, CudaContext *context);

#endif
