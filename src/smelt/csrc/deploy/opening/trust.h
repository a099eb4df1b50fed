/* Whose files are opened. */
#ifndef SMELT_DEPLOY_TRUST_H
#define SMELT_DEPLOY_TRUST_H

#include "executor/format/file.h"

/* Refuses a file that the options or the environment do not trust. Where they say anything, the file's bytes are copied
   to memory that is the process's own before they are verified, unless options ask for the mapping. */
smelt_status smelt_trust_check(File *file, const smelt_open_options *options, smelt_error *error);

/* The same of the file of weights that options name. Its signature is in a file beside it, with .sig behind its name. */
smelt_status smelt_trust_check_weights(File *file, const smelt_open_options *options, smelt_error *error);

#endif
