/* Runs a table, once the inputs of a call are in their registers. */
#ifndef SMELT_EXECUTOR_RUN_RUN_H
#define SMELT_EXECUTOR_RUN_RUN_H

#include "executor/run/parts.h"

/* Through the states from the entry to the end. */
smelt_status smelt_run_states(Run *run, smelt_error *error);

/* Fills in a plan for the run's symbols. False: sizes do not fit memory. */
bool smelt_run_plan(const Run *run, const VariantRecord *variant, Plan *plan);

#endif
