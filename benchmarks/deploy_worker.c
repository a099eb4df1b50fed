/* An artifact in a process without Python: runs it once, then as often as it is asked to.

     cc deploy_worker.c $(smelt cc --static) -o deploy_worker
     ./deploy_worker model.smelt THREADS output.bin input.bin …

   The protocol is that of worker.py: a line of JSON for the first result, whose first output goes to a file then, and one
   for each number of steps that is read.
   "at" is the clock's time (CLOCK_MONOTONIC) when the first result was there, so that who started the process knows how
   long that took; "processor" is the processor time since then, "open" the part of it until a session was ready. "peak" is
   the most memory that was resident, "allocated" the most that model and session had asked for. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "smelt.h"

static double now(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static int fail(const char *what, const char *message) {
    fprintf(stderr, "%s: %s\n", what, message);
    return 1;
}

/* The most that was resident since exec; what getrusage tells is of the parent, where it is larger. */
static long peak_of_memory(void) {
    char line[256];
    long kilobytes = 0;
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status))
        if (sscanf(line, "VmHWM: %ld kB", &kilobytes) == 1)
            break;
    if (status)
        fclose(status);
    return kilobytes * 1024;
}

/* --- memory that is counted --- */

typedef struct {
    size_t now, most;
} Count;

static void *allocate(void *context, size_t size, size_t alignment) {
    Count *count = context;
    void *memory = aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
    count->now += memory ? size : 0;
    count->most = count->now > count->most ? count->now : count->most;
    return memory;
}

static void release(void *context, void *memory, size_t size) {
    ((Count *)context)->now -= size;
    free(memory);
}

/* --- inputs --- */

static void *read_file(const char *path, size_t bytes) {
    FILE *file = fopen(path, "rb");
    void *data = file ? aligned_alloc(64, (bytes + 63) / 64 * 64 + 64) : NULL;
    if (data && fread(data, 1, bytes, file) != bytes) {
        free(data);
        data = NULL;
    }
    if (file)
        fclose(file);
    return data;
}

static int read_input(const smelt_info *info, const char *path, int64_t *sizes, smelt_tensor *input) {
    size_t bytes = smelt_dtype_size(info->dtype);
    for (int dim = 0; dim < info->rank; dim++) {
        sizes[dim] = info->dims[dim].low; /* the benchmark's models have fixed sizes */
        bytes *= (size_t)sizes[dim];
    }
    *input = (smelt_tensor){info->dtype, info->rank, sizes, NULL, read_file(path, bytes)};
    return input->data != NULL;
}

static int write_output(const smelt_session *session, const char *path) {
    smelt_tensor output;
    if (smelt_output(session, 0, &output, NULL))
        return 0;
    size_t bytes = smelt_dtype_size(output.dtype);
    for (int dim = 0; dim < output.rank; dim++)
        bytes *= (size_t)output.sizes[dim];
    FILE *file = fopen(path, "wb");
    return file && fwrite(output.data, 1, bytes, file) == bytes && fclose(file) == 0;
}

int main(int count, char **arguments) {
    smelt_error error;
    smelt_model *model;
    smelt_session *session;
    Count memory = {0, 0};
    if (count < 4)
        return fail("usage", "deploy_worker model.smelt threads output.bin input.bin …");
    const smelt_allocator allocator = {&memory, allocate, release};
    const smelt_open_options opening = {.size = sizeof opening, .allocator = &allocator};
    const smelt_session_options running = {.size = sizeof running, .threads = atoi(arguments[2])};
    if (smelt_model_open(arguments[1], &opening, &model, &error)
        || smelt_session_new(model, &running, &session, &error))
        return fail(arguments[1], error.message);
    const double opened = now(CLOCK_PROCESS_CPUTIME_ID);
    const size_t inputs = smelt_model_input_count(model);
    if ((size_t)count - 4 != inputs)
        return fail("inputs", "another number of them than the model takes");
    smelt_tensor *given = calloc(inputs ? inputs : 1, sizeof *given);
    int64_t(*sizes)[SMELT_MAX_RANK] = calloc(inputs ? inputs : 1, sizeof *sizes);
    for (size_t place = 0; place < inputs; place++)
        if (!read_input(smelt_model_input(model, place), arguments[4 + place], sizes[place], &given[place]))
            return fail(arguments[4 + place], "cannot be read, or is too short");
    if (smelt_run(session, given, inputs, &error))
        return fail(smelt_model_name(model), error.message);
    const double at = now(CLOCK_MONOTONIC), processor = now(CLOCK_PROCESS_CPUTIME_ID);
    if (!write_output(session, arguments[3]))
        return fail(arguments[3], "cannot be written");
    printf("{\"at\": %.9f, \"processor\": %.9f, \"open\": %.9f, \"peak\": %ld, \"allocated\": %zu}\n", at, processor,
           opened, peak_of_memory(), memory.most);
    fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        const int steps = atoi(line);
        const double began = now(CLOCK_MONOTONIC), busy = now(CLOCK_PROCESS_CPUTIME_ID);
        for (int step = 0; step < steps; step++)
            if (smelt_run(session, given, inputs, &error))
                return fail(smelt_model_name(model), error.message);
        printf("{\"seconds\": %.9f, \"processor\": %.9f}\n", (now(CLOCK_MONOTONIC) - began) / steps,
               (now(CLOCK_PROCESS_CPUTIME_ID) - busy) / steps);
        fflush(stdout);
    }
    for (size_t place = 0; place < inputs; place++)
        free(given[place].data);
    free(given);
    free(sizes);
    smelt_session_free(session);
    smelt_model_close(model);
    return 0;
}
