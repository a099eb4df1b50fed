/* Generate text with an exported language model: the likeliest token, again and again.

     cc generate.c $(smelt cc) -o generate
     ./generate gpt2.smelt 20 464 3290 318

   The model was exported with a length that differs from call to call; it takes int64[1, tokens] and returns
   float32[1, tokens, words]. Tokens are numbers here: their words are another program's business. */
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
    if (count < 4)
        return fail("usage", "generate model.smelt count token …");
    if (smelt_model_open(arguments[1], NULL, &model, &error) || smelt_session_new(model, NULL, &session, &error))
        return fail(arguments[1], error.message);
    size_t known = (size_t)count - 3, wanted = known + strtoul(arguments[2], NULL, 10);
    int64_t *tokens = calloc(wanted, sizeof *tokens);
    for (size_t place = 0; place < known; place++)
        tokens[place] = strtoll(arguments[3 + place], NULL, 10);
    for (; known < wanted; known++) {
        const int64_t sizes[] = {1, (int64_t)known};
        smelt_tensor input = {SMELT_INT64, 2, sizes, NULL, tokens}, scores;
        if (smelt_run(session, &input, 1, &error) || smelt_output(session, 0, &scores, &error))
            return fail(smelt_model_name(model), error.message);
        int64_t words = scores.sizes[2], best = 0;
        const float *last = (const float *)scores.data + ((int64_t)known - 1) * words;
        for (int64_t word = 1; word < words; word++)
            if (last[word] > last[best])
                best = word;
        tokens[known] = best;
    }
    for (size_t place = 0; place < wanted; place++)
        printf("%lld%c", (long long)tokens[place], place + 1 < wanted ? ' ' : '\n');
    free(tokens);
    smelt_session_free(session);
    smelt_model_close(model);
    return 0;
}
