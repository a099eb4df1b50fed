/* Ed25519 (RFC 8032). */
#ifndef SMELT_EXECUTOR_ED25519_H
#define SMELT_EXECUTOR_ED25519_H

#include <stdbool.h>
#include <stddef.h>

enum { ED25519_KEY_BYTES = 32, ED25519_SIGNATURE_BYTES = 64 };

/* The public key of a secret one. */
void smelt_ed25519_public_key(unsigned char public_key[ED25519_KEY_BYTES], const unsigned char secret[ED25519_KEY_BYTES]);

void smelt_ed25519_sign(unsigned char signature[ED25519_SIGNATURE_BYTES], const unsigned char secret[ED25519_KEY_BYTES],
                        const void *message, size_t size);

bool smelt_ed25519_holds(const unsigned char signature[ED25519_SIGNATURE_BYTES],
                         const unsigned char public_key[ED25519_KEY_BYTES], const void *message, size_t size);

#endif
