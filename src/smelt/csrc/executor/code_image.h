/* Machine code in memory of its own. */
#ifndef SMELT_EXECUTOR_CODE_IMAGE_H
#define SMELT_EXECUTOR_CODE_IMAGE_H

#include "executor/error.h"
#include "executor/records.h"

#include <stddef.h>

typedef struct {
    char *memory; /* page-aligned; NULL: there is none */
    size_t size;
} CodeImage;

/* The address of what a slot with a name is filled with, before its addend. */
typedef smelt_status (*smelt_find_outside)(const void *context, const SlotRecord *slot, uint64_t *address,
                                           smelt_error *error);

/* A copy of code, its slots filled: those without a name with places in the copy. From then on it is executable and
   read-only. */
smelt_status smelt_code_image_load(CodeImage *image, const void *code, size_t bytes, const SlotRecord *slots, int64_t count,
                                   smelt_find_outside find, const void *context, smelt_error *error);
void smelt_code_image_unmap(CodeImage *image);

#endif
