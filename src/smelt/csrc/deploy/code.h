/* Machine code of an artifact, and the processor it is for. */
#ifndef SMELT_DEPLOY_CODE_H
#define SMELT_DEPLOY_CODE_H

#include "deploy/format/error.h"
#include "deploy/format/records.h"
#include "executor/code_image.h"

/* void kernel(void **buffers, int64_t threads, void *workspace) */
typedef void (*Kernel)(void **buffers, int64_t threads, void *workspace);

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

/* What this processor is (ANY_MACHINE: one that no code is for), and its features, as bits of layout.FEATURES. */
Machine smelt_processor(uint64_t *features);

/* The names of features, in the order of their bits; NULL after the last. */
const char *const *smelt_feature_names(Machine machine);
const char *smelt_machine_name(Machine machine);

#endif
