/* SHA-256 and SHA-512: blocks of sixteen words, mixed into eight. Both hashes use one table: the constants of SHA-256 are
   the upper halves of those of SHA-512. */
#include "executor/format/sha2.h"

#include <string.h>

static const uint64_t constants[80] = {
    UINT64_C(0x428a2f98d728ae22), UINT64_C(0x7137449123ef65cd), UINT64_C(0xb5c0fbcfec4d3b2f), UINT64_C(0xe9b5dba58189dbbc),
    UINT64_C(0x3956c25bf348b538), UINT64_C(0x59f111f1b605d019), UINT64_C(0x923f82a4af194f9b), UINT64_C(0xab1c5ed5da6d8118),
    UINT64_C(0xd807aa98a3030242), UINT64_C(0x12835b0145706fbe), UINT64_C(0x243185be4ee4b28c), UINT64_C(0x550c7dc3d5ffb4e2),
    UINT64_C(0x72be5d74f27b896f), UINT64_C(0x80deb1fe3b1696b1), UINT64_C(0x9bdc06a725c71235), UINT64_C(0xc19bf174cf692694),
    UINT64_C(0xe49b69c19ef14ad2), UINT64_C(0xefbe4786384f25e3), UINT64_C(0x0fc19dc68b8cd5b5), UINT64_C(0x240ca1cc77ac9c65),
    UINT64_C(0x2de92c6f592b0275), UINT64_C(0x4a7484aa6ea6e483), UINT64_C(0x5cb0a9dcbd41fbd4), UINT64_C(0x76f988da831153b5),
    UINT64_C(0x983e5152ee66dfab), UINT64_C(0xa831c66d2db43210), UINT64_C(0xb00327c898fb213f), UINT64_C(0xbf597fc7beef0ee4),
    UINT64_C(0xc6e00bf33da88fc2), UINT64_C(0xd5a79147930aa725), UINT64_C(0x06ca6351e003826f), UINT64_C(0x142929670a0e6e70),
    UINT64_C(0x27b70a8546d22ffc), UINT64_C(0x2e1b21385c26c926), UINT64_C(0x4d2c6dfc5ac42aed), UINT64_C(0x53380d139d95b3df),
    UINT64_C(0x650a73548baf63de), UINT64_C(0x766a0abb3c77b2a8), UINT64_C(0x81c2c92e47edaee6), UINT64_C(0x92722c851482353b),
    UINT64_C(0xa2bfe8a14cf10364), UINT64_C(0xa81a664bbc423001), UINT64_C(0xc24b8b70d0f89791), UINT64_C(0xc76c51a30654be30),
    UINT64_C(0xd192e819d6ef5218), UINT64_C(0xd69906245565a910), UINT64_C(0xf40e35855771202a), UINT64_C(0x106aa07032bbd1b8),
    UINT64_C(0x19a4c116b8d2d0c8), UINT64_C(0x1e376c085141ab53), UINT64_C(0x2748774cdf8eeb99), UINT64_C(0x34b0bcb5e19b48a8),
    UINT64_C(0x391c0cb3c5c95a63), UINT64_C(0x4ed8aa4ae3418acb), UINT64_C(0x5b9cca4f7763e373), UINT64_C(0x682e6ff3d6b2b8a3),
    UINT64_C(0x748f82ee5defb2fc), UINT64_C(0x78a5636f43172f60), UINT64_C(0x84c87814a1f0ab72), UINT64_C(0x8cc702081a6439ec),
    UINT64_C(0x90befffa23631e28), UINT64_C(0xa4506cebde82bde9), UINT64_C(0xbef9a3f7b2c67915), UINT64_C(0xc67178f2e372532b),
    UINT64_C(0xca273eceea26619c), UINT64_C(0xd186b8c721c0c207), UINT64_C(0xeada7dd6cde0eb1e), UINT64_C(0xf57d4f7fee6ed178),
    UINT64_C(0x06f067aa72176fba), UINT64_C(0x0a637dc5a2c898a6), UINT64_C(0x113f9804bef90dae), UINT64_C(0x1b710b35131c471b),
    UINT64_C(0x28db77f523047d84), UINT64_C(0x32caab7b40c72493), UINT64_C(0x3c9ebe0a15c9bebc), UINT64_C(0x431d67c49c100d4c),
    UINT64_C(0x4cc5d4becb3e42b6), UINT64_C(0x597f299cfc657e2a), UINT64_C(0x5fcb6fab3ad6faec), UINT64_C(0x6c44198c4a475817),
};

/* The choice, majority and sums of the standard, for words of `bits` bits. */
#define ROTATED(word, bits, by) ((word) >> (by) | (word) << ((bits) - (by)))
#define CHOICE(e, f, g) (((e) & (f)) ^ (~(e) & (g)))
#define MAJORITY(a, b, c) (((a) & (b)) ^ ((a) & (c)) ^ ((b) & (c)))

/* mix(state, blocks, count): `count` blocks of sixteen big-endian words. The numbers are rotations, and shifts last. */
#define MIX(name, word_type, bits, rounds, shift, A, B, C, D, E, F, G, H, I, J, K, L)                                  \
    static void name(word_type state[8], const unsigned char *blocks, size_t count)                                    \
    {                                                                                                                  \
        for (; count; count--, blocks += 16 * sizeof(word_type)) {                                                     \
            word_type words[rounds], s[8];                                                                             \
            for (size_t i = 0; i < 16; i++) {                                                                          \
                words[i] = 0;                                                                                          \
                for (size_t k = 0; k < sizeof(word_type); k++) {                                                       \
                    words[i] = (word_type)(words[i] << 8 | blocks[i * sizeof(word_type) + k]);                         \
                }                                                                                                      \
            }                                                                                                          \
            for (size_t i = 16; i < rounds; i++) {                                                                     \
                const word_type x = words[i - 15], y = words[i - 2];                                                   \
                words[i] = words[i - 16] + words[i - 7] + (ROTATED(x, bits, A) ^ ROTATED(x, bits, B) ^ x >> C)         \
                           + (ROTATED(y, bits, D) ^ ROTATED(y, bits, E) ^ y >> F);                                     \
            }                                                                                                          \
            memcpy(s, state, sizeof s);                                                                                \
            for (size_t i = 0; i < rounds; i += 8) {                                                                   \
                _Pragma("GCC unroll 8") /* places rotate, not words */                                                 \
                for (size_t k = 0; k < 8; k++) {                                                                       \
                    word_type *h = &s[(7 - k) & 7], *d = &s[(3 - k) & 7];                                              \
                    const word_type a = s[(0 - k) & 7], e = s[(4 - k) & 7];                                            \
                    *h += (ROTATED(e, bits, G) ^ ROTATED(e, bits, H) ^ ROTATED(e, bits, I))                            \
                          + CHOICE(e, s[(5 - k) & 7], s[(6 - k) & 7])                                                  \
                          + (word_type)(constants[i + k] >> shift) + words[i + k];                                     \
                    *d += *h;                                                                                          \
                    *h += (ROTATED(a, bits, J) ^ ROTATED(a, bits, K) ^ ROTATED(a, bits, L))                            \
                          + MAJORITY(a, s[(1 - k) & 7], s[(2 - k) & 7]);                                               \
                }                                                                                                      \
            }                                                                                                          \
            for (size_t i = 0; i < 8; i++) {                                                                           \
                state[i] += s[i];                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
    }
MIX(mix256, uint32_t, 32, 64, 32, 7, 18, 3, 17, 19, 10, 6, 11, 25, 2, 13, 22)
MIX(mix512, uint64_t, 64, 80, 0, 1, 8, 7, 19, 61, 6, 14, 18, 41, 28, 34, 39)

/* Whole blocks are mixed where they are, the rest is kept; the end is a one bit, zeros, and the length. */
#define HASH(Hash, mix, add, end, length_bytes)                                                                        \
    static void add(Hash *hash, const unsigned char *bytes, size_t size)                                               \
    {                                                                                                                  \
        const size_t room = sizeof hash->block, kept = (size_t)(hash->bytes % room);                                   \
        hash->bytes += size;                                                                                           \
        if (kept) {                                                                                                    \
            const size_t taken = size < room - kept ? size : room - kept;                                              \
            memcpy(hash->block + kept, bytes, taken);                                                                  \
            if (kept + taken < room) {                                                                                 \
                return;                                                                                                \
            }                                                                                                          \
            mix(hash->state, hash->block, 1);                                                                          \
            bytes += taken;                                                                                            \
            size -= taken;                                                                                             \
        }                                                                                                              \
        mix(hash->state, bytes, size / room);                                                                          \
        if (size % room) {                                                                                             \
            memcpy(hash->block, bytes + size / room * room, size % room);                                              \
        }                                                                                                              \
    }                                                                                                                  \
    static void end(Hash *hash, unsigned char *digest)                                                                 \
    {                                                                                                                  \
        const size_t room = sizeof hash->block;                                                                        \
        const uint64_t bits = hash->bytes * 8;                                                                         \
        unsigned char last[2 * sizeof hash->block] = {0x80};                                                           \
        const size_t kept = (size_t)(hash->bytes % room);                                                              \
        const size_t size = (kept < room - length_bytes ? room : 2 * room) - kept;                                     \
        for (size_t i = 0; i < 8; i++) {                                                                               \
            last[size - 1 - i] = (unsigned char)(bits >> 8 * i);                                                       \
        }                                                                                                              \
        add(hash, last, size);                                                                                         \
        for (size_t i = 0; i < sizeof hash->state; i++) {                                                              \
            const size_t bytes = sizeof *hash->state;                                                                  \
            digest[i] = (unsigned char)(hash->state[i / bytes] >> 8 * (bytes - 1 - i % bytes));                        \
        }                                                                                                              \
    }
HASH(Sha256, mix256, add256, end256, 8)
HASH(Sha512, mix512, add512, end512, 16)

void
smelt_sha256_begin(Sha256 *hash)
{
    *hash = (Sha256){.state = {
        0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

void
smelt_sha256_add(Sha256 *hash, const void *data, size_t size)
{
    add256(hash, data, size);
}

void
smelt_sha256_end(Sha256 *hash, unsigned char digest[SHA256_BYTES])
{
    end256(hash, digest);
}

void
smelt_sha512_begin(Sha512 *hash)
{
    *hash = (Sha512){.state = {
        UINT64_C(0x6a09e667f3bcc908), UINT64_C(0xbb67ae8584caa73b), UINT64_C(0x3c6ef372fe94f82b),
        UINT64_C(0xa54ff53a5f1d36f1), UINT64_C(0x510e527fade682d1), UINT64_C(0x9b05688c2b3e6c1f),
        UINT64_C(0x1f83d9abfb41bd6b), UINT64_C(0x5be0cd19137e2179)}};
}

void
smelt_sha512_add(Sha512 *hash, const void *data, size_t size)
{
    add512(hash, data, size);
}

void
smelt_sha512_end(Sha512 *hash, unsigned char digest[SHA512_BYTES])
{
    end512(hash, digest);
}
