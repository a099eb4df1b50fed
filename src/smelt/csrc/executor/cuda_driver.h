/* NVIDIA's driver: libcuda opened at run time, and the functions of it that are used. Building needs no CUDA header,
   and starting needs no driver. Nothing here needs Python. */
#ifndef SMELT_EXECUTOR_CUDA_DRIVER_H
#define SMELT_EXECUTOR_CUDA_DRIVER_H

#include "executor/table.h"

#include <stddef.h>
#include <sys/types.h>

typedef int CudaResult; /* 0: it worked */
typedef uint64_t CudaAddress;
typedef struct CudaContextOfDriver *CudaContext;
typedef struct CudaModuleOfDriver *CudaModuleHandle;
typedef struct CudaFunctionOfDriver *CudaFunction;
typedef struct CudaStreamOfDriver *CudaStream;
typedef struct CudaEventOfDriver *CudaEvent;
typedef struct CudaLinkOfDriver *CudaLink;
typedef struct CudaGraphOfDriver *CudaGraphHandle;
typedef struct CudaGraphExecOfDriver *CudaGraphExec;
typedef struct CudaNodeOfDriver *CudaNode;

/* A kernel and a copy of a CUDA graph, as the driver declares them. */
typedef struct {
    CudaFunction function;
    unsigned grid[3], block[3], shared;
    void **parameters, **extra;
    void *kernel;
    CudaContext context;
} CudaKernelNode;

typedef struct {
    size_t x, y, z, level;
    int memory_type;
    const void *host;
    CudaAddress device;
    void *array, *reserved;
    size_t pitch, height;
} CudaCopySide;

typedef struct {
    CudaCopySide from, to;
    size_t width, height, depth;
} CudaCopyNode;

enum { CUDA_INVALID_VALUE = 1, CUDA_OUT_OF_MEMORY = 2, CUDA_TOO_MANY_BLOCKS = -1 /* ours: see smelt_cuda_launch_grid */ };
enum { CUDA_MOST_BLOCKS = 0x7fffffff, CUDA_LOG_BYTES = 16 * 1024 };

/* How a kernel is launched, as the driver declares it, with one attribute. */
typedef struct {
    int id, padding;
    int value[16];
} CudaLaunchAttribute;

typedef struct {
    unsigned grid[3], block[3], shared;
    CudaStream stream;
    CudaLaunchAttribute *attributes;
    unsigned attribute_count;
} CudaLaunchConfig;

/* Who needs a function: a driver without it is refused to them alone. The others find NULL. */
enum { CUDA_OPTIONAL = 0, CUDA_MEMORY = 1, CUDA_ASSEMBLER = 2, CUDA_ALWAYS = CUDA_MEMORY | CUDA_ASSEMBLER };

/* F(name in the driver's manual, field, who needs it, parameters) */
#define CUDA_FUNCTIONS(F)                                                                                              \
    F(cuInit, init, CUDA_ALWAYS, (unsigned flags))                                                                     \
    F(cuDriverGetVersion, driver_version, CUDA_ASSEMBLER, (int *version))                                              \
    F(cuGetErrorName, error_name, CUDA_ASSEMBLER, (CudaResult, const char **name))                                     \
    F(cuGetErrorString, error_string, CUDA_ALWAYS, (CudaResult, const char **text))                                    \
    F(cuDeviceGetCount, device_count, CUDA_ALWAYS, (int *count))                                                       \
    F(cuDeviceGet, device_get, CUDA_ALWAYS, (int *device, int number))                                                 \
    F(cuDeviceGetName, device_name, CUDA_ALWAYS, (char *name, int length, int device))                                 \
    F(cuDeviceGetAttribute, device_attribute, CUDA_ALWAYS, (int *value, int attribute, int device))                    \
    F(cuDevicePrimaryCtxRetain, retain_context, CUDA_ALWAYS, (CudaContext *, int device))                              \
    F(cuDevicePrimaryCtxRelease_v2, release_context, CUDA_MEMORY, (int device))                                        \
    F(cuCtxGetCurrent, get_context, CUDA_ALWAYS, (CudaContext *))                                                      \
    F(cuCtxSetCurrent, set_context, CUDA_ALWAYS, (CudaContext))                                                        \
    F(cuModuleLoadDataEx, load, CUDA_ALWAYS,                                                                           \
      (CudaModuleHandle *, const void *image, unsigned count, int *options, void **values))                            \
    F(cuModuleUnload, unload, CUDA_ALWAYS, (CudaModuleHandle))                                                         \
    F(cuModuleGetFunction, get_function, CUDA_ALWAYS, (CudaFunction *, CudaModuleHandle, const char *name))            \
    F(cuFuncGetAttribute, get_attribute, CUDA_ASSEMBLER, (int *value, int attribute, CudaFunction))                    \
    F(cuFuncSetAttribute, set_attribute, CUDA_ALWAYS, (CudaFunction, int attribute, int value))                        \
    F(cuOccupancyMaxActiveBlocksPerMultiprocessor, occupancy, CUDA_ASSEMBLER,                                          \
      (int *blocks, CudaFunction, int threads, size_t shared))                                                         \
    F(cuLaunchKernel, launch, CUDA_ALWAYS,                                                                             \
      (CudaFunction, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,            \
       unsigned block_z, unsigned shared, CudaStream, void **parameters, void **extra))                                \
    F(cuLaunchKernelEx, launch_with, CUDA_OPTIONAL,                                                                    \
      (const CudaLaunchConfig *, CudaFunction, void **parameters, void **extra))                                       \
    F(cuLinkCreate_v2, link_create, CUDA_ASSEMBLER, (unsigned count, int *options, void **values, CudaLink *))         \
    F(cuLinkAddData_v2, link_add, CUDA_ASSEMBLER,                                                                      \
      (CudaLink, int kind, void *data, size_t size, const char *name, unsigned count, int *options, void **values))    \
    F(cuLinkComplete, link_complete, CUDA_ASSEMBLER, (CudaLink, void **image, size_t *size))                           \
    F(cuLinkDestroy, link_destroy, CUDA_ASSEMBLER, (CudaLink))                                                         \
    F(cuMemAlloc_v2, allocate, CUDA_MEMORY, (CudaAddress *, size_t size))                                              \
    F(cuMemFree_v2, release, CUDA_MEMORY, (CudaAddress))                                                               \
    F(cuMemcpyHtoDAsync_v2, to_device, CUDA_MEMORY, (CudaAddress, const void *from, size_t size, CudaStream))          \
    F(cuMemcpyDtoHAsync_v2, to_host, CUDA_MEMORY, (void *, CudaAddress from, size_t size, CudaStream))                 \
    F(cuMemcpyDtoDAsync_v2, within_device, CUDA_MEMORY, (CudaAddress, CudaAddress from, size_t size, CudaStream))      \
    F(cuPointerGetAttribute, pointer_attribute, CUDA_MEMORY, (void *value, int attribute, CudaAddress))                \
    F(cuStreamCreate, stream_create, CUDA_MEMORY, (CudaStream *, unsigned flags))                                      \
    F(cuStreamDestroy_v2, stream_destroy, CUDA_MEMORY, (CudaStream))                                                   \
    F(cuStreamSynchronize, stream_wait, CUDA_MEMORY, (CudaStream))                                                     \
    F(cuStreamQuery, stream_query, CUDA_OPTIONAL, (CudaStream))                                                        \
    F(cuEventCreate, event_create, CUDA_OPTIONAL, (CudaEvent *, unsigned flags))                                       \
    F(cuEventRecord, event_record, CUDA_OPTIONAL, (CudaEvent, CudaStream))                                             \
    F(cuEventQuery, event_query, CUDA_OPTIONAL, (CudaEvent))                                                           \
    F(cuEventDestroy_v2, event_destroy, CUDA_OPTIONAL, (CudaEvent))                                                    \
    F(cuThreadExchangeStreamCaptureMode, capture_mode, CUDA_OPTIONAL, (int *mode))                                     \
    F(cuStreamIsCapturing, is_capturing, CUDA_OPTIONAL, (CudaStream, int *status))                                     \
    F(cuStreamBeginCapture_v2, begin_capture, CUDA_OPTIONAL, (CudaStream, int mode))                                   \
    F(cuStreamEndCapture, end_capture, CUDA_OPTIONAL, (CudaStream, CudaGraphHandle *))                                 \
    F(cuStreamGetCaptureInfo_v2, capture_info, CUDA_OPTIONAL,                                                          \
      (CudaStream, int *status, uint64_t *number, CudaGraphHandle *, const CudaNode **last, size_t *count))            \
    F(cuStreamGetCaptureInfo_v3, capture_edges, CUDA_OPTIONAL,                                                         \
      (CudaStream, int *status, uint64_t *number, CudaGraphHandle *, const CudaNode **last, const void **edges,        \
       size_t *count))                                                                                                 \
    F(cuGraphInstantiateWithFlags, instantiate, CUDA_OPTIONAL, (CudaGraphExec *, CudaGraphHandle, uint64_t flags))     \
    F(cuGraphGetNodes, get_nodes, CUDA_OPTIONAL, (CudaGraphHandle, CudaNode *, size_t *count))                         \
    F(cuGraphNodeGetType, get_type, CUDA_OPTIONAL, (CudaNode, int *type))                                              \
    F(cuGraphMemcpyNodeGetParams, get_copy, CUDA_OPTIONAL, (CudaNode, CudaCopyNode *))                                 \
    F(cuGraphDestroy, destroy_graph, CUDA_OPTIONAL, (CudaGraphHandle))                                                 \
    F(cuGraphExecDestroy, destroy_exec, CUDA_OPTIONAL, (CudaGraphExec))                                                \
    F(cuGraphExecKernelNodeSetParams_v2, set_kernel, CUDA_OPTIONAL, (CudaGraphExec, CudaNode, const CudaKernelNode *)) \
    F(cuGraphExecMemcpyNodeSetParams, set_copy, CUDA_OPTIONAL,                                                         \
      (CudaGraphExec, CudaNode, const CudaCopyNode *, CudaContext))                                                    \
    F(cuGraphLaunch, launch_graph, CUDA_OPTIONAL, (CudaGraphExec, CudaStream))

#define CUDA_FIELD(name, field, needed_by, parameters) CudaResult(*field) parameters;
typedef struct {
    void *library;
    pid_t process; /* a child of fork() must not use it */
    CUDA_FUNCTIONS(CUDA_FIELD)
} CudaDriver;

/* Opens the driver at a path. Returns NULL, or what is wrong: where `library` is NULL, why it cannot be opened, else the
   name of a function that it lacks. */
const char *smelt_cuda_open_driver(CudaDriver *driver, const char *path, unsigned needed_by);

/* The driver's own words for an error; NULL: it has none. */
const char *smelt_cuda_error_words(const CudaDriver *driver, CudaResult code);

/* Makes a context this thread's own, and says which one it was before; back again by `cuda_leave`. */
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

/* A thread in a context, and allowed to allocate there while another records a CUDA graph. */
typedef struct {
    const CudaDriver *driver;
    CudaContext context, before;
    int mode;
} CudaInside;

CudaResult smelt_cuda_go_inside(CudaInside *inside, const CudaDriver *driver, CudaContext context);

/* Back from there, if it was reached. */
void smelt_cuda_go_outside(CudaInside *inside);

/* What the assembler prints, and the options that make it print there: the driver writes to them until a link ends. */
typedef struct {
    char info[CUDA_LOG_BYTES], errors[CUDA_LOG_BYTES];
    int options[5];
    void *values[5];
} CudaLog;

/* Code in the memory of a GPU, and the context that it is launched in. */
typedef struct {
    const CudaDriver *driver;
    CudaContext context;
    CudaModuleHandle handle; /* NULL: nothing is loaded */
} CudaModule;

/* Loads code: machine code, or PTX that ends with a zero byte. */
CudaResult smelt_cuda_load_module(CudaModule *module, const void *image, CudaLog *log);
void smelt_cuda_unload_module(CudaModule *module);

/* PTX that ends with a zero byte as machine code, which belongs to the link, as the log does. No link: it is NULL. */
CudaResult smelt_cuda_link(const CudaDriver *driver, const char *ptx, size_t size, void **image, size_t *image_size,
                         CudaLink *link, CudaLog *log);

/* A function by its name. It is allowed more shared memory than usual, if it needs more. */
CudaResult smelt_cuda_find_function(const CudaModule *module, const char *name, int64_t shared_bytes,
                                    CudaFunction *function);

/* What a kernel is given: a pointer for each buffer, the workspace, then sizes, as codegen/gpu/nvptx.py writes functions.
   All must stay where they are until the launch. */
void smelt_cuda_set_parameters(void **parameters, void **buffers, int64_t count, void **workspace, const int64_t *sizes,
                               int64_t size_count);

/* A number, or one of the sizes that a launch is given. */
static inline int64_t
cuda_size(int64_t number, int64_t slot, const int64_t *sizes)
{
    return slot < 0 ? number : sizes[slot];
}

/* A grid of blocks side by side; of none nothing is launched. In the context of the function. `overlaps`: it may begin
   before the kernel that was launched last has ended, for which it waits by itself. */
CudaResult smelt_cuda_launch_grid(const CudaDriver *driver, CudaFunction function, const GridRecord *grid,
                                  const int64_t *sizes, CudaStream stream, void **parameters, bool overlaps);

#endif
