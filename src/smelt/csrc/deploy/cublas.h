/* NVIDIA's cuBLASLt, opened at run time where it is installed: it computes products of matrices faster than the file's own
   code. Building needs no CUDA header; without the library, or where it refuses a product, the grids of the file run. */
#ifndef SMELT_DEPLOY_CUBLAS_H
#define SMELT_DEPLOY_CUBLAS_H

#include "executor/cuda_driver.h"

typedef int CublasResult; /* 0: it worked */
typedef struct CublasHandleOfLibrary *CublasHandle;
typedef struct CublasMatmulOfLibrary *CublasMatmul;
typedef struct CublasLayoutOfLibrary *CublasLayout;
typedef struct CublasPreferenceOfLibrary *CublasPreference;
typedef struct { uint64_t words[8]; } CublasAlgorithm;
typedef struct {
    CublasAlgorithm algorithm;
    size_t workspace;
    CublasResult state;
    float waves;
    int reserved[4];
} CublasChoice;

/* F(name behind "cublasLt", field, parameters) */
#define CUBLAS_FUNCTIONS(F)                                                                                            \
    F(Create, create, (CublasHandle *))                                                                                \
    F(Destroy, destroy, (CublasHandle))                                                                                \
    F(MatmulDescCreate, matmul_create, (CublasMatmul *, int compute, int scale))                                       \
    F(MatmulDescSetAttribute, matmul_set, (CublasMatmul, int attribute, const void *value, size_t))                    \
    F(MatmulDescDestroy, matmul_destroy, (CublasMatmul))                                                               \
    F(MatrixLayoutCreate, layout_create, (CublasLayout *, int dtype, uint64_t rows, uint64_t cols, int64_t line))      \
    F(MatrixLayoutSetAttribute, layout_set, (CublasLayout, int attribute, const void *value, size_t))                  \
    F(MatrixLayoutDestroy, layout_destroy, (CublasLayout))                                                             \
    F(MatmulPreferenceCreate, preference_create, (CublasPreference *))                                                 \
    F(MatmulPreferenceSetAttribute, preference_set, (CublasPreference, int attribute, const void *value, size_t))      \
    F(MatmulPreferenceDestroy, preference_destroy, (CublasPreference))                                                 \
    F(MatmulAlgoGetHeuristic, choose,                                                                                  \
      (CublasHandle, CublasMatmul, CublasLayout a, CublasLayout b, CublasLayout c, CublasLayout d, CublasPreference,   \
       int most, CublasChoice *, int *count))                                                                          \
    F(Matmul, multiply,                                                                                                \
      (CublasHandle, CublasMatmul, const void *alpha, const void *a, CublasLayout, const void *b, CublasLayout,        \
       const void *beta, const void *c, CublasLayout, void *d, CublasLayout, const CublasAlgorithm *, void *workspace, \
       size_t workspace_bytes, CudaStream))

#define CUBLAS_FIELD(name, field, parameters) CublasResult(*field) parameters;
typedef struct {
    void *library;
    CublasHandle handle; /* NULL: there is no library */
    CUBLAS_FUNCTIONS(CUBLAS_FIELD)
} Cublas;

/* In the context of the GPU. That there is no library is no error. */
void smelt_cublas_open(Cublas *cublas);
void smelt_cublas_close(Cublas *cublas);

/* What a product is at a launch. */
typedef struct {
    int64_t rows, cols, terms, batch, outer;
    struct { int64_t row, col, batch, outer; } strides[3];
    int64_t alignments[4]; /* of addresses, in bytes */
} ProductNumbers;

/* How the library computes one product: of as many of the last ones as there are WAYS for each in the table. */
typedef struct {
    ProductNumbers numbers; /* no rows: nothing is planned here */
    CublasMatmul matmul;    /* NULL: the library does not have it */
    CublasLayout a, b, c;
    CublasAlgorithm algorithm;
    size_t workspace;
    bool swapped; /* the library has columns first: it computes the transposed product */
} ProductPlan;

enum { PRODUCT_WAYS = 4, PRODUCT_WORKSPACE_BYTES = 32 << 20 };

/* A session's plans, and the workspace that its stream uses. */
typedef struct {
    ProductPlan (*plans)[PRODUCT_WAYS]; /* of each product of the table */
    unsigned char *next;                /* the way that is planned anew next */
    CudaAddress workspace;              /* 0: not allocated, or out of memory */
} ProductPlans;

void smelt_cublas_drop_plans(const Cublas *cublas, const CudaDriver *driver, ProductPlans *plans, int64_t count);

/* What a kernel is launched with. */
typedef struct {
    void *const *buffers;
    int64_t count;
    void *workspace;
    const int64_t *sizes;
    CudaStream stream;
} ProductLaunch;

/* Computes a product of the table. False: the library did not, and nothing is lost. */
bool smelt_cublas_multiply(const Cublas *cublas, const CudaDriver *driver, ProductPlans *plans, const Table *table,
                           int64_t product, const ProductLaunch *launch);

#endif
