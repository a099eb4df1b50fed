/* Opens a signed file with one byte changed, many times: each must be refused before any memory becomes executable.

     changes model.smelt KEY COUNT      (the public key in hexadecimal digits)

   Every byte of the file is changed before one is changed a second time, to another value. One of 64 changes is made in a
   file, the others in memory. The system's mmap and mprotect are counted by the linker's --wrap. */
#define _GNU_SOURCE
#include <smelt.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void *__real_mmap(void *address, size_t size, int protection, int flags, int descriptor, off_t offset);
int __real_mprotect(void *address, size_t size, int protection);

static long executable; /* calls that made memory executable */

static void
fail(const char *what, long number)
{
    fprintf(stderr, "change %ld: %s\n", number, what);
    exit(1);
}

static void
watch(int protection)
{
    executable += (protection & PROT_EXEC) != 0;
    if (protection & PROT_EXEC && protection & PROT_WRITE) {
        fail("memory is writable and executable", -1);
    }
}

void *
__wrap_mmap(void *address, size_t size, int protection, int flags, int descriptor, off_t offset)
{
    watch(protection);
    return __real_mmap(address, size, protection, flags, descriptor, offset);
}

int
__wrap_mprotect(void *address, size_t size, int protection)
{
    watch(protection);
    return __real_mprotect(address, size, protection);
}

static smelt_status
open_file(const unsigned char *data, size_t size, const smelt_open_options *options, smelt_model **model, smelt_error *error)
{
    char path[64];
    snprintf(path, sizeof path, "/dev/shm/smelt-changes-%d", (int)getpid());
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(data, 1, size, file) != size || fclose(file)) {
        fail("the file cannot be written", -1);
    }
    const smelt_status status = smelt_model_open(path, options, model, error);
    unlink(path);
    return status;
}

int
main(int argc, char **argv)
{
    unsigned char key[1][32];
    FILE *file = argc == 4 ? fopen(argv[1], "rb") : NULL;
    void *memory = NULL;
    if (file == NULL || fseek(file, 0, SEEK_END) || posix_memalign(&memory, 64, (size_t)ftell(file))) {
        return 2;
    }
    for (int i = 0; i < 32; i++) {
        sscanf(argv[2] + 2 * i, "%2hhx", &key[0][i]);
    }
    unsigned char *data = memory;
    const size_t size = (size_t)ftell(file);
    const long count = strtol(argv[3], NULL, 10);
    rewind(file);
    if (fread(data, 1, size, file) != size) {
        return 2;
    }
    smelt_open_options options = {.size = sizeof options, .device = SMELT_DEVICE_HOST, .keys = key, .key_count = 1};
    smelt_model *model;
    smelt_error error;
    for (long i = 0; i < count; i++) {
        const size_t place = (size_t)i % size;
        const unsigned char change = (unsigned char)(1 + (size_t)i / size * 37 % 255), before = data[place];
        data[place] ^= change;
        const smelt_status status = i % 64 ? smelt_model_from_memory(data, size, &options, &model, &error)
                                           : open_file(data, size, &options, &model, &error);
        data[place] = before;
        if (status != SMELT_ERROR_TRUST || model) {
            fail(status ? error.message : "the file was opened", i);
        }
        if (executable) {
            fail("memory became executable", i);
        }
    }
    if (smelt_model_from_memory(data, size, &options, &model, &error) || executable != 1) {
        fail("the file that was signed is not opened, or its code is not seen", count);
    }
    smelt_model_close(model);
    free(data);
    fclose(file);
    printf("%ld changes of %zu bytes refused\n", count, size);
    return 0;
}
