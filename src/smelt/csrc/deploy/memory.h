/* Where registers are: in memory of the host, or of a GPU. */
#ifndef SMELT_DEPLOY_MEMORY_H
#define SMELT_DEPLOY_MEMORY_H

#include "deploy/session_parts.h"

/* From the host to there, within, and back. Copies back are done when the call returns; the others are in the order of
   what runs there. */
smelt_status smelt_put(smelt_session *session, void *to, const void *from, int64_t bytes, smelt_error *error);
smelt_status smelt_move(smelt_session *session, void *to, const void *from, int64_t bytes, smelt_error *error);
smelt_status smelt_fetch(smelt_session *session, void *to, const void *from, int64_t bytes, smelt_error *error);

/* The same as smelt_fetch, done once smelt_settle returns. */
smelt_status smelt_begin_fetch(smelt_session *session, void *to, const void *from, int64_t bytes, smelt_error *error);

/* All that was begun is done, or what went wrong with it. */
smelt_status smelt_settle(smelt_session *session, smelt_error *error);

/* Whether an address of the caller's is where registers are, and not in the host's memory. */
bool smelt_is_there(const smelt_session *session, const void *address);

/* A session at work in this thread; back by smelt_leave. */
smelt_status smelt_enter(const smelt_session *session, CudaContext *before, smelt_error *error);
void smelt_leave(const smelt_session *session, CudaContext before);

/* The grids of a kernel, one after the other. */
smelt_status smelt_launch_grids(smelt_session *session, const VariantRecord *variant, const Plan *plan,
                                const LaunchRecord *launch, smelt_error *error);

#endif
