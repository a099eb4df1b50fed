/* Runs a model as its arguments say, and prints what came of it: the program that the tests of the C runtime drive.

     driver model.smelt [threads=2] [limit=100] [trust] [memory] [own] command…
       run INPUT…       a call: dtype:2,4:0011… (bytes in hex), dtype:2,4:…:8,1 (with strides), or none
       state NAME, set NAME HEX, save PATH, load PATH, reset, info, returned, bind NUMBER BYTES, repeat N, fork, fail N (allocations later)

   Each line of output is a status and what belongs to it. */
#define _GNU_SOURCE
#include <smelt.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(_WIN32)
#include <malloc.h>
#define aligned_alloc(alignment, size) _aligned_malloc(size, alignment)
#define free_aligned _aligned_free
#else
#include <sys/wait.h>
#include <unistd.h>
#define free_aligned free
#endif

static smelt_error error;
static long allocated, peak, failing = -1; /* allocations until one fails */

static void
tell(const char *what, smelt_status status)
{
    printf("%s %d %s\n", what, (int)status, status ? error.message : "ok");
}

static void
print_bytes(const unsigned char *data, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        printf("%02x", data[i]);
    }
}

static size_t
read_bytes(const char *text, unsigned char *data)
{
    size_t count = 0;
    for (unsigned byte; *text && *text != ':' && sscanf(text, "%2x", &byte) == 1; text += 2) {
        data[count++] = (unsigned char)byte;
    }
    return count;
}

static int
read_numbers(const char *text, int64_t *numbers)
{
    int count = 0;
    while (*text && *text != ':') {
        char *end;
        numbers[count++] = strtoll(text, &end, 10);
        text = *end == ',' ? end + 1 : end;
    }
    return count;
}

static size_t
count_of(const smelt_tensor *tensor)
{
    size_t count = 1;
    for (int i = 0; i < tensor->rank; i++) {
        count *= (size_t)tensor->sizes[i];
    }
    return count;
}

static void
print_tensor(const char *name, const smelt_tensor *tensor)
{
    printf("output %s %s [", name, smelt_dtype_name(tensor->dtype));
    for (int i = 0; i < tensor->rank; i++) {
        printf(i ? ",%lld" : "%lld", (long long)tensor->sizes[i]);
    }
    printf("] ");
    if (tensor->dtype != SMELT_NONE) {
        print_bytes(tensor->data, count_of(tensor) * smelt_dtype_size(tensor->dtype));
    }
    printf("\n");
}

/* dtype:sizes:bytes[:strides], into memory that is freed by the caller. */
static void *
read_tensor(char *text, smelt_tensor *tensor)
{
    *tensor = (smelt_tensor){.dtype = SMELT_NONE};
    if (strcmp(text, "none") == 0) {
        return NULL;
    }
    for (int dtype = 0; dtype < 17; dtype++) {
        const char *name = smelt_dtype_name((smelt_dtype)dtype);
        if (strncmp(text, name, strlen(name)) == 0 && text[strlen(name)] == ':') {
            tensor->dtype = (smelt_dtype)dtype;
        }
    }
    int64_t *numbers = calloc(2 * SMELT_MAX_RANK + strlen(text), sizeof *numbers);
    char *sizes = strchr(text, ':') + 1, *bytes = strchr(sizes, ':') + 1, *strides = strchr(bytes, ':');
    tensor->rank = read_numbers(sizes, numbers);
    tensor->sizes = numbers;
    if (strides) {
        read_numbers(strides + 1, numbers + SMELT_MAX_RANK);
        tensor->strides = numbers + SMELT_MAX_RANK;
    }
    tensor->data = numbers + 2 * SMELT_MAX_RANK;
    read_bytes(bytes, tensor->data);
    return numbers;
}

static void *
counted_allocate(void *context, size_t size, size_t alignment)
{
    (void)context;
    if (failing >= 0 && failing-- == 0) {
        return NULL;
    }
    void *memory = aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
    allocated += memory ? (long)size : 0;
    peak = allocated > peak ? allocated : peak;
    return memory;
}

static void
counted_release(void *context, void *memory, size_t size)
{
    (void)context;
    allocated -= (long)size;
    free_aligned(memory);
}

static void
serial(void *context, int64_t count, smelt_task task, void *data)
{
    ++*(int *)context;
    for (int64_t i = count; i-- > 0;) {
        task(data, i);
    }
}

static void
print_infos(const char *kind, size_t count, const smelt_info *(*ask)(const smelt_model *, size_t), const smelt_model *model)
{
    for (size_t i = 0; i < count; i++) {
        const smelt_info *info = ask(model, i);
        printf("%s %s %s flags=%u", kind, info->name, smelt_dtype_name(info->dtype), info->flags);
        for (int k = 0; k < info->rank; k++) {
            printf(" %lld..%lld%s%s", (long long)info->dims[k].low, (long long)info->dims[k].high,
                   info->dims[k].name ? "=" : "", info->dims[k].name ? info->dims[k].name : "");
        }
        for (size_t k = 0; k < info->choice_count; k++) {
            printf(" %s", info->choices[k]);
        }
        printf("\n");
    }
}

static void
print_info(const smelt_model *model)
{
    size_t size;
    const char *manifest = smelt_model_manifest(model, &size);
    printf("model %s for %s: %.*s\n", smelt_model_name(model), smelt_model_target(model), (int)size, manifest);
    print_infos("input", smelt_model_input_count(model), smelt_model_input, model);
    print_infos("output", smelt_model_output_count(model), smelt_model_output, model);
    print_infos("state", smelt_model_state_count(model), smelt_model_state, model);
}

static void
run(smelt_session *session, int count, char **texts, int repeat)
{
    smelt_tensor inputs[16];
    void *memory[16];
    for (int i = 0; i < count; i++) {
        memory[i] = read_tensor(texts[i], &inputs[i]);
    }
    smelt_status status = SMELT_OK;
    for (int i = 0; i < repeat && !status; i++) {
        status = smelt_run(session, inputs, (size_t)count, &error);
    }
    tell("run", status);
    const smelt_model *model = smelt_session_model(session);
    for (size_t i = 0; !status && i < smelt_model_output_count(model); i++) {
        smelt_tensor output;
        if (smelt_output(session, i, &output, &error) == SMELT_OK) {
            print_tensor(smelt_model_output(model, i)->name, &output);
        }
    }
    for (size_t i = 0; !status && i < (size_t)count; i++) {
        if (smelt_model_input(model, i)->flags & SMELT_WRITTEN) {
            print_tensor(smelt_model_input(model, i)->name, &inputs[i]);
        }
    }
    for (int i = 0; i < count; i++) {
        free(memory[i]);
    }
}

static int
is_command(const char *word)
{
    static const char *const words[] = {"run", "state", "set", "save", "load", "reset", "info", "returned", "bind", "repeat", "fail",
                                        "fork"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strcmp(word, words[i]) == 0) {
            return 1;
        }
    }
    return 0;
}

static void *
read_whole(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    fseek(file, 0, SEEK_END);
    *size = (size_t)ftell(file);
    rewind(file);
    void *data = aligned_alloc(64, (*size + 63) / 64 * 64);
    if (fread(data, 1, *size, file) != *size) {
        abort();
    }
    fclose(file);
    return data;
}

int
main(int argc, char **argv)
{
    smelt_allocator allocator = {NULL, counted_allocate, counted_release};
    smelt_open_options open = {.size = sizeof open, .allocator = &allocator};
    int calls = 0, repeat = 1, at = 2;
    smelt_session_options options = {.size = sizeof options, .threads = 1};
    bool in_memory = false;
    for (; at < argc && !is_command(argv[at]); at++) {
        if (strncmp(argv[at], "threads=", 8) == 0) {
            options.threads = atoi(argv[at] + 8);
        }
        else if (strncmp(argv[at], "limit=", 6) == 0) {
            options.most_states = atoi(argv[at] + 6);
        }
        else if (strcmp(argv[at], "trust") == 0) {
            open.flags |= SMELT_OPEN_TRUST_WEIGHTS;
        }
        else if (strcmp(argv[at], "only_check") == 0) {
            open.flags |= SMELT_OPEN_WITHOUT_CODE;
        }
        else if (strcmp(argv[at], "memory") == 0) {
            in_memory = true;
        }
        else if (strcmp(argv[at], "own") == 0) {
            options.parallel_for = serial;
            options.parallel_context = &calls;
        }
    }
    smelt_model *model = NULL;
    smelt_session *session = NULL;
    void *data = NULL;
    size_t size = 0;
    if (in_memory) {
        data = read_whole(argv[1], &size);
        tell("open", smelt_model_from_memory(data, size, &open, &model, &error));
    }
    else {
        tell("open", smelt_model_open(argv[1], &open, &model, &error));
    }
    if (model) {
        tell("session", smelt_session_new(model, &options, &session, &error));
        if (session == NULL && at < argc && strcmp(argv[at], "info") == 0) {
            print_info(model);
        }
    }
    smelt_model_close(model); /* the session keeps it */
    while (session && at < argc) {
        const char *word = argv[at++];
        int count = 0;
        while (at + count < argc && !is_command(argv[at + count])) {
            count++;
        }
        char **given = argv + at;
        at += count;
        unsigned char bytes[4096];
        const ptrdiff_t number = count ? smelt_model_find_state(model, given[0]) : -1;
        if (strcmp(word, "run") == 0) {
            run(session, count, given, repeat);
        }
        else if (strcmp(word, "repeat") == 0) {
            repeat = atoi(given[0]);
        }
        else if (strcmp(word, "info") == 0) {
            print_info(model);
        }
        else if (strcmp(word, "state") == 0) {
            smelt_tensor state = {0};
            tell("state", smelt_state(session, (size_t)number, &state, &error));
            if (number >= 0) {
                const size_t length = count_of(&state) * smelt_dtype_size(state.dtype);
                tell("read", smelt_state_read(session, (size_t)number, bytes, length, &error));
                state.data = bytes;
                print_tensor(given[0], &state);
            }
        }
        else if (strcmp(word, "set") == 0) {
            const size_t length = read_bytes(given[1], bytes);
            tell("set", smelt_state_write(session, (size_t)number, bytes, length, &error));
        }
        else if (strcmp(word, "save") == 0) {
            tell("save", smelt_session_save(session, given[0], &error));
        }
        else if (strcmp(word, "load") == 0) {
            tell("load", smelt_session_load(session, given[0], &error));
        }
        else if (strcmp(word, "reset") == 0) {
            tell("reset", smelt_session_reset(session, &error));
        }
        else if (strcmp(word, "bind") == 0) {
            static unsigned char room[4096];
            tell("bind", smelt_bind_output(session, (size_t)atoi(given[0]), room, (size_t)atoi(given[1]), &error));
        }
        else if (strcmp(word, "fail") == 0) {
            failing = atol(given[0]);
        }
        else if (strcmp(word, "returned") == 0) {
            int64_t state = -1, variant = -1;
            const smelt_status status = smelt_returned(session, &state, &variant, &error);
            printf("returned %d %lld %lld\n", (int)status, (long long)state, (long long)variant);
        }
#if !defined(_WIN32)
        else if (strcmp(word, "fork") == 0) {
            fflush(stdout);
            const pid_t child = fork();
            if (child != 0) {
                int status;
                waitpid(child, &status, 0);
                printf("child %d\n", status);
                break;
            }
        }
#endif
    }
    smelt_session_free(session);
    free_aligned(data);
    printf("calls %d, peak %ld, left %ld\n", calls, peak, allocated);
    return 0;
}
