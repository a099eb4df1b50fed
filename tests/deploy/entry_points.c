/* Puts numbers through one entry point of a file and reads their sum by another: box.smelt number … */
#include <smelt.h>
#include <stdio.h>
#include <stdlib.h>

int main(int count, char **arguments)
{
    smelt_error error;
    smelt_model *model;
    smelt_session *session;
    if (smelt_model_open(arguments[1], NULL, &model, &error) || smelt_session_new(model, NULL, &session, &error)) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    const ptrdiff_t put = smelt_model_find_entry(model, "put"), get = smelt_model_find_entry(model, "get");
    printf("%s: %zu entry points, %s takes %s\n", smelt_model_name(model), smelt_model_entry_count(model),
           smelt_model_entry(model, (size_t)put), smelt_entry_input(model, (size_t)put, 0)->name);
    smelt_tensor output;
    for (int i = 2; i < count; i++) {
        float number = (float)atof(arguments[i]);
        const smelt_tensor input = {SMELT_FLOAT32, 0, NULL, NULL, &number};
        if (smelt_session_choose(session, (size_t)put, &error) || smelt_run(session, &input, 1, &error)) {
            fprintf(stderr, "%s\n", error.message);
            return 1;
        }
    }
    if (smelt_session_choose(session, (size_t)get, &error) || smelt_run(session, NULL, 0, &error)
        || smelt_output(session, 0, &output, &error)) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    printf("%g, of input %g\n", *(float *)output.data,
           smelt_session_choose(session, 7, &error) == SMELT_ERROR_ARGUMENT ? atof(arguments[2]) : -1);
    smelt_session_free(session);
    smelt_model_close(model);
    return 0;
}
