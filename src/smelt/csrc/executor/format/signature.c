/* Finds the signature at the end of a file, and verifies it over all bytes before it. */
#include "executor/format/signature.h"

#include "executor/third_party/monocypher.h"

#include <string.h>

void
smelt_signed_message(SignedMessage *message, const Signature *record, const void *data, size_t size)
{
    memcpy(message->record, record, sizeof message->record);
    crypto_blake2b(message->digest, sizeof message->digest, data, size);
}

bool
smelt_signature_find(Signature *record, const char *magic, const void *data, size_t size)
{
    if (size < sizeof *record) {
        return false;
    }
    memcpy(record, (const char *)data + size - sizeof *record, sizeof *record);
    return memcmp(record->magic, magic, sizeof record->magic) == 0 && record->version == SIGNATURE_VERSION;
}

bool
smelt_signature_holds(const Signature *record, const void *data, size_t size)
{
    SignedMessage message;
    smelt_signed_message(&message, record, data, size);
    return smelt_ed25519_holds(record->signature, record->key, &message, sizeof message);
}
