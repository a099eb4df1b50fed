/* Registers in memory of a GPU, and kernels that run there. */
#ifndef SMELT_DEPLOY_MEMORY_H
#define SMELT_DEPLOY_MEMORY_H

#include "deploy/session_parts.h"

extern const Device smelt_gpu_memory;

/* Memory of the GPU whose context is this thread's. */
smelt_allocator smelt_gpu_allocator(CudaDriver *driver);

/* A session at work in this thread; back by smelt_leave. */
smelt_status smelt_enter(const smelt_session *session, CudaContext *before, smelt_error *error);
void smelt_leave(const smelt_session *session, CudaContext before);

/* The same for a call, which nobody may make while another is under way; back by smelt_end_call. */
smelt_status smelt_begin_call(smelt_session *session, CudaContext *before, smelt_error *error);
void smelt_end_call(smelt_session *session, CudaContext before);

/* The grids of a kernel, one after the other. */
smelt_status smelt_launch_grids(Run *run, const VariantRecord *variant, const Plan *plan, const LaunchRecord *launch,
                                smelt_error *error);

#endif
