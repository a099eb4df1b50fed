/* A file of weights in the safetensors format, in memory. */
#ifndef SMELT_DEPLOY_SAFETENSORS_H
#define SMELT_DEPLOY_SAFETENSORS_H

#include "executor/error.h"

#include <stdbool.h>

/* `name` is not ended by a zero byte. */
typedef struct {
    const char *name, *data;
    size_t name_bytes, bytes;
    smelt_dtype dtype;
    int rank;
    int64_t sizes[SMELT_MAX_RANK];
    bool is_used;
} WeightTensor;

/* Reads the header, and writes the first `room` tensors; every entry is checked. The count of all is written too. */
smelt_status smelt_safetensors_read(const void *data, size_t size, WeightTensor *tensors, size_t room, size_t *count,
                                    smelt_error *error);

#endif
