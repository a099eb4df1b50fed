/* A file of sections in memory, an artifact or one of the disk cache: its header, its directory and its sections. */
#ifndef SMELT_EXECUTOR_FILE_H
#define SMELT_EXECUTOR_FILE_H

#include "executor/error.h"
#include "executor/records.h"

#include <stdbool.h>

typedef struct {
    const char *data;
    size_t size;
    int descriptor; /* -1: memory */
    size_t mapped, copied; /* so many bytes of its own, from `data` on; neither: memory of the caller's */
    const FileHeader *header;
    const FileSection *sections;
    const FileSection *manifest, *weights, *state;
    int64_t targets, entries; /* of each target so many entry points, each a TABLE and a CODE, from section 1 on */
} File;

/* Maps a file. smelt_file_close lets it go. */
smelt_status smelt_file_open(File *file, const char *path, smelt_error *error);
void smelt_file_close(File *file);

/* A copy in memory takes the place of a mapped file: nobody else can change it. */
smelt_status smelt_file_make_private(File *file, smelt_error *error);

/* That nothing of it is damaged, whatever sections it has. */
smelt_status smelt_file_check_sections(File *file, bool trusted, smelt_error *error);

/* That it is an artifact, too. `trusted`: without the bytes of weights and state. */
smelt_status smelt_file_check(File *file, bool trusted, smelt_error *error);

static inline const FileSection *
file_table(const File *file, int64_t target, int64_t entry)
{
    return &file->sections[1 + 2 * (target * file->entries + entry)];
}

static inline const FileSection *
file_code(const File *file, int64_t target, int64_t entry)
{
    return &file->sections[2 + 2 * (target * file->entries + entry)];
}

enum { WEIGHTS_ELSEWHERE = 1 }; /* as the features of WEIGHTS: its bytes are in a file of their own */

/* How many bytes of a section the file has. */
static inline int64_t
file_stored(const FileSection *section)
{
    return section->kind == WEIGHTS_SECTION && section->features == WEIGHTS_ELSEWHERE ? 0 : section->bytes;
}

static inline const char *
file_bytes(const File *file, const FileSection *section)
{
    return file->data + section->offset;
}

/* A copy of the file with another STATE section, as a whole or not at all. */
smelt_status smelt_file_save(const File *file, const char *path, const void *state, smelt_error *error);

#endif
