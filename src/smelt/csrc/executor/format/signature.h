/* The signature of a file: a record behind its last byte. */
#ifndef SMELT_EXECUTOR_SIGNATURE_H
#define SMELT_EXECUTOR_SIGNATURE_H

#include "executor/format/ed25519.h"

#include <stdint.h>

/* What a signature is for. A record is signed with it, so that a signature of weights is none of code. */
#define SIGNATURE_MAGIC "smeltsig"
#define WEIGHTS_SIGNATURE_MAGIC "smeltwts"
enum { SIGNATURE_VERSION = 1, SIGNED_DIGEST_BYTES = 64 };

typedef struct {
    char magic[8];
    int64_t version;
    unsigned char key[ED25519_KEY_BYTES]; /* the signer's public key */
    unsigned char signature[ED25519_SIGNATURE_BYTES];
} Signature;

/* What is signed: all before `signature` in the record, and the BLAKE2b-512 of the bytes that are signed for. */
typedef struct {
    unsigned char record[sizeof(Signature) - ED25519_SIGNATURE_BYTES];
    unsigned char digest[SIGNED_DIGEST_BYTES];
} SignedMessage;

/* A record without its signature, and the message that it is of. */
void smelt_signed_message(SignedMessage *message, const Signature *record, const void *data, size_t size);

/* Whether a file ends with a record, which is copied: its bytes need not be aligned. */
bool smelt_signature_find(Signature *record, const char *magic, const void *data, size_t size);

/* Whether the record holds for these bytes, by the key that it names. */
bool smelt_signature_holds(const Signature *record, const void *data, size_t size);

#endif
