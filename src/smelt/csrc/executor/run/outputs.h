/* What a call returns. */
#ifndef SMELT_EXECUTOR_RUN_OUTPUTS_H
#define SMELT_EXECUTOR_RUN_OUTPUTS_H

#include "executor/run/parts.h"

/* Before a variant that returns runs: where its outputs will be, and room for those that are copied. */
smelt_status smelt_reserve_outputs(Run *run, const VariantRecord *variant, const int64_t *symbols, smelt_error *error);

/* What a variant returned becomes the outputs. */
smelt_status smelt_take_outputs(Run *run, const VariantRecord *variant, smelt_error *error);

#endif
