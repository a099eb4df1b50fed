/* Ed25519 out of Monocypher's parts: its EdDSA over the curve, with SHA-512 as the hash. */
#include "executor/format/ed25519.h"

#include "executor/format/sha2.h"
#include "executor/third_party/monocypher.h"

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

bool
smelt_ed25519_holds(const unsigned char signature[ED25519_SIGNATURE_BYTES],
                    const unsigned char public_key[ED25519_KEY_BYTES], const void *message, size_t size)
{
    unsigned char challenge[32];
    hash_to_scalar(challenge, signature, public_key, message, size);
    return crypto_eddsa_check_equation(signature, public_key, challenge) == 0;
}
