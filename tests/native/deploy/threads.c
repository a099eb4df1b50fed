/* Many threads run one model at once, each with a session of its own, and hold every result against the right one.

     threads model.smelt THREADS ROUNDS THREADS_OF_EACH     the model of tests/native/deploy/models.py called "softmax" */
#include <smelt.h>

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static smelt_model *model;
static int rounds, threads_each;

static int
is_right(const float *x, const float *y, int64_t n, int64_t m)
{
    for (int64_t i = 0; i < n; i++) {
        double sum = 0;
        for (int64_t j = 0; j < m; j++) {
            sum += exp(2.0 * x[i * m + j]);
        }
        for (int64_t j = 0; j < m; j++) {
            if (fabs(exp(2.0 * x[i * m + j]) / sum - y[i * m + j]) > 1e-5) {
                return 0;
            }
        }
    }
    return 1;
}

static void *
work(void *given)
{
    const int number = *(int *)given;
    smelt_error error;
    smelt_session *session;
    smelt_session_options options = {.size = sizeof options, .threads = threads_each};
    float *x = malloc(400 * 64 * sizeof *x);
    *(int *)given = -1;
    if (x == NULL || smelt_session_new(model, &options, &session, &error)) {
        free(x);
        return NULL;
    }
    unsigned seed = (unsigned)number + 1;
    for (int round = 0; round < rounds; round++) {
        const int64_t n = 2 + (round * 37 + number * 11) % 398, m = 2 + (round + number * 7) % 60, sizes[] = {n, m};
        for (int64_t i = 0; i < n * m; i++) {
            seed = seed * 1664525u + 1013904223u;
            x[i] = (float)(seed >> 16) / 65536.0f;
        }
        smelt_tensor input = {SMELT_FLOAT32, 2, sizes, NULL, x}, output;
        if (smelt_run(session, &input, 1, &error) || smelt_output(session, 0, &output, &error)
            || !is_right(x, output.data, n, m)) {
            break;
        }
        *(int *)given = round + 1;
    }
    smelt_session_free(session);
    free(x);
    return NULL;
}

int
main(int argc, char **argv)
{
    enum { MOST = 256 };
    static pthread_t threads[MOST];
    static int numbers[MOST];
    smelt_error error;
    const int count = argc > 4 ? atoi(argv[2]) : 0;
    if (count < 1 || count > MOST || smelt_model_open(argv[1], NULL, &model, &error)) {
        return 2;
    }
    rounds = atoi(argv[3]);
    threads_each = atoi(argv[4]);
    for (int i = 0; i < count; i++) {
        numbers[i] = i;
        pthread_create(&threads[i], NULL, work, &numbers[i]);
    }
    int wrong = 0;
    for (int i = 0; i < count; i++) {
        pthread_join(threads[i], NULL);
        wrong += numbers[i] != rounds;
    }
    smelt_model_close(model);
    printf("%d of %d threads were wrong\n", wrong, count);
    return wrong ? 1 : 0;
}
