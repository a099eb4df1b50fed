/* Blocks of memory, and elements in them. */
#include "executor/run/blocks.h"

#include "executor/records.h"

#ifdef SMELT_STATIC_MODEL

typedef uint64_t __attribute__((aligned(1), may_alias)) Word;

void
smelt_copy_bytes(void *to, const void *from, int64_t bytes)
{
    char *target = to;
    const char *source = from;
    if ((uintptr_t)target - (uintptr_t)source < (uintptr_t)bytes) { /* from the last to the first */
        while (bytes-- > 0) {
            target[bytes] = source[bytes];
        }
        return;
    }
    int64_t i = 0;
    for (; i + 8 <= bytes; i += 8) {
        *(Word *)(target + i) = *(const Word *)(source + i);
    }
    for (; i < bytes; i++) {
        target[i] = source[i];
    }
}

static void
set_zero(void *memory, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 8) { /* memory is given in whole words */
        *(Word *)((char *)memory + i) = 0;
    }
}

#else

#include <string.h>

void
smelt_copy_bytes(void *to, const void *from, int64_t bytes)
{
    memmove(to, from, (size_t)bytes);
}

static void
set_zero(void *memory, size_t bytes)
{
    memset(memory, 0, bytes);
}

#endif

void *
smelt_allocate(const smelt_allocator *allocator, size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) {
        return NULL;
    }
    bytes = bytes ? bytes : 1;
    void *memory = allocator->allocate(allocator->context, bytes, FILE_ALIGN);
    if (memory) {
        set_zero(memory, bytes);
    }
    return memory;
}

void
smelt_release(const smelt_allocator *allocator, void *memory, size_t count, size_t size)
{
    if (memory) {
        allocator->release(allocator->context, memory, count && size ? count * size : 1);
    }
}

bool
smelt_block_fits(const smelt_allocator *allocator, Block *block, int64_t size)
{
    if ((uint64_t)size <= block->size) {
        return true;
    }
    if (size > MOST_BYTES || (uint64_t)size > SIZE_MAX / 2) {
        return false;
    }
    /* What grows once may grow again, as in loops that append. */
    size_t room = (size_t)size;
    if (block->size && room < block->size + block->size / 2) {
        room = block->size + block->size / 2;
    }
    room = (room + FILE_ALIGN - 1) / FILE_ALIGN * FILE_ALIGN;
    smelt_block_drop(allocator, block);
    block->memory = allocator->allocate(allocator->context, room, FILE_ALIGN);
    block->size = block->memory ? room : 0;
    return block->memory != NULL;
}

void
smelt_block_drop(const smelt_allocator *allocator, Block *block)
{
    if (block->memory) {
        allocator->release(allocator->context, block->memory, block->size);
    }
    *block = (Block){NULL, 0};
}

int64_t
smelt_sized_bytes(const int64_t *sizes, int64_t rank, int64_t item)
{
    int64_t bytes = item;
    bool empty = false;
    for (int64_t i = 0; i < rank; i++) {
        if (sizes[i] < 0) {
            return -1;
        }
        empty = empty || sizes[i] == 0;
    }
    for (int64_t i = 0; !empty && i < rank; i++) {
        if (__builtin_mul_overflow(bytes, sizes[i], &bytes) || bytes > MOST_BYTES) {
            return -1;
        }
    }
    return empty ? 0 : bytes;
}

void
smelt_contiguous_strides(const int64_t *sizes, int64_t rank, int64_t *strides)
{
    int64_t step = 1;
    for (int64_t i = rank; i-- > 0;) {
        strides[i] = step;
        step *= sizes[i] > 1 ? sizes[i] : 1; /* as many as there are elements, which were counted */
    }
}

void
smelt_copy_strided(char *to, const int64_t *to_strides, const char *from, const int64_t *from_strides,
                   const int64_t *sizes, int64_t rank, int64_t item)
{
    int64_t run = 1, inner = rank; /* the last dimensions that are contiguous on both sides are one run of bytes */
    while (inner > 0 && (sizes[inner - 1] == 1 || (to_strides[inner - 1] == run && from_strides[inner - 1] == run))) {
        run *= sizes[--inner];
    }
    if (inner == 0) {
        smelt_copy_bytes(to, from, run * item);
        return;
    }
    for (int64_t i = 0; i < sizes[0]; i++) {
        smelt_copy_strided(to + i * to_strides[0] * item, to_strides + 1, from + i * from_strides[0] * item,
                           from_strides + 1, sizes + 1, rank - 1, item);
    }
}
