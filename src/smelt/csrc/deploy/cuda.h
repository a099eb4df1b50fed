/* A GPU through NVIDIA's driver, opened when a model asks for it. Needs no CUDA header and no library to link with. */
#ifndef SMELT_DEPLOY_CUDA_H
#define SMELT_DEPLOY_CUDA_H

#include "deploy/format/error.h"
#include "deploy/format/table.h"

#include <stdbool.h>

typedef int CudaResult; /* 0: it worked */
typedef struct CudaContextOfDriver *CudaContext;
typedef struct CudaModuleOfDriver *CudaModule;
typedef struct CudaFunctionOfDriver *CudaFunction;
typedef struct CudaStreamOfDriver *CudaStream;
typedef uint64_t CudaAddress;

/* Functions by the names that the driver's manual has, less the `cu`. */
typedef struct {
    CudaResult (*init)(unsigned flags);
    CudaResult (*error_string)(CudaResult, const char **text);
    CudaResult (*device_count)(int *count);
    CudaResult (*device_get)(int *device, int number);
    CudaResult (*device_name)(char *name, int length, int device);
    CudaResult (*device_attribute)(int *value, int attribute, int device);
    CudaResult (*retain_context)(CudaContext *, int device);
    CudaResult (*release_context)(int device);
    CudaResult (*get_context)(CudaContext *);
    CudaResult (*set_context)(CudaContext);
    CudaResult (*load)(CudaModule *, const void *image, unsigned count, int *options, void **values);
    CudaResult (*unload)(CudaModule);
    CudaResult (*get_function)(CudaFunction *, CudaModule, const char *name);
    CudaResult (*set_attribute)(CudaFunction, int attribute, int value);
    CudaResult (*allocate)(CudaAddress *, size_t size);
    CudaResult (*release)(CudaAddress);
    CudaResult (*to_device)(CudaAddress, const void *from, size_t size, CudaStream);
    CudaResult (*to_host)(void *, CudaAddress from, size_t size, CudaStream);
    CudaResult (*within_device)(CudaAddress, CudaAddress from, size_t size, CudaStream);
    CudaResult (*pointer_attribute)(void *value, int attribute, CudaAddress);
    CudaResult (*stream_create)(CudaStream *, unsigned flags);
    CudaResult (*stream_destroy)(CudaStream);
    CudaResult (*stream_wait)(CudaStream);
    CudaResult (*launch)(CudaFunction, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                         unsigned block_y, unsigned block_z, unsigned shared, CudaStream, void **parameters, void **extra);
} CudaDriver;

/* A GPU that a model runs on: its context, which is the process's own for that GPU, and the model's code and weights. */
typedef struct {
    CudaDriver driver;
    void *library;
    int device, capability; /* 90 for 9.0 */
    char name[64];
    CudaContext context;
    CudaModule module;
    CudaFunction *functions; /* of each grid of the table */
    int64_t function_count;
    CudaAddress weights;
} Cuda;

/* Opens the driver and looks at the GPU of this number; nothing is loaded there yet. */
smelt_status smelt_cuda_open(Cuda *cuda, int number, smelt_error *error);

/* Code, given as PTX that ends with a zero byte, its functions, and weights. `functions`: room for one of each grid. */
smelt_status smelt_cuda_load(Cuda *cuda, const Table *table, const char *ptx, const void *weights, int64_t bytes,
                             CudaFunction *functions, smelt_error *error);

/* Lets go of all that was opened and loaded; of nothing too. */
void smelt_cuda_close(Cuda *cuda);

/* The context of the GPU becomes this thread's; back to what it was by smelt_cuda_leave. */
smelt_status smelt_cuda_enter(const Cuda *cuda, CudaContext *before, smelt_error *error);
void smelt_cuda_leave(const Cuda *cuda, CudaContext before);

/* SMELT_OK, or what the driver says of `doing`. */
smelt_status smelt_cuda_status(const Cuda *cuda, CudaResult result, const char *doing, smelt_error *error);

/* Whether an address is memory of a GPU. */
bool smelt_cuda_is_device(const Cuda *cuda, const void *address);

/* As an allocator of sessions: `context` is the Cuda. In its context. */
void *smelt_cuda_allocate(void *context, size_t size, size_t alignment);
void smelt_cuda_release(void *context, void *memory, size_t size);

#endif
