/* The steps of a program, one after the other, by the functions of whoever runs it: Python's process allocates tensors and
   calls PyTorch's operators, a program without Python may bring calls of its own. */
#ifndef SMELT_EXECUTOR_STEPS_H
#define SMELT_EXECUTOR_STEPS_H

#include "executor/table.h"

/* Each gets the run that smelt_run_steps was given, and returns 0, or what the run ends with. Those of kinds that no
   table of the runner has stay NULL. */
typedef struct {
    int (*allocate)(void *run, int64_t tensor);
    int (*launch)(void *run, const LaunchRecord *launch);
    int (*copy)(void *run, const CopyRecord *copy);
    int (*call)(void *run, const CallRecord *call);
    int (*drop)(void *run, const DropRecord *drop);
    int (*after)(void *run); /* each step; NULL: nothing is done then */
} StepFunctions;

/* Runs `count` steps from `first` on; `step`: the one at work, and at the end the last. Inlined, so that functions that
   are constants are called directly. */
static inline int
smelt_run_steps(const Table *table, int64_t first, int64_t count, const StepFunctions *functions, void *run, int64_t *step)
{
    int status = 0;
    for (int64_t i = first; status == 0 && i < first + count; i++) {
        const int64_t place = table->steps[i].place;
        *step = i;
        switch (table->steps[i].kind) {
        case ALLOCATE_STEP:
            status = functions->allocate(run, place);
            break;
        case LAUNCH_STEP:
            status = functions->launch(run, &table->launches[place]);
            break;
        case COPY_STEP:
            status = functions->copy(run, &table->copies[place]);
            break;
        case CALL_STEP:
            status = functions->call(run, &table->calls[place]);
            break;
        default:
            status = functions->drop(run, &table->drops[place]);
        }
        if (status == 0 && functions->after) {
            status = functions->after(run);
        }
    }
    return status;
}

#endif
