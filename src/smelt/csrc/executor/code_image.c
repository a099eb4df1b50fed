/* Maps machine code: written first, then executable and read-only, never both. */
#include "executor/code_image.h"

#include "executor/platform/platform.h"

#include <string.h>

static smelt_status
fill_slots(char *memory, int64_t bytes, const SlotRecord *slots, int64_t count, smelt_find_outside find,
           const void *context, smelt_error *error)
{
    for (int64_t i = 0; i < count; i++) {
        const SlotRecord *slot = &slots[i];
        uint64_t address = (uint64_t)(uintptr_t)memory;
        if (slot->offset < 0 || slot->offset > bytes - (int64_t)sizeof address
            || (slot->length == 0 && (slot->addend < 0 || slot->addend > bytes))) {
            return smelt_fail(error, SMELT_ERROR_FILE, "a slot is outside the image of code");
        }
        const smelt_status status = slot->length ? find(context, slot, &address, error) : SMELT_OK;
        if (status) {
            return status;
        }
        address += (uint64_t)slot->addend;
        memcpy(memory + slot->offset, &address, sizeof address);
    }
    return SMELT_OK;
}

smelt_status
smelt_code_image_load(CodeImage *image, const void *code, size_t bytes, const SlotRecord *slots, int64_t count,
                      smelt_find_outside find, const void *context, smelt_error *error)
{
    const size_t page = smelt_page_bytes(), size = (bytes / page + 1) * page; /* never none */
    char *memory = smelt_code_pages_new(size);
    if (memory == NULL) {
        return smelt_fail(error, SMELT_ERROR_MEMORY, "no memory for %zu bytes of code", bytes);
    }
    memcpy(memory, code, bytes);
    *image = (CodeImage){memory, size};
    smelt_status status = fill_slots(memory, (int64_t)bytes, slots, count, find, context, error);
    if (!status && !smelt_code_pages_seal(memory, size)) {
        status = smelt_fail(error, SMELT_ERROR_TARGET, "the system lets no new code be executed: %s",
                            smelt_system_problem().text);
    }
    if (status) {
        smelt_code_image_unmap(image);
        return status;
    }
    return SMELT_OK;
}

void
smelt_code_image_unmap(CodeImage *image)
{
    if (image->memory) {
        smelt_code_pages_free(image->memory, image->size);
    }
    *image = (CodeImage){NULL, 0};
}
