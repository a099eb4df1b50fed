/* Maps machine code: written first, then executable and read-only, never both. */
#define _GNU_SOURCE
#include "executor/code_image.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

bool
smelt_code_image_map(CodeImage *image, const void *code, size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), size = (bytes / page + 1) * page; /* never none */
    char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        return false;
    }
    memcpy(memory, code, bytes);
    *image = (CodeImage){memory, size};
    return true;
}

bool
smelt_code_image_seal(const CodeImage *image)
{
    if (mprotect(image->memory, image->size, PROT_READ | PROT_EXEC) < 0) {
        return false;
    }
    __builtin___clear_cache(image->memory, image->memory + image->size);
    return true;
}

void
smelt_code_image_unmap(CodeImage *image)
{
    if (image->memory) {
        munmap(image->memory, image->size);
    }
    *image = (CodeImage){NULL, 0};
}
