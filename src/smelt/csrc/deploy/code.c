/* Machine code of an artifact: an image, and the addresses that it calls.

   A table here lists everything that generated code may call: the function that shares out work, and functions of the
   C library. An image that asks for anything else is rejected, so that no file chooses what it calls. */
#include "deploy/code.h"

#include "executor/parallel.h"

#include <errno.h>
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

static Function
find_outside(const char *name, size_t length)
{
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++) {
        if (strlen(outside[i].name) == length && memcmp(outside[i].name, name, length) == 0) {
            return outside[i].function;
        }
    }
    return NULL;
}

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
fill_slots(const Code *code, char *memory, smelt_error *error)
{
    for (int64_t i = 0; i < code->header->slots; i++) {
        const SlotRecord *slot = &code->slots[i];
        const char *name = code->names + slot->name;
        uint64_t address = (uint64_t)(uintptr_t)memory;
        if (slot->length) {
            const Function function = find_outside(name, (size_t)slot->length);
            if (function == NULL) {
                return smelt_fail(error, SMELT_ERROR_TARGET, "the code calls %.*s, which this runtime does not have",
                                  slot->length < 100 ? (int)slot->length : 100, name);
            }
            address = (uint64_t)(uintptr_t)function;
        }
        address += (uint64_t)slot->addend;
        memcpy(memory + slot->offset, &address, sizeof address);
    }
    return SMELT_OK;
}

smelt_status
smelt_code_load(Code *code, smelt_error *error)
{
    const size_t bytes = (size_t)code->header->image_bytes;
    if (!smelt_code_image_map(&code->loaded, code->image, bytes)) {
        return smelt_fail(error, SMELT_ERROR_MEMORY, "no memory for %zu bytes of code", bytes);
    }
    smelt_status status = fill_slots(code, code->loaded.memory, error);
    if (!status && !smelt_code_image_seal(&code->loaded)) {
        status = smelt_fail(error, SMELT_ERROR_TARGET, "the system lets no new code be executed: %s", strerror(errno));
    }
    if (status) {
        smelt_code_image_unmap(&code->loaded);
    }
    return status;
}
