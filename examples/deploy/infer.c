/* Run an exported model on inputs from files, and print or write what it returns.

     cc infer.c $(smelt cc) -o infer
     ./infer model.smelt scores.bin image.bin

   Each input is a file with the bytes of one tensor, in the order of `smelt inspect`; sizes that differ from call to call
   are given behind it: ids.bin:2,12. The first output goes to the file that is named second, contiguous. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "smelt.h"

static int fail(const char *what, const char *message) {
    fprintf(stderr, "%s: %s\n", what, message);
    return 1;
}

/* The sizes of an input: those behind the colon, else those that the model was exported for. */
static void sizes_of(const smelt_info *info, const char *given, int64_t *sizes) {
    for (int dim = 0; dim < info->rank; dim++) {
        sizes[dim] = given ? strtoll(given, (char **)&given, 10) : info->dims[dim].low;
        if (given && *given == ',')
            given++;
    }
}

static void *read_file(const char *path, size_t bytes) {
    FILE *file = fopen(path, "rb");
    void *data = file ? malloc(bytes ? bytes : 1) : NULL;
    if (data && fread(data, 1, bytes, file) != bytes) {
        free(data);
        data = NULL;
    }
    if (file)
        fclose(file);
    return data;
}

int main(int count, char **arguments) {
    smelt_error error;
    smelt_model *model;
    smelt_session *session;
    if (count < 3)
        return fail("usage", "infer model.smelt output.bin input.bin[:sizes] …");
    if (smelt_model_open(arguments[1], NULL, &model, &error) || smelt_session_new(model, NULL, &session, &error))
        return fail(arguments[1], error.message);
    size_t inputs = smelt_model_input_count(model);
    if ((size_t)count - 3 != inputs)
        return fail("inputs", "another number of them than the model takes");
    smelt_tensor *given = calloc(inputs ? inputs : 1, sizeof *given);
    int64_t(*sizes)[SMELT_MAX_RANK] = calloc(inputs ? inputs : 1, sizeof *sizes);
    for (size_t place = 0; place < inputs; place++) {
        const smelt_info *info = smelt_model_input(model, place);
        char *path = arguments[3 + place], *colon = strchr(path, ':');
        if (colon)
            *colon = '\0';
        sizes_of(info, colon ? colon + 1 : NULL, sizes[place]);
        size_t bytes = smelt_dtype_size(info->dtype);
        for (int dim = 0; dim < info->rank; dim++)
            bytes *= (size_t)sizes[place][dim];
        given[place] = (smelt_tensor){info->dtype, info->rank, sizes[place], NULL, read_file(path, bytes)};
        if (!given[place].data)
            return fail(path, "cannot be read, or is too short");
    }
    smelt_tensor output;
    if (smelt_run(session, given, inputs, &error) || smelt_output(session, 0, &output, &error))
        return fail(smelt_model_name(model), error.message);
    size_t bytes = smelt_dtype_size(output.dtype);
    printf("%s [", smelt_dtype_name(output.dtype));
    for (int dim = 0; dim < output.rank; dim++) {
        bytes *= (size_t)output.sizes[dim];
        printf("%s%lld", dim ? ", " : "", (long long)output.sizes[dim]);
    }
    printf("]\n");
    FILE *file = fopen(arguments[2], "wb");
    if (!file || fwrite(output.data, 1, bytes, file) != bytes || fclose(file))
        return fail(arguments[2], "cannot be written");
    for (size_t place = 0; place < inputs; place++)
        free(given[place].data);
    free(given);
    free(sizes);
    smelt_session_free(session);
    smelt_model_close(model);
    return 0;
}
