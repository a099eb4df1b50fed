/* Machine code of an artifact: an image, and the addresses that it calls.

   A table here lists everything that generated code may call: the function that shares out work, and functions of the
   C library. An image that asks for anything else is rejected, so that no file chooses what it calls. */
#include "deploy/code.h"

#include "executor/parallel.h"

#include <math.h>
#include <string.h>

typedef void (*Function)(void);

/* A function of the C library as generated code calls it. */
#define CALL_1(type, name) static GENERATED_CODE type call_##name(type x) { return name(x); }
#define CALL_2(type, name) static GENERATED_CODE type call_##name(type x, type y) { return name(x, y); }
#define CALL_3(type, name) static GENERATED_CODE type call_##name(type x, type y, type z) { return name(x, y, z); }
#define CALL_INT(type, name) static GENERATED_CODE type call_##name(type x, int n) { return name(x, n); }
#define MATH_FUNCTIONS(F)                                                                                              \
    F(1, exp) F(1, exp2) F(1, expm1) F(1, log) F(1, log2) F(1, log10) F(1, log1p) F(1, sin) F(1, cos) F(1, tan)          \
    F(1, asin) F(1, acos) F(1, atan) F(2, atan2) F(1, sinh) F(1, cosh) F(1, tanh) F(1, erf) F(1, erfc) F(2, pow)         \
    F(2, fmod) F(1, sqrt) F(1, cbrt) F(3, fma) F(1, floor) F(1, ceil) F(1, trunc) F(1, round) F(1, rint)                 \
    F(1, nearbyint) F(2, fmin) F(2, fmax) F(2, copysign) F(INT, ldexp) F(1, lgamma) F(1, tgamma) F(2, hypot)
#define DEFINE(form, name) CALL_##form(double, name) CALL_##form(float, name##f)
#define ROW(form, name) {#name, (Function)call_##name}, {#name "f", (Function)call_##name##f},

MATH_FUNCTIONS(DEFINE)

static GENERATED_CODE void *
call_memcpy(void *to, const void *from, size_t bytes)
{
    return memcpy(to, from, bytes);
}

static GENERATED_CODE void *
call_memmove(void *to, const void *from, size_t bytes)
{
    return memmove(to, from, bytes);
}

static GENERATED_CODE void *
call_memset(void *to, int byte, size_t bytes)
{
    return memset(to, byte, bytes);
}

static const struct {
    const char *name;
    Function function;
} outside[] = {
    {"smelt_parallel_for", (Function)smelt_parallel_for},
    {"memcpy", (Function)call_memcpy},
    {"memmove", (Function)call_memmove},
    {"memset", (Function)call_memset},
    MATH_FUNCTIONS(ROW)
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
