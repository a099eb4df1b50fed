/* Weights of a model in a file of their own. */
#ifndef SMELT_DEPLOY_WEIGHTS_H
#define SMELT_DEPLOY_WEIGHTS_H

#include "executor/format/file.h"

/* Fills memory for the weights of an artifact that has none itself, from the safetensors file that options name. Tensors are
   found by the names of registers: all that the target's tables have must be there, and no others than those of the file's
   tables. `*weights` stays NULL where the artifact has its weights itself; else `smelt_release` takes it back, as many bytes
   as the WEIGHTS section has. */
smelt_status smelt_weights_load(char **weights, const File *file, int64_t target, const smelt_allocator *allocator,
                                const smelt_open_options *options, smelt_error *error);

#endif
