/* Ed25519 out of Monocypher's parts: its EdDSA over the curve, with SHA-512 as the hash. */
#include "executor/format/ed25519.h"

#include "executor/format/sha2.h"
#include "executor/third_party/monocypher.h"

#include <string.h>

/* The hash of two keys or halves and a message, as a scalar. */
static void
hash_to_scalar(unsigned char scalar[32], const unsigned char *first, const unsigned char *second, const void *message,
               size_t size)
{
    unsigned char digest[SHA512_BYTES];
    Sha512 hash;
    smelt_sha512_begin(&hash);
    smelt_sha512_add(&hash, first, 32);
    if (second) {
        smelt_sha512_add(&hash, second, 32);
    }
    smelt_sha512_add(&hash, message, size);
    smelt_sha512_end(&hash, digest);
    crypto_eddsa_reduce(scalar, digest);
    crypto_wipe(&hash, sizeof hash); /* of a secret, when it signs */
    crypto_wipe(digest, sizeof digest);
}

/* The scalar of a secret key, and behind it the prefix of its nonces. */
static void
expand(unsigned char expanded[64], const unsigned char secret[32])
{
    Sha512 hash;
    smelt_sha512_begin(&hash);
    smelt_sha512_add(&hash, secret, 32);
    smelt_sha512_end(&hash, expanded);
    crypto_eddsa_trim_scalar(expanded, expanded);
    crypto_wipe(&hash, sizeof hash);
}

void
smelt_ed25519_public_key(unsigned char public_key[ED25519_KEY_BYTES], const unsigned char secret[ED25519_KEY_BYTES])
{
    unsigned char expanded[64];
    expand(expanded, secret);
    crypto_eddsa_scalarbase(public_key, expanded);
    crypto_wipe(expanded, sizeof expanded);
}

void
smelt_ed25519_sign(unsigned char signature[ED25519_SIGNATURE_BYTES], const unsigned char secret[ED25519_KEY_BYTES],
                   const void *message, size_t size)
{
    unsigned char expanded[64], public_key[32], nonce[32], challenge[32];
    expand(expanded, secret);
    crypto_eddsa_scalarbase(public_key, expanded);
    hash_to_scalar(nonce, expanded + 32, NULL, message, size);
    crypto_eddsa_scalarbase(signature, nonce);
    hash_to_scalar(challenge, signature, public_key, message, size);
    crypto_eddsa_mul_add(signature + 32, challenge, expanded, nonce);
    crypto_wipe(expanded, sizeof expanded);
    crypto_wipe(nonce, sizeof nonce);
}

/* Points of small order: with such a key, signatures hold that nobody with a secret key has made. By what they encode
   but for the sign: 0, 1, the two of order 8, and -1, 0 and 1 modulo the field's prime p, as p - 1, p and p + 1. */
static bool
has_small_order(const unsigned char key[ED25519_KEY_BYTES])
{
    static const unsigned char small[][ED25519_KEY_BYTES] = {
        {0},
        {1},
        {0x26, 0xe8, 0x95, 0x8f, 0xc2, 0xb2, 0x27, 0xb0, 0x45, 0xc3, 0xf4, 0x89, 0xf2, 0xef, 0x98, 0xf0,
         0xd5, 0xdf, 0xac, 0x05, 0xd3, 0xc6, 0x33, 0x39, 0xb1, 0x38, 0x02, 0x88, 0x6d, 0x53, 0xfc, 0x05},
        {0xc7, 0x17, 0x6a, 0x70, 0x3d, 0x4d, 0xd8, 0x4f, 0xba, 0x3c, 0x0b, 0x76, 0x0d, 0x10, 0x67, 0x0f,
         0x2a, 0x20, 0x53, 0xfa, 0x2c, 0x39, 0xcc, 0xc6, 0x4e, 0xc7, 0xfd, 0x77, 0x92, 0xac, 0x03, 0x7a},
    };
    unsigned char point[ED25519_KEY_BYTES];
    memcpy(point, key, sizeof point);
    point[31] &= 0x7f;
    for (size_t i = 0; i < sizeof small / sizeof *small; i++) {
        if (memcmp(point, small[i], sizeof point) == 0) {
            return true;
        }
    }
    bool is_near_prime = point[0] >= 0xec && point[0] <= 0xee && point[31] == 0x7f;
    for (int i = 1; i < 31; i++) {
        is_near_prime = is_near_prime && point[i] == 0xff;
    }
    return is_near_prime;
}

bool
smelt_ed25519_holds(const unsigned char signature[ED25519_SIGNATURE_BYTES],
                    const unsigned char public_key[ED25519_KEY_BYTES], const void *message, size_t size)
{
    unsigned char challenge[32];
    if (has_small_order(public_key)) {
        return false;
    }
    hash_to_scalar(challenge, signature, public_key, message, size);
    return crypto_eddsa_check_equation(signature, public_key, challenge) == 0;
}
