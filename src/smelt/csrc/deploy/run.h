/* Runs a model, once its inputs are taken. */
#ifndef SMELT_DEPLOY_RUN_H
#define SMELT_DEPLOY_RUN_H

#include "deploy/session_parts.h"

/* Through the states from the entry to the end, once inputs are in their registers. */
smelt_status smelt_run_states(smelt_session *session, smelt_error *error);

#endif
