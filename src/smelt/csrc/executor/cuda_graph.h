/* CUDA graphs: all that a program launches, recorded from a stream once, then launched by one call.

   Nothing is copied to fixed addresses: the kernels of the program are given the addresses of each call. What libraries
   launch stays as it was recorded, so whoever launches a graph makes sure that memory which libraries use has not
   moved. */
#ifndef SMELT_EXECUTOR_CUDA_GRAPH_H
#define SMELT_EXECUTOR_CUDA_GRAPH_H

#include "executor/cuda_driver.h"

/* Where a parameter comes from: the address of this value; or, with `bytes`, a number that the host has there. Of a value
   that is -1 it never changes. */
typedef struct {
    int64_t value, bytes;
} CudaSource;

typedef struct CudaGraph CudaGraph;

/* Whether a driver has all that graphs take. */
bool smelt_graph_is_possible(const CudaDriver *driver);

/* Begins to record what is launched on a stream, and says where. In the context of the stream, as all that follows. */
CudaResult smelt_graph_begin(CudaGraph **graph, const CudaDriver *driver, CudaContext context, CudaStream stream);

/* Whether what was recorded last is a kernel that was noted: the next one may overlap with it. */
bool smelt_graph_may_overlap(const CudaGraph *graph);

/* Notes the kernel that was launched last. Each of its parameters has eight bytes. */
CudaResult smelt_graph_add_launch(CudaGraph *graph, CudaFunction function, const CudaKernelNode *node,
                                  const CudaSource *sources, int64_t count);

/* Copies bytes to a value. */
CudaResult smelt_graph_add_copy(CudaGraph *graph, int64_t value, void *to, const void *from, int64_t bytes);

/* Ends recording: the graph can be launched. */
CudaResult smelt_graph_end(CudaGraph *graph);

/* Launches the graph on a stream, with `addresses` of the values. In any context. */
CudaResult smelt_graph_launch(CudaGraph *graph, CudaStream stream, const uint64_t *addresses);

/* How many nodes depend on values, and how often one was patched. */
int64_t smelt_graph_node_count(const CudaGraph *graph);
int64_t smelt_graph_patch_count(const CudaGraph *graph);

/* Ends recording, if need be, and frees all. NULL is allowed. In any context. */
void smelt_graph_free(CudaGraph *graph);

#endif
