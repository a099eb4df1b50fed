/* Go on with a training that was exported as a step: feed batches, print losses, save a checkpoint.

     cc train.c $(smelt cc) -o train
     ./train step.smelt batches.bin 40 checkpoint.smelt

   The file of batches has the inputs of each step one after the other, in the order of `smelt inspect`. The checkpoint is
   a file of the same kind: this program goes on from it, and so does Python. */
#include <stdio.h>
#include <stdlib.h>

#include "smelt.h"

static int fail(const char *what, const char *message) {
    fprintf(stderr, "%s: %s\n", what, message);
    return 1;
}

int main(int count, char **arguments) {
    smelt_error error;
    smelt_model *model;
    smelt_session *session;
    if (count != 5)
        return fail("usage", "train step.smelt batches.bin steps checkpoint.smelt");
    if (smelt_model_open(arguments[1], NULL, &model, &error) || smelt_session_new(model, NULL, &session, &error))
        return fail(arguments[1], error.message);
    FILE *batches = fopen(arguments[2], "rb");
    if (!batches)
        return fail(arguments[2], "cannot be opened");
    size_t inputs = smelt_model_input_count(model);
    smelt_tensor *batch = calloc(inputs ? inputs : 1, sizeof *batch);
    size_t *bytes = calloc(inputs ? inputs : 1, sizeof *bytes);
    for (size_t place = 0; place < inputs; place++) {
        const smelt_info *info = smelt_model_input(model, place);
        int64_t *sizes = calloc((size_t)info->rank + 1, sizeof *sizes);
        bytes[place] = smelt_dtype_size(info->dtype);
        for (int dim = 0; dim < info->rank; dim++)
            bytes[place] *= (size_t)(sizes[dim] = info->dims[dim].low);
        batch[place] = (smelt_tensor){info->dtype, info->rank, sizes, NULL, malloc(bytes[place])};
    }
    for (long step = 0; step < strtol(arguments[3], NULL, 10); step++) {
        for (size_t place = 0; place < inputs; place++)
            if (fread(batch[place].data, 1, bytes[place], batches) != bytes[place])
                return fail(arguments[2], "too few batches");
        smelt_tensor loss;
        if (smelt_run(session, batch, inputs, &error) || smelt_output(session, 0, &loss, &error))
            return fail("step", error.message);
        printf("%ld %.6f\n", step, *(const float *)loss.data);
    }
    if (smelt_session_save(session, arguments[4], &error))
        return fail(arguments[4], error.message);
    fclose(batches);
    for (size_t place = 0; place < inputs; place++) {
        free((void *)batch[place].sizes);
        free(batch[place].data);
    }
    free(batch);
    free(bytes);
    smelt_session_free(session);
    smelt_model_close(model);
    return 0;
}
