/* Machine code in memory of its own. */
#ifndef SMELT_EXECUTOR_CODE_IMAGE_H
#define SMELT_EXECUTOR_CODE_IMAGE_H

#include <stdbool.h>
#include <stddef.h>

typedef struct {
    char *memory; /* page-aligned; NULL: there is none */
    size_t size;
} CodeImage;

/* A copy of code that can be written, until smelt_code_image_seal makes it executable and read-only. False: errno says
   why. */
bool smelt_code_image_map(CodeImage *image, const void *code, size_t bytes);
bool smelt_code_image_seal(const CodeImage *image);
void smelt_code_image_unmap(CodeImage *image);

#endif
