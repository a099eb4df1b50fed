/* Blocks of memory, and elements in them. */
#include "deploy/blocks.h"

#include <string.h>

#include "executor/records.h"

bool
smelt_block_fits(const smelt_allocator *allocator, Block *block, int64_t size)
{
    if ((uint64_t)size <= block->size) {
        return true;
    }
    if (size > MOST_BYTES) {
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
        memcpy(to, from, (size_t)(run * item));
        return;
    }
    for (int64_t i = 0; i < sizes[0]; i++) {
        smelt_copy_strided(to + i * to_strides[0] * item, to_strides + 1, from + i * from_strides[0] * item,
                           from_strides + 1, sizes + 1, rank - 1, item);
    }
}
