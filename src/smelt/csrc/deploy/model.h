/* A model: an open artifact, with the code chosen for this processor. */
#ifndef SMELT_DEPLOY_MODEL_H
#define SMELT_DEPLOY_MODEL_H

#include "deploy/code.h"
#include "deploy/cuda.h"
#include "executor/format/file.h"
#include "executor/table.h"

#include <stdatomic.h>

/* Inputs, outputs or state registers. */
typedef struct {
    size_t count;
    smelt_info *infos;
    int64_t *registers; /* the number of each; NULL of outputs */
} Infos;

/* An entry point: what a call of it runs, takes and returns. */
typedef struct {
    const char *name;
    Table table;
    Code code;
    CudaModule module;
    CudaFunction *functions; /* of each grid */
    Infos inputs, outputs, states; /* the last are those of all entry points */
    smelt_dim *dims;       /* of each DimRecord */
    const char **choices;  /* of all inputs */
    size_t choice_count;
    int64_t most_buffers;  /* of a kernel */
    int64_t most_sizes;
} Entry;

struct smelt_model {
    smelt_allocator allocator;
    atomic_size_t references; /* its own, and one of each session */
    File file;
    char *weights; /* of a file that has none itself; NULL: the file's */
    bool is_checkpoint; /* read for its state alone: nothing of it runs, and anybody may have written it */
    bool runs; /* there is code */
    bool on_cuda; /* which is for a GPU */
    Cuda cuda;
    char name[256], target[256];
    Entry *entries;
    size_t entry_count;
};

static inline const char *
model_weights(const smelt_model *model)
{
    return model->weights ? model->weights : file_bytes(&model->file, model->file.weights);
}

/* Options as this library knows them, `bytes` of them: fields that the caller's version does not have are zero. False:
   options of no size, or of a later version whose further fields are not zero. `given` may be NULL. */
bool smelt_take_options(void *options, size_t bytes, const void *given);

/* A file that is opened for its state. */
smelt_status smelt_checkpoint_open(const char *path, const smelt_allocator *allocator, smelt_model **model,
                                   smelt_error *error);

#endif
