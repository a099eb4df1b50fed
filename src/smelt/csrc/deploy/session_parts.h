/* A session: a run, its memory and its threads, for one call at a time. */
#ifndef SMELT_DEPLOY_SESSION_PARTS_H
#define SMELT_DEPLOY_SESSION_PARTS_H

#include "deploy/model.h"
#include "executor/run/parts.h"
#include "executor/thread_pool.h"

/* How an input was taken. */
typedef struct {
    bool staged; /* copied: it was not contiguous, not aligned, or not where registers are */
    Block host;  /* on its way to a GPU */
} TakenInput;

/* An entry point at work. */
typedef struct EntryRun {
    Run run; /* first: the functions of a run find their entry point and session by it */
    smelt_session *session;
    const Entry *entry;
    bool returned;
    TakenInput *inputs;
    void **parameters; /* of a launch that is grids */
    ProductPlans products;
    smelt_status (*launch)(Run *run, const VariantRecord *variant, const Plan *plan, const LaunchRecord *launch,
                           smelt_error *error); /* the run's own, of a session that was measured */
} EntryRun;

struct smelt_session {
    smelt_model *model;
    EntryRun *runs;  /* of each entry point of the model */
    EntryRun *chosen;
    smelt_allocator allocator;
    smelt_allocator memory; /* of registers, the arena and workspaces: the host's, or that of a GPU */
    CudaStream stream;
    Threads threads;
    atomic_flag busy;
    char *state;     /* of all entry points */
    char *empty;     /* where tensors without elements are, where registers are */
    size_t state_mapped; /* bytes of state that are mapped from the file; 0: allocated */
    char *state_map;
    smelt_profile_function profile;
    void *profile_context;
    char nothing[64];
};

#endif
