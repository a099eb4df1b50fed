/* Blocks of memory, and elements in them. */
#ifndef SMELT_EXECUTOR_RUN_BLOCKS_H
#define SMELT_EXECUTOR_RUN_BLOCKS_H

#include "smelt.h"

#include <stdbool.h>

/* Memory of an allocator. */
typedef struct {
    void *memory;
    size_t size;
} Block;

/* Makes room for `size` bytes; the old content is lost. False: there is no memory. */
bool smelt_block_fits(const smelt_allocator *allocator, Block *block, int64_t size);
void smelt_block_drop(const smelt_allocator *allocator, Block *block);

/* Zeroed memory, at a multiple of 64; NULL: there is no memory. */
void *smelt_allocate(const smelt_allocator *allocator, size_t count, size_t size);
void smelt_release(const smelt_allocator *allocator, void *memory, size_t count, size_t size);

/* memmove, which a static model must not need. */
void smelt_copy_bytes(void *to, const void *from, int64_t bytes);

/* Elements from one strided layout to another. */
void smelt_copy_strided(char *to, const int64_t *to_strides, const char *from, const int64_t *from_strides,
                        const int64_t *sizes, int64_t rank, int64_t item);
void smelt_contiguous_strides(const int64_t *sizes, int64_t rank, int64_t *strides);

/* Elements of these sizes in bytes; -1: negative, or too many. */
int64_t smelt_sized_bytes(const int64_t *sizes, int64_t rank, int64_t item);

#endif
