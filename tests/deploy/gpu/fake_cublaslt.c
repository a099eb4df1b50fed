/* A cuBLASLt for machines without one, beside the driver of tests/runtime/cuda/fake_cuda.c: matrices are multiplied on the
   host when somebody waits for the stream. It is as strict as the real one about what it is given.

   SMELT_FAKE_LIBRARY         "empty": no algorithm is found; "refuses": products are not supported; "broken": no handle is
                              made
   SMELT_FAKE_LIBRARY_REPORT  where counts are written at the end */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK, NOT_INITIALIZED = 1, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };
enum { R_32F = 0, R_64F = 1, R_16F = 2, R_16BF = 14, COMPUTE_32F = 68, COMPUTE_64F = 70, MOST_WORKSPACE = 32 << 20 };

typedef struct { int compute, scale, transposed[2]; uint32_t epilogue; const void *bias; } Matmul;
typedef struct { int dtype; uint64_t rows, cols; int64_t line, stride; int32_t batch; } Layout;
typedef struct { uint64_t workspace; uint32_t alignments[4], reductions; } Preference;
typedef struct { uint64_t words[8]; } Algorithm;
typedef struct { Algorithm algorithm; size_t workspace; int state; float waves; int reserved[4]; } Choice;
typedef struct { Matmul matmul; Layout a, b, d; const void *at[2]; void *to; } Work;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int products, choices, living, biases;

static bool
is_told(const char *what)
{
    const char *told = getenv("SMELT_FAKE_LIBRARY");
    return told && strcmp(told, what) == 0;
}

static void
report(void)
{
    FILE *file = fopen(getenv("SMELT_FAKE_LIBRARY_REPORT"), "w");
    if (file) {
        fprintf(file, "{\"products\": %d, \"choices\": %d, \"left\": %d, \"biases\": %d}\n", products, choices, living, biases);
        fclose(file);
    }
}

static void *
make(size_t size)
{
    pthread_mutex_lock(&lock);
    living++;
    pthread_mutex_unlock(&lock);
    return calloc(1, size);
}

static int
drop(void *made)
{
    pthread_mutex_lock(&lock);
    living--;
    pthread_mutex_unlock(&lock);
    free(made);
    return OK;
}

int
cublasLtCreate(void **handle)
{
    if (is_told("broken")) {
        return NOT_INITIALIZED;
    }
    static bool is_held;
    if (!is_held && getenv("SMELT_FAKE_LIBRARY_REPORT")) {
        dlopen("libcublasLt.so.12", RTLD_NOW); /* held for good: what is left is counted when the process ends */
        atexit(report);
    }
    is_held = true;
    *handle = make(1);
    return OK;
}

int cublasLtDestroy(void *handle) { return drop(handle); }
int cublasLtMatmulDescDestroy(void *made) { return drop(made); }
int cublasLtMatrixLayoutDestroy(void *made) { return drop(made); }
int cublasLtMatmulPreferenceDestroy(void *made) { return drop(made); }

int
cublasLtMatmulDescCreate(Matmul **made, int compute, int scale)
{
    *made = make(sizeof **made);
    **made = (Matmul){.compute = compute, .scale = scale, .epilogue = 1};
    return OK;
}

int
cublasLtMatmulDescSetAttribute(Matmul *matmul, int attribute, const void *value, size_t size)
{
    if (attribute == 3 || attribute == 4) {
        memcpy(&matmul->transposed[attribute - 3], value, 4);
        return size == 4 ? OK : INVALID_VALUE;
    }
    if (attribute == 7) {
        memcpy(&matmul->epilogue, value, 4);
        return size == 4 ? OK : INVALID_VALUE;
    }
    memcpy(&matmul->bias, value, sizeof matmul->bias);
    return attribute == 8 && size == sizeof matmul->bias ? OK : INVALID_VALUE;
}

int
cublasLtMatrixLayoutCreate(Layout **made, int dtype, uint64_t rows, uint64_t cols, int64_t line)
{
    *made = make(sizeof **made);
    **made = (Layout){dtype, rows, cols, line, 0, 1};
    return rows && cols && line >= (int64_t)rows ? OK : INVALID_VALUE;
}

int
cublasLtMatrixLayoutSetAttribute(Layout *layout, int attribute, const void *value, size_t size)
{
    memcpy(attribute == 5 ? (void *)&layout->batch : (void *)&layout->stride, value, size);
    return (attribute == 5 && size == 4) || (attribute == 6 && size == 8) ? OK : INVALID_VALUE;
}

int
cublasLtMatmulPreferenceCreate(Preference **made)
{
    *made = make(sizeof **made);
    **made = (Preference){0, {256, 256, 256, 256}, 7};
    return OK;
}

int
cublasLtMatmulPreferenceSetAttribute(Preference *preference, int attribute, const void *value, size_t size)
{
    if (attribute == 1) {
        memcpy(&preference->workspace, value, 8);
        return size == 8 ? OK : INVALID_VALUE;
    }
    if (attribute == 3) {
        memcpy(&preference->reductions, value, 4);
        return size == 4 ? OK : INVALID_VALUE;
    }
    if (attribute < 5 || attribute > 8 || size != 4) {
        return INVALID_VALUE;
    }
    memcpy(&preference->alignments[attribute - 5], value, 4);
    return OK;
}

/* --- products --------------------------------------------------------------------------------------------------- */

static bool
is_right(const Matmul *matmul, const Layout *a, const Layout *b, const Layout *d)
{
    const bool across = matmul->transposed[0], down = matmul->transposed[1], is_double = a->dtype == R_64F;
    const uint64_t rows = across ? a->cols : a->rows, terms = across ? a->rows : a->cols;
    const uint64_t cols = down ? b->rows : b->cols, also = down ? b->cols : b->rows;
    const bool dtypes = a->dtype == b->dtype && (d->dtype == a->dtype || (d->dtype == R_32F && !is_double));
    const bool computes = matmul->compute == (is_double ? COMPUTE_64F : COMPUTE_32F) && matmul->scale == (is_double ? R_64F : R_32F);
    return dtypes && computes && terms == also && d->rows == rows && d->cols == cols && a->batch == b->batch
           && a->batch == d->batch && (matmul->epilogue == 1 || (matmul->epilogue == 4 && !is_double && d->dtype == a->dtype));
}

int
cublasLtMatmulAlgoGetHeuristic(void *handle, Matmul *matmul, Layout *a, Layout *b, Layout *c, Layout *d,
                               Preference *preference, int wanted, Choice *choice, int *count)
{
    pthread_mutex_lock(&lock);
    choices++;
    pthread_mutex_unlock(&lock);
    *count = 0;
    if (handle == NULL || wanted != 1 || c != d || preference->reductions != 2 || !is_right(matmul, a, b, d)) {
        return INVALID_VALUE;
    }
    if (is_told("empty")) {
        return NOT_SUPPORTED;
    }
    *choice = (Choice){.workspace = preference->workspace < 256 ? 0 : 256};
    for (int i = 0; i < 4; i++) {
        choice->algorithm.words[i] = preference->alignments[i];
    }
    *count = 1;
    return OK;
}

static double
element(const void *at, int dtype, int64_t place)
{
    uint32_t bits;
    float value;
    switch (dtype) {
    case R_64F: return ((const double *)at)[place];
    case R_32F: return ((const float *)at)[place];
    case R_16F: return (double)((const _Float16 *)at)[place];
    }
    bits = (uint32_t)((const uint16_t *)at)[place] << 16;
    memcpy(&value, &bits, 4);
    return value;
}

static void
set_element(void *at, int dtype, int64_t place, double value)
{
    const float narrow = (float)value;
    uint32_t bits;
    memcpy(&bits, &narrow, 4);
    switch (dtype) {
    case R_64F: ((double *)at)[place] = value; return;
    case R_32F: ((float *)at)[place] = narrow; return;
    case R_16F: ((_Float16 *)at)[place] = (_Float16)narrow; return;
    }
    ((uint16_t *)at)[place] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static void
multiply(void *data)
{
    Work *work = data;
    const Layout *a = &work->a, *b = &work->b, *d = &work->d;
    const int64_t terms = (int64_t)(work->matmul.transposed[0] ? a->rows : a->cols);
    const int64_t down_a = work->matmul.transposed[0] ? a->line : 1, across_a = work->matmul.transposed[0] ? 1 : a->line;
    const int64_t down_b = work->matmul.transposed[1] ? b->line : 1, across_b = work->matmul.transposed[1] ? 1 : b->line;
    for (int64_t n = 0; n < d->batch; n++) {
        for (int64_t j = 0; j < (int64_t)d->cols; j++) {
            for (int64_t i = 0; i < (int64_t)d->rows; i++) {
                double sum = work->matmul.epilogue == 4 ? element(work->matmul.bias, d->dtype, i) : 0;
                for (int64_t k = 0; k < terms; k++) {
                    sum += element(work->at[0], a->dtype, n * a->stride + i * down_a + k * across_a)
                           * element(work->at[1], b->dtype, n * b->stride + k * down_b + j * across_b);
                }
                set_element(work->to, d->dtype, n * d->stride + i + j * d->line, sum);
            }
        }
    }
    free(work);
}

int
cublasLtMatmul(void *handle, Matmul *matmul, const void *alpha, const void *a, Layout *of_a, const void *b, Layout *of_b,
               const void *beta, const void *c, Layout *of_c, void *d, Layout *of_d, const Algorithm *algorithm,
               void *workspace, size_t bytes, void *stream)
{
    const void *const given[] = {a, b, c, d};
    const bool is_double = of_a->dtype == R_64F;
    const double one = is_double ? *(const double *)alpha : *(const float *)alpha;
    const double zero = is_double ? *(const double *)beta : *(const float *)beta;
    void (*enqueue)(void *, void (*)(void *), void *);
    for (int i = 0; i < 4; i++) {
        if ((uintptr_t)given[i] % algorithm->words[i]) {
            return INVALID_VALUE;
        }
    }
    if (handle == NULL || one != 1 || zero != 0 || c != d || of_c != of_d || (bytes && workspace == NULL)
        || bytes > MOST_WORKSPACE || !is_right(matmul, of_a, of_b, of_d) || (matmul->epilogue == 4 && !matmul->bias)) {
        return INVALID_VALUE;
    }
    if (is_told("refuses")) {
        return NOT_SUPPORTED;
    }
    void *function = dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), "fake_enqueue_call");
    memcpy(&enqueue, &function, sizeof function);
    Work *work = malloc(sizeof *work);
    *work = (Work){*matmul, *of_a, *of_b, *of_d, {a, b}, d};
    enqueue(stream, multiply, work);
    pthread_mutex_lock(&lock);
    products++;
    biases += matmul->epilogue == 4;
    pthread_mutex_unlock(&lock);
    return OK;
}
