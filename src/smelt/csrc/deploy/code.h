/* Machine code of an artifact. */
#ifndef SMELT_DEPLOY_CODE_H
#define SMELT_DEPLOY_CODE_H

#include "executor/code_image.h"
#include "executor/error.h"
#include "executor/platform/platform.h"
#include "executor/records.h"

/* void kernel(void **buffers, int64_t threads, void *workspace) */
typedef void (GENERATED_CODE *Kernel)(void **buffers, int64_t threads, void *workspace);

/* A CODE section that keeps to the rules, and once it is loaded, where it is in memory. */
typedef struct {
    const CodeHeader *header;
    const int64_t *entries;
    const SlotRecord *slots;
    const char *names, *image;
    CodeImage loaded;
} Code;

smelt_status smelt_code_read(Code *code, const void *data, int64_t size, smelt_error *error);

/* Maps it, its slots filled; from then on it is executable and read-only. */
smelt_status smelt_code_load(Code *code, smelt_error *error);

static inline Kernel
code_kernel(const Code *code, int64_t number)
{
    return (Kernel)(uintptr_t)(code->loaded.memory + code->entries[number]);
}

#endif
