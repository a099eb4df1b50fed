/* Weights of a model in a file of their own. */
#ifndef SMELT_DEPLOY_WEIGHTS_H
#define SMELT_DEPLOY_WEIGHTS_H

#include "deploy/model.h"

/* Fills `model->weights` if the artifact has none itself, from the safetensors file that options name. Tensors are found by
   the names of registers: all of them must be there, and no others. */
smelt_status smelt_weights_load(smelt_model *model, const smelt_open_options *options, smelt_error *error);

void smelt_weights_drop(smelt_model *model);

#endif
