/* Machine code of an artifact: an image, and the addresses that it calls.

   A table here lists everything that generated code may call: the function that shares out work, and functions of the
   C library. An image that asks for anything else is rejected, so that no file chooses what it calls. */
#include "deploy/code.h"

#include "executor/parallel.h"

#include <math.h>
#include <string.h>

typedef void (*Function)(void);

#define MATH(name) {#name, (Function)name}, {#name "f", (Function)name##f}
static const struct {
    const char *name;
    Function function;
} outside[] = {
    {"smelt_parallel_for", (Function)smelt_parallel_for},
    {"memcpy", (Function)memcpy},
    {"memmove", (Function)memmove},
    {"memset", (Function)memset},
    MATH(exp), MATH(exp2), MATH(expm1), MATH(log), MATH(log2), MATH(log10), MATH(log1p), MATH(sin), MATH(cos), MATH(tan),
    MATH(asin), MATH(acos), MATH(atan), MATH(atan2), MATH(sinh), MATH(cosh), MATH(tanh), MATH(erf), MATH(erfc), MATH(pow),
    MATH(fmod), MATH(sqrt), MATH(cbrt), MATH(fma), MATH(floor), MATH(ceil), MATH(trunc), MATH(round), MATH(rint),
    MATH(nearbyint), MATH(fmin), MATH(fmax), MATH(copysign), MATH(ldexp), MATH(lgamma), MATH(tgamma), MATH(hypot),
};

smelt_status
smelt_code_read(Code *code, const void *data, int64_t size, smelt_error *error)
{
    const CodeHeader *header = data;
    const int64_t limit = size / 8;
    if (size < (int64_t)sizeof *header || header->kernels < 0 || header->kernels > limit || header->slots < 0
        || header->slots > limit) {
        return smelt_refuse(error, "code", 0, "header");
    }
    const int64_t blob = (int64_t)sizeof *header + 8 * header->kernels + (int64_t)sizeof(SlotRecord) * header->slots;
    if (header->blob != blob || blob > header->image || header->image > size || header->image % FILE_PAGE
        || header->image_bytes != size - header->image) {
        return smelt_refuse(error, "code", 0, "image");
    }
    const char *bytes = data;
    *code = (Code){.header = header, .entries = (const int64_t *)(header + 1), .names = bytes + blob,
                   .image = bytes + header->image};
    code->slots = (const SlotRecord *)(code->entries + header->kernels);
    for (int64_t i = 0; i < header->kernels; i++) {
        if (code->entries[i] < 0 || code->entries[i] >= header->image_bytes) {
            return smelt_refuse(error, "code", i, "entry");
        }
    }
    for (int64_t i = 0; i < header->slots; i++) {
        const SlotRecord *slot = &code->slots[i];
        const int64_t names = header->image - blob;
        if (slot->offset < 0 || slot->offset > header->image_bytes - 8 || slot->name < 0 || slot->name > names
            || slot->length < 0 || slot->length > names - slot->name
            || (slot->length == 0 && (slot->addend < 0 || slot->addend > header->image_bytes))) {
            return smelt_refuse(error, "code", i, "slot");
        }
    }
    return SMELT_OK;
}

static smelt_status
find_outside(const void *context, const SlotRecord *slot, uint64_t *address, smelt_error *error)
{
    const char *name = ((const Code *)context)->names + slot->name;
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++) {
        if (strlen(outside[i].name) == (size_t)slot->length && memcmp(outside[i].name, name, (size_t)slot->length) == 0) {
            *address = (uint64_t)(uintptr_t)outside[i].function;
            return SMELT_OK;
        }
    }
    return smelt_fail(error, SMELT_ERROR_TARGET, "the code calls %.*s, which this runtime does not have",
                      slot->length < 100 ? (int)slot->length : 100, name);
}

smelt_status
smelt_code_load(Code *code, smelt_error *error)
{
    return smelt_code_image_load(&code->loaded, code->image, (size_t)code->header->image_bytes, code->slots,
                                 code->header->slots, find_outside, code, error);
}
