/* Decides whose files are opened: by the signer's public key, or by the hash of the file. All that is asked for must hold.
   Nothing of a file is read before, beyond what is hashed. */
#include "deploy/opening/trust.h"

#include "executor/format/sha2.h"
#include "executor/format/signature.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 32, DIGITS = 2 * NAME_BYTES /* of a public key, and of a SHA-256 */, LONGEST_PATH = 4096 };

static const char keys_variable[] = "SMELT_TRUSTED_KEYS", hashes_variable[] = "SMELT_ALLOWED_FILES";

static bool
is_listed(const unsigned char name[NAME_BYTES], const unsigned char (*list)[NAME_BYTES], size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (memcmp(name, list[i], NAME_BYTES) == 0) {
            return true;
        }
    }
    return false;
}

static int
digit(char letter)
{
    static const char digits[] = "0123456789abcdefABCDEF";
    const char *const place = letter ? strchr(digits, letter) : NULL;
    const int value = place ? (int)(place - digits) : -1;
    return value < 16 ? value : value - 6;
}

/* The next name of a list of hexadecimal numbers between commas or spaces. 0: the list ends, -1: this is no such list. */
static int
next_name(const char **text, unsigned char name[NAME_BYTES])
{
    *text += strspn(*text, ", \t\n");
    if (**text == 0) {
        return 0;
    }
    for (int i = 0; i < DIGITS; i++) {
        const int value = digit((*text)[i]);
        if (value < 0) {
            return -1;
        }
        name[i / 2] = (unsigned char)(i % 2 ? name[i / 2] << 4 | value : value);
    }
    *text += DIGITS;
    return **text == 0 || strchr(", \t\n", **text) ? 1 : -1;
}

/* Whether a variable names it. An empty or garbled list refuses everything: it was meant to restrict. */
static smelt_status
check_variable(const char *variable, const unsigned char name[NAME_BYTES], const char *refused, smelt_error *error)
{
    const char *text = getenv(variable);
    if (text == NULL) {
        return SMELT_OK;
    }
    unsigned char listed[NAME_BYTES];
    bool is_there = false;
    int more;
    while ((more = next_name(&text, listed)) > 0) {
        is_there = is_there || memcmp(name, listed, NAME_BYTES) == 0;
    }
    if (more < 0) {
        return smelt_fail(error, SMELT_ERROR_TRUST, "%s is no list of %d hexadecimal digits each: no file is opened", variable,
                          DIGITS);
    }
    return is_there ? SMELT_OK : smelt_fail(error, SMELT_ERROR_TRUST, "%s (%s)", refused, variable);
}

/* `record`: the signature of the file's first `size` bytes; NULL if the file is not signed. */
static smelt_status
check_signature(const File *file, const Signature *record, size_t size, const smelt_open_options *options, smelt_error *error)
{
    static const char unknown[] = "this file is signed by a key that is not trusted";
    if (record == NULL) {
        return smelt_fail(error, SMELT_ERROR_TRUST, "this file is not signed, and a signature is required");
    }
    if (options->keys && !is_listed(record->key, options->keys, options->key_count)) {
        return smelt_fail(error, SMELT_ERROR_TRUST, "%s", unknown);
    }
    const smelt_status status = check_variable(keys_variable, record->key, unknown, error);
    if (!status && !smelt_signature_holds(record, file->data, size)) {
        return smelt_fail(error, SMELT_ERROR_TRUST, "this file is not what was signed: it was changed");
    }
    return status;
}

static smelt_status
check_hash(const File *file, const smelt_open_options *options, smelt_error *error)
{
    static const char unknown[] = "this file is not in the list of allowed files";
    unsigned char digest[SHA256_BYTES];
    Sha256 hash;
    smelt_sha256_begin(&hash);
    smelt_sha256_add(&hash, file->data, file->size);
    smelt_sha256_end(&hash, digest);
    if (options->allowed && !is_listed(digest, options->allowed, options->allowed_count)) {
        return smelt_fail(error, SMELT_ERROR_TRUST, "%s", unknown);
    }
    return check_variable(hashes_variable, digest, unknown, error);
}

/* A copy of the file where anything is asked for, and its hash. */
static smelt_status
prepare(File *file, const smelt_open_options *options, bool *needs_signature, smelt_error *error)
{
    if ((options->key_count && options->keys == NULL) || (options->allowed_count && options->allowed == NULL)) {
        return smelt_fail(error, SMELT_ERROR_ARGUMENT, "a list of keys or hashes has a length and is NULL");
    }
    const bool needs_hash = options->allowed || getenv(hashes_variable);
    *needs_signature = options->keys || getenv(keys_variable);
    smelt_status status = SMELT_OK;
    if ((*needs_signature || needs_hash) && !(options->flags & SMELT_OPEN_VERIFIED_MAPPING)) {
        status = smelt_file_make_private(file, error);
    }
    return !status && needs_hash ? check_hash(file, options, error) : status;
}

smelt_status
smelt_trust_check(File *file, const smelt_open_options *options, smelt_error *error)
{
    Signature record;
    bool needs_signature;
    const smelt_status status = prepare(file, options, &needs_signature, error);
    if (status || !needs_signature) {
        return status;
    }
    const bool is_signed = smelt_signature_find(&record, SIGNATURE_MAGIC, file->data, file->size);
    return check_signature(file, is_signed ? &record : NULL, file->size - (is_signed ? sizeof record : 0), options, error);
}

/* The record in a file beside the one that it signs, and nothing else. */
static bool
read_beside(const char *path, Signature *record)
{
    char name[LONGEST_PATH], data[sizeof *record + 1];
    if (snprintf(name, sizeof name, "%s.sig", path) >= (int)sizeof name) {
        return false;
    }
    FILE *file = fopen(name, "rb");
    const size_t size = file ? fread(data, 1, sizeof data, file) : 0;
    if (file) {
        fclose(file);
    }
    return size == sizeof *record && smelt_signature_find(record, WEIGHTS_SIGNATURE_MAGIC, data, size);
}

smelt_status
smelt_trust_check_weights(File *file, const smelt_open_options *options, smelt_error *error)
{
    Signature record;
    bool needs_signature;
    smelt_error reason;
    smelt_status status = prepare(file, options, &needs_signature, &reason);
    if (!status && needs_signature) {
        const Signature *signature = read_beside(options->weights, &record) ? &record : NULL;
        status = check_signature(file, signature, file->size, options, &reason);
    }
    return status ? smelt_fail(error, status, "the file of weights: %.200s", reason.message) : SMELT_OK;
}
