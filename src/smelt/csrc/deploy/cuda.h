/* A GPU that a model runs on, through NVIDIA's driver, opened when a model asks for it. */
#ifndef SMELT_DEPLOY_CUDA_H
#define SMELT_DEPLOY_CUDA_H

#include "deploy/cublas.h"
#include "executor/error.h"
#include "executor/table.h"
#include "executor/cuda_driver.h"

/* A GPU that a model runs on, in the process's own context for that GPU, and the model's weights there. */
typedef struct {
    CudaDriver driver;
    int device, capability; /* 90 for 9.0 */
    char name[64];
    CudaContext context;
    CudaAddress weights;
    Cublas cublas;
} Cuda;

/* Opens the driver and looks at the GPU of this number; nothing is loaded there yet. */
smelt_status smelt_cuda_open(Cuda *cuda, int number, smelt_error *error);

/* The context and the weights. `multiplies`: products are computed by a library that is installed. */
smelt_status smelt_cuda_load_weights(Cuda *cuda, const void *weights, int64_t bytes, bool multiplies, smelt_error *error);

/* Code, given as PTX that ends with a zero byte, and its functions. `functions`: room for one of each grid. */
smelt_status smelt_cuda_load_code(const Cuda *cuda, CudaModule *module, const Table *table, const char *ptx,
                                  CudaFunction *functions, smelt_error *error);

/* Lets go of all that was opened and loaded; of nothing too. */
void smelt_cuda_close(Cuda *cuda);

/* SMELT_OK, or what the driver says of `doing`. */
smelt_status smelt_cuda_status(const Cuda *cuda, CudaResult result, const char *doing, smelt_error *error);

#endif
