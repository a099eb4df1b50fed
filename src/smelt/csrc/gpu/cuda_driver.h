/* NVIDIA's driver: libcuda opened at run time, and the functions of it that are used. Building needs no CUDA header,
   importing needs no driver. */
#ifndef SMELT_CUDA_DRIVER_H
#define SMELT_CUDA_DRIVER_H

#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

typedef int CudaResult; /* 0: it worked */
typedef struct CudaContextOfDriver *CudaContext;
typedef struct CudaModuleOfDriver *CudaHandle;
typedef struct CudaFunctionOfDriver *CudaFunction;
typedef struct CudaStreamOfDriver *CudaStream;
typedef struct CudaLinkOfDriver *CudaLink;

enum { CUDA_INVALID_VALUE = 1, CUDA_MOST_DEVICES = 128 };

/* The functions by the names that the driver's manual has, less the `cu`. The last two may be NULL. */
typedef struct {
    int version; /* 12040 for 12.4 */
    pid_t process; /* a child of fork() must not use it */
    CudaContext contexts[CUDA_MOST_DEVICES]; /* PyTorch's own, which the runtime calls primary; NULL: not asked for yet */
    CudaResult (*init)(unsigned flags);
    CudaResult (*driver_version)(int *version);
    CudaResult (*error_name)(CudaResult, const char **name);
    CudaResult (*error_string)(CudaResult, const char **text);
    CudaResult (*device_count)(int *count);
    CudaResult (*device_get)(int *device, int number);
    CudaResult (*device_name)(char *name, int length, int device);
    CudaResult (*device_attribute)(int *value, int attribute, int device);
    CudaResult (*primary_context)(CudaContext *, int device);
    CudaResult (*get_context)(CudaContext *);
    CudaResult (*set_context)(CudaContext);
    CudaResult (*load)(CudaHandle *, const void *image, unsigned count, int *options, void **values);
    CudaResult (*unload)(CudaHandle);
    CudaResult (*get_function)(CudaFunction *, CudaHandle, const char *name);
    CudaResult (*get_attribute)(int *value, int attribute, CudaFunction);
    CudaResult (*set_attribute)(CudaFunction, int attribute, int value);
    CudaResult (*occupancy)(int *blocks, CudaFunction, int threads, size_t shared);
    CudaResult (*launch)(CudaFunction, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                         unsigned block_y, unsigned block_z, unsigned shared, CudaStream, void **parameters, void **extra);
    CudaResult (*link_create)(unsigned count, int *options, void **values, CudaLink *);
    CudaResult (*link_add)(CudaLink, int kind, void *data, size_t size, const char *name, unsigned count, int *options,
                           void **values);
    CudaResult (*link_complete)(CudaLink, void **image, size_t *size);
    CudaResult (*link_destroy)(CudaLink);
    CudaResult (*capture_mode)(int *mode);
    CudaResult (*is_capturing)(CudaStream, int *status);
} CudaDriver;

extern PyTypeObject CudaModuleType;

/* 0, or -1 with an exception. */
int cuda_driver_init(PyObject *module);

/* The driver that cuda_open opened; NULL with an exception if none was. With the GIL. */
CudaDriver *cuda_driver(void);

/* The context of a device that PyTorch works in. 0, or -1 with an exception. With the GIL. */
int cuda_context(CudaDriver *driver, int device, CudaContext *context);

/* Makes a context this thread's own, and says which one it was before; back again by `cuda_leave`. Needs no GIL. */
static inline CudaResult
cuda_enter(const CudaDriver *driver, CudaContext context, CudaContext *before)
{
    CudaResult status = driver->get_context(before);
    return status || *before == context ? status : driver->set_context(context);
}

static inline void
cuda_leave(const CudaDriver *driver, CudaContext context, CudaContext before)
{
    if (before != context) {
        driver->set_context(before);
    }
}

#endif
