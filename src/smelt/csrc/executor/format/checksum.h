/* XXH64 of bytes: the checksum of an artifact's sections. */
#ifndef SMELT_CHECKSUM_H
#define SMELT_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

/* With seed 0. */
uint64_t smelt_checksum(const void *data, size_t size);

#endif
