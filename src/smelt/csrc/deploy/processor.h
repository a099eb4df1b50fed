/* The processor that this process runs on. */
#ifndef SMELT_DEPLOY_PROCESSOR_H
#define SMELT_DEPLOY_PROCESSOR_H

#include "executor/records.h"

#include <stdbool.h>

/* What this processor is (ANY_MACHINE: one that no code is for), and its features, as bits of layout.FEATURES. */
Machine smelt_processor(uint64_t *features);

/* The names of features, in the order of their bits; NULL after the last. */
const char *const *smelt_feature_names(Machine machine);
const char *smelt_machine_name(Machine machine);

#endif
