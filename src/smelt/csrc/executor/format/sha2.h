/* SHA-256 and SHA-512 (FIPS 180-4): the first names files, the second is a part of Ed25519. */
#ifndef SMELT_EXECUTOR_SHA2_H
#define SMELT_EXECUTOR_SHA2_H

#include <stddef.h>
#include <stdint.h>

enum { SHA256_BYTES = 32, SHA512_BYTES = 64 };

typedef struct {
    uint32_t state[8];
    unsigned char block[64];
    uint64_t bytes;
} Sha256;

typedef struct {
    uint64_t state[8];
    unsigned char block[128];
    uint64_t bytes;
} Sha512;

void smelt_sha256_begin(Sha256 *hash);
void smelt_sha256_add(Sha256 *hash, const void *data, size_t size);
void smelt_sha256_end(Sha256 *hash, unsigned char digest[SHA256_BYTES]);

void smelt_sha512_begin(Sha512 *hash);
void smelt_sha512_add(Sha512 *hash, const void *data, size_t size);
void smelt_sha512_end(Sha512 *hash, unsigned char digest[SHA512_BYTES]);

#endif
