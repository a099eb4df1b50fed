/* What a call returns. */
#ifndef SMELT_DEPLOY_OUTPUTS_H
#define SMELT_DEPLOY_OUTPUTS_H

#include "deploy/session_parts.h"

/* Before a variant that returns runs: where its outputs will be, and room for those that are copied. */
smelt_status smelt_reserve_outputs(smelt_session *session, const VariantRecord *variant, const int64_t *symbols,
                                   smelt_error *error);

/* What a variant returned becomes the outputs. */
smelt_status smelt_take_outputs(smelt_session *session, const VariantRecord *variant, smelt_error *error);

#endif
