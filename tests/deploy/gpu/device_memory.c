/* A model of one input float32[3, 16] and one output float32[3, 4], whose input and output are memory of a GPU.

     device_memory model.smelt   →   "same", if that gives what memory of the host gives; two sessions, in two threads too */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "smelt.h"

enum { IN = 3 * 16, OUT = 3 * 4 };
typedef int (*Function)();

static void *library;
static smelt_model *model;
static float given[IN], wanted[OUT];

static Function
find(const char *name)
{
    Function found;
    void *address = dlsym(library, name);
    memcpy(&found, &address, sizeof found);
    return found;
}

static int
fail(const smelt_error *error)
{
    fprintf(stderr, "%s\n", error->message);
    exit(1);
    return 1;
}

static void *
run_on_host_memory(void *unused)
{
    smelt_error error;
    smelt_session *session;
    const int64_t sizes[] = {3, 16}, turned[] = {1, 3};
    float across[IN];
    smelt_tensor plain = {SMELT_FLOAT32, 2, sizes, NULL, given}, strided = {SMELT_FLOAT32, 2, sizes, turned, across}, out;
    for (int i = 0; i < IN; i++) {
        across[i / 16 + 3 * (i % 16)] = given[i];
    }
    if (smelt_session_new(model, NULL, &session, &error)) {
        fail(&error);
    }
    for (int round = 0; round < 3; round++) {
        if (smelt_run(session, round % 2 ? &strided : &plain, 1, &error) || smelt_output(session, 0, &out, &error)) {
            fail(&error);
        }
        if (unused == NULL && round == 0) {
            memcpy(wanted, out.data, sizeof wanted);
        }
        if (memcmp(wanted, out.data, sizeof wanted)) {
            puts("another thread or round gives something else");
            exit(1);
        }
    }
    smelt_session_free(session);
    return NULL;
}

int
main(int count, char **arguments)
{
    smelt_error error;
    smelt_session *session;
    const smelt_open_options options = {.size = sizeof options, .device = SMELT_DEVICE_CUDA};
    if (count != 2 || smelt_model_open(arguments[1], &options, &model, &error)) {
        return fail(&error);
    }
    for (int i = 0; i < IN; i++) {
        given[i] = (float)(i % 7) - 3;
    }
    run_on_host_memory(NULL);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        pthread_create(&threads[i], NULL, run_on_host_memory, given);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
    }
    library = dlopen("libcuda.so.1", RTLD_NOW);
    int device;
    void *context, *before;
    uint64_t in, out;
    find("cuDeviceGet")(&device, 0);
    find("cuCtxGetCurrent")(&before);
    find("cuDevicePrimaryCtxRetain")(&context, device);
    find("cuCtxSetCurrent")(context);
    find("cuMemAlloc_v2")(&in, sizeof given + 4);
    find("cuMemAlloc_v2")(&out, sizeof wanted);
    if (smelt_session_new(model, NULL, &session, &error)
        || smelt_bind_output(session, 0, (void *)(uintptr_t)out, sizeof wanted, &error)) {
        return fail(&error);
    }
    for (int round = 0; round < 2; round++) { /* the second begins where kernels could not read sixteen bytes at once */
        const uint64_t begin = in + (round ? 4 : 0);
        const int64_t sizes[] = {3, 16};
        smelt_tensor input = {SMELT_FLOAT32, 2, sizes, NULL, (void *)(uintptr_t)begin}, output;
        float found[OUT];
        find("cuMemcpyHtoDAsync_v2")(begin, given, sizeof given, NULL);
        find("cuStreamSynchronize")(NULL);
        if (smelt_run(session, &input, 1, &error) || smelt_output(session, 0, &output, &error)) {
            return fail(&error);
        }
        find("cuMemcpyDtoHAsync_v2")(found, out, sizeof found, NULL);
        find("cuStreamSynchronize")(NULL);
        if (output.data != (void *)(uintptr_t)out || memcmp(found, wanted, sizeof found)) {
            puts("other than on the host");
            return 1;
        }
    }
    const int64_t sizes[] = {3, 16}, turned[] = {1, 3};
    smelt_tensor strided = {SMELT_FLOAT32, 2, sizes, turned, (void *)(uintptr_t)in};
    if (smelt_run(session, &strided, 1, &error) != SMELT_ERROR_INPUT) {
        puts("strided memory of a GPU is taken");
        return 1;
    }
    find("cuMemFree_v2")(in);
    find("cuMemFree_v2")(out);
    find("cuCtxSetCurrent")(before);
    find("cuDevicePrimaryCtxRelease_v2")(device);
    smelt_session_free(session);
    smelt_model_close(model);
    puts("same");
    return 0;
}
