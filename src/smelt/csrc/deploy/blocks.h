/* Blocks of memory, and elements in them. */
#ifndef SMELT_DEPLOY_BLOCKS_H
#define SMELT_DEPLOY_BLOCKS_H

#include "smelt.h"

#include <stdbool.h>

/* Memory of the session's allocator. */
typedef struct {
    void *memory;
    size_t size;
} Block;

/* Room for `size` bytes; what was in it is lost. False: there is none. */
bool smelt_block_fits(const smelt_allocator *allocator, Block *block, int64_t size);
void smelt_block_drop(const smelt_allocator *allocator, Block *block);

/* Elements from one strided layout to another. */
void smelt_copy_strided(char *to, const int64_t *to_strides, const char *from, const int64_t *from_strides,
                        const int64_t *sizes, int64_t rank, int64_t item);
void smelt_contiguous_strides(const int64_t *sizes, int64_t rank, int64_t *strides);

/* Elements of these sizes in bytes; -1: negative, or too many. */
int64_t smelt_sized_bytes(const int64_t *sizes, int64_t rank, int64_t item);

#endif
