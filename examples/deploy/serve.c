/* Serve an exported model over HTTP: POST the bytes of its input, get the bytes of its first output.

     cc serve.c $(smelt cc) -o serve
     ./serve model.smelt 8080 4
     curl --data-binary @image.bin http://127.0.0.1:8080/ > scores.bin

   Four threads take calls, each with a session of its own; all share one model. The first size of the input may be
   dynamic. What is wrong with a call is told in the answer, whose status is 400 then. Only this machine is served: there
   are no time limits for slow clients here, which a program in front of it would set. */
#define _POSIX_C_SOURCE 200809L
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "smelt.h"

static smelt_model *model;
static int server;

static size_t bytes_of(smelt_dtype dtype, int rank, const int64_t *sizes) {
    size_t bytes = smelt_dtype_size(dtype);
    for (int dim = 0; dim < rank; dim++)
        bytes *= (size_t)sizes[dim];
    return bytes;
}

static void answer(smelt_session *session, FILE *in, int out) {
    char line[1024];
    size_t length = 0;
    while (fgets(line, sizeof line, in) && strcmp(line, "\r\n"))
        if (!strncasecmp(line, "content-length:", 15))
            length = strtoul(line + 15, NULL, 10);
    const smelt_info *info = smelt_model_input(model, 0);
    int64_t sizes[SMELT_MAX_RANK] = {1};
    for (int dim = 1; dim < info->rank; dim++)
        sizes[dim] = info->dims[dim].low;
    const size_t row = bytes_of(info->dtype, info->rank, sizes);
    smelt_error error = {SMELT_ERROR_INPUT, "the body is no whole number of rows, too long, or cut"};
    smelt_tensor input = {info->dtype, info->rank, sizes, NULL, length > 64 << 20 ? NULL : malloc(length + 1)}, output;
    sizes[0] = row ? (int64_t)(length / row) : 0;
    const int failed = !input.data || (size_t)sizes[0] * row != length || fread(input.data, 1, length, in) != length
                       || smelt_run(session, &input, 1, &error) || smelt_output(session, 0, &output, &error);
    const size_t bytes = failed ? strlen(error.message) : bytes_of(output.dtype, output.rank, output.sizes);
    dprintf(out, "HTTP/1.1 %s\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n",
            failed ? "400 Bad Request" : "200 OK", bytes);
    const char *body = failed ? error.message : output.data;
    for (ssize_t sent = 0, part = 1; part > 0; sent += part)
        part = write(out, body + sent, bytes - (size_t)sent);
    free(input.data);
}

static void *serve(void *session) {
    for (int call; (call = accept(server, NULL, NULL)) >= 0;) {
        FILE *in = fdopen(call, "r");
        if (in)
            answer(session, in, call), fclose(in);
    }
    return NULL;
}

int main(int count, char **arguments) {
    smelt_error error = {SMELT_ERROR_ARGUMENT, "usage: serve model.smelt port threads"};
    if (count != 4 || smelt_model_open(arguments[1], NULL, &model, &error))
        return fprintf(stderr, "%s\n", error.message), 1;
    struct sockaddr_in address = {AF_INET, htons((uint16_t)atoi(arguments[2])), {htonl(INADDR_LOOPBACK)}, {0}};
    server = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(server, (struct sockaddr *)&address, sizeof address) || listen(server, 64))
        return perror("serve"), 1;
    getsockname(server, (struct sockaddr *)&address, &(socklen_t){sizeof address});
    signal(SIGPIPE, SIG_IGN);
    const smelt_session_options alone = {.size = sizeof alone, .threads = 1};
    for (int number = 0; number < atoi(arguments[3]); number++) {
        pthread_t thread;
        smelt_session *session;
        if (smelt_session_new(model, &alone, &session, &error) || pthread_create(&thread, NULL, serve, session))
            return fprintf(stderr, "%s\n", error.message), 1;
    }
    dprintf(1, "http://127.0.0.1:%d/\n", ntohs(address.sin_port));
    return pause();
}
