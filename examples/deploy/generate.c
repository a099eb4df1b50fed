/* Generate text with an exported language model, from token numbers to token numbers.

     cc -O2 generate.c $(smelt cc) -o generate
     ./generate llama.smelt 20 464 3290 318                the likeliest token, again and again
     ./generate -t 0.8 -k 40 -s 7 llama.smelt 20 464 3290  sampled: temperature, from how many tokens, seed

   The model was exported by smelt.export_generation: `prefill` takes the prompt, `decode` one token, and both return the
   likeliest next token and the logits of all. The words of tokens are another program's business. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "smelt.h"

enum { MOST_CANDIDATES = 256 };

static int fail(const char *what, const char *message) {
    fprintf(stderr, "%s: %s\n", what, message);
    return 1;
}

/* From 0 to 1, by splitmix64. */
static double uniform(uint64_t *seed) {
    uint64_t bits = *seed += 0x9e3779b97f4a7c15u;
    bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9u;
    bits = (bits ^ bits >> 27) * 0x94d049bb133111ebu;
    return (double)((bits ^ bits >> 31) >> 11) / 9007199254740992.0;
}

/* One of the `count` likeliest tokens, by their softmax at a temperature. */
static int64_t sample(const float *logits, int64_t words, double temperature, int count, uint64_t *seed) {
    int64_t best[MOST_CANDIDATES]; /* from the likeliest on */
    double weights[MOST_CANDIDATES], sum = 0;
    int held = 0;
    for (int64_t word = 0; word < words; word++) {
        if (held == count && logits[word] <= logits[best[held - 1]])
            continue;
        int place = held < count ? held++ : held - 1;
        for (; place > 0 && logits[word] > logits[best[place - 1]]; place--)
            best[place] = best[place - 1];
        best[place] = word;
    }
    for (int i = 0; i < held; i++)
        sum += weights[i] = exp((logits[best[i]] - logits[best[0]]) / temperature);
    double left = uniform(seed) * sum;
    for (int i = 0; i < held; i++)
        if ((left -= weights[i]) < 0)
            return best[i];
    return best[0];
}

int main(int count, char **arguments) {
    double temperature = 0;
    int candidates = 40, place = 1;
    uint64_t seed = 0;
    for (; place + 1 < count && arguments[place][0] == '-'; place += 2) {
        const char *value = arguments[place + 1];
        switch (arguments[place][1]) {
        case 't': temperature = atof(value); break;
        case 'k': candidates = atoi(value); break;
        case 's': seed = strtoull(value, NULL, 10); break;
        default: return fail("unknown option", arguments[place]);
        }
    }
    if (count - place < 3 || candidates < 1 || candidates > MOST_CANDIDATES)
        return fail("usage", "generate [-t temperature] [-k candidates] [-s seed] model.smelt count token …");
    smelt_error error;
    smelt_model *model;
    smelt_session *session;
    const char *path = arguments[place];
    /* Without the flag, all weights are read and held against their checksum. */
    const smelt_open_options options = {.size = sizeof options, .flags = SMELT_OPEN_TRUST_WEIGHTS};
    if (smelt_model_open(path, &options, &model, &error) || smelt_session_new(model, NULL, &session, &error))
        return fail(path, error.message);
    const ptrdiff_t prefill = smelt_model_find_entry(model, "prefill"), decode = smelt_model_find_entry(model, "decode");
    if (prefill < 0 || decode < 0)
        return fail(path, "it has no entry points prefill and decode: smelt.export_generation writes them");
    const long wanted = strtol(arguments[place + 1], NULL, 10);
    const int64_t length = count - place - 2;
    int64_t *prompt = calloc((size_t)length, sizeof *prompt), token;
    for (int64_t i = 0; i < length; i++)
        prompt[i] = strtoll(arguments[place + 2 + i], NULL, 10);

    const int64_t prompt_sizes[] = {1, length}, token_sizes[] = {1};
    smelt_tensor input = {SMELT_INT64, 2, prompt_sizes, NULL, prompt}, likeliest, logits;
    smelt_session_choose(session, (size_t)prefill, &error);
    for (long i = 0; i < wanted; i++) {
        if (smelt_run(session, &input, 1, &error) || smelt_output(session, 0, &likeliest, &error)
            || smelt_output(session, 1, &logits, &error))
            return fail(smelt_model_name(model), error.message);
        token = temperature > 0 ? sample(logits.data, logits.sizes[1], temperature, candidates, &seed)
                                : *(int64_t *)likeliest.data;
        printf("%lld%c", (long long)token, i + 1 < wanted ? ' ' : '\n');
        fflush(stdout);
        input = (smelt_tensor){SMELT_INT64, 1, token_sizes, NULL, &token};
        smelt_session_choose(session, (size_t)decode, &error);
    }
    free(prompt);
    smelt_session_free(session);
    smelt_model_close(model);
    return 0;
}
