/* Measures each kernel of a call. A session that is not measured calls its kernels as before. */
#include "deploy/memory.h"

#include <time.h>

static int64_t
nanoseconds(void)
{
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* In the place of `launch`. What a GPU was given is waited for, so that its time is that of the kernel. */
static smelt_status
launch_measured(Run *run, const VariantRecord *variant, const Plan *plan, const LaunchRecord *launch, smelt_error *error)
{
    EntryRun *at = (EntryRun *)run;
    const smelt_session *session = at->session;
    const Table *table = run->table;
    const int64_t begin = nanoseconds();
    smelt_status status = at->launch(run, variant, plan, launch, error);
    if (!status && run->device) {
        status = run->device->settle(run, error);
    }
    const int64_t end = nanoseconds();
    session->profile(session->profile_context, table_string(table, table->kernels[launch->kernel].name), begin, end);
    return status;
}

smelt_status
smelt_session_profile(smelt_session *session, smelt_profile_function profile, void *context, smelt_error *error)
{
    CudaContext before;
    if (session == NULL) {
        return smelt_fail(error, SMELT_ERROR_ARGUMENT, "there is no session");
    }
    const smelt_status status = smelt_begin_call(session, &before, error);
    if (status) {
        return status;
    }
    session->profile = profile;
    session->profile_context = context;
    for (size_t i = 0; i < session->model->entry_count; i++) {
        EntryRun *at = &session->runs[i];
        at->launch = at->launch ? at->launch : at->run.launch;
        at->run.launch = profile ? launch_measured : at->launch;
    }
    smelt_end_call(session, before);
    return SMELT_OK;
}
