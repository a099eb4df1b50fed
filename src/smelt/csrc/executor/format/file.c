/* Files of sections, artifacts and those of the disk cache: maps one, checks its header and directory, and verifies the
   checksums of its sections.

   A copy with another STATE section replaces a file as a whole, so that nobody ever sees half of it. */
#include "executor/format/file.h"

#include "executor/format/checksum.h"
#include "executor/format/signature.h"
#include "executor/platform/platform.h"

#include <string.h>

smelt_status
smelt_file_open(File *file, const char *path, smelt_error *error)
{
    int64_t bytes;
    const int descriptor = smelt_file_descriptor(path, &bytes);
    if (descriptor < 0) {
        return smelt_fail(error, SMELT_ERROR_IO, "%s: %s", path, smelt_system_problem().text);
    }
    if (bytes < (int64_t)sizeof(FileHeader)) {
        smelt_descriptor_close(descriptor);
        return smelt_fail(error, SMELT_ERROR_FILE, "%s is too short to be an artifact, or no file", path);
    }
    void *data = smelt_map_new(descriptor, 0, (size_t)bytes, false);
    if (data == NULL) {
        const SystemProblem problem = smelt_system_problem();
        smelt_descriptor_close(descriptor);
        return smelt_fail(error, SMELT_ERROR_IO, "%s cannot be mapped: %s", path, problem.text);
    }
    *file = (File){.data = data, .size = (size_t)bytes, .descriptor = descriptor, .mapped = (size_t)bytes};
    return SMELT_OK;
}

void
smelt_file_close(File *file)
{
    if (file->mapped) {
        smelt_map_free((void *)file->data, file->mapped);
    }
    if (file->copied) {
        smelt_code_pages_free((char *)file->data, file->copied);
    }
    if (file->descriptor >= 0) {
        smelt_descriptor_close(file->descriptor);
    }
}

smelt_status
smelt_file_make_private(File *file, smelt_error *error)
{
    if (file->descriptor < 0) {
        return SMELT_OK;
    }
    char *copy = smelt_file_copy_new(file->descriptor, file->size);
    if (copy == NULL) {
        const SystemProblem problem = smelt_system_problem();
        return smelt_fail(error, SMELT_ERROR_IO, "the file cannot be copied, %zu bytes: %s", file->size, problem.text);
    }
    smelt_file_close(file);
    *file = (File){.data = copy, .size = file->size, .descriptor = -1, .copied = file->size};
    return SMELT_OK;
}

/* --- checks ------------------------------------------------------------------------------------------------ */

/* Of header and directory, with the header's own checksum as zero. */
static uint64_t
head_checksum(const FileHeader *header, const FileSection *sections)
{
    unsigned char head[sizeof *header + MOST_SECTIONS * sizeof *sections];
    const size_t directory = (size_t)header->sections * sizeof *sections;
    FileHeader zeroed = *header;
    zeroed.checksum = 0;
    memcpy(head, &zeroed, sizeof zeroed);
    memcpy(head + sizeof zeroed, sections, directory);
    return smelt_checksum(head, sizeof zeroed + directory);
}

/* A signature behind the file, which was verified before if anybody asked for that. */
static void
leave_out_signature(File *file)
{
    Signature record;
    const int64_t bytes = ((const FileHeader *)file->data)->bytes;
    if (bytes >= 0 && (uint64_t)bytes + sizeof record == file->size
        && smelt_signature_find(&record, SIGNATURE_MAGIC, file->data, file->size)) {
        file->size -= sizeof record;
    }
}

static smelt_status
check_header(File *file, smelt_error *error)
{
    const FileHeader *header = (const FileHeader *)file->data;
    if (file->size < sizeof *header || header->magic != FILE_MAGIC) {
        return smelt_fail(error, SMELT_ERROR_FILE, "this is no artifact: it does not begin like one");
    }
    leave_out_signature(file);
    if (header->version != FILE_VERSION) {
        return smelt_fail(error, SMELT_ERROR_VERSION, "this artifact has version %lld, this runtime reads version %d",
                          (long long)header->version, FILE_VERSION);
    }
    if (header->bytes < 0 || (uint64_t)header->bytes != file->size) {
        return smelt_fail(error, SMELT_ERROR_FILE, "this artifact is cut: it has %zu bytes, and was written with %lld",
                          file->size, (long long)header->bytes);
    }
    if (header->sections < 1 || header->sections > MOST_SECTIONS || header->reserved
        || (uint64_t)header->sections > (file->size - sizeof *header) / sizeof(FileSection)) {
        return smelt_refuse(error, "header", 0, "number of sections");
    }
    file->header = header;
    file->sections = (const FileSection *)(header + 1);
    if (head_checksum(header, file->sections) != (uint64_t)header->checksum) {
        return smelt_refuse(error, "header", 0, "checksum: it is damaged");
    }
    return SMELT_OK;
}

static bool
is_zero(const char *bytes, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        if (bytes[i]) {
            return false;
        }
    }
    return true;
}

/* Sections follow each other, with nothing but zeros between them. */
static const char *
wrong_place(const File *file, int64_t number, int64_t end)
{
    const FileSection *section = &file->sections[number];
    if (section->kind < MANIFEST_SECTION || section->kind > STATE_SECTION) {
        return "kind";
    }
    const int64_t step = section->kind <= TABLE_SECTION ? FILE_ALIGN : FILE_PAGE;
    const int64_t begin = (end + step - 1) / step * step;
    if (section->offset != begin || begin > file->header->bytes || section->bytes < 0 || section->bytes > MOST_BYTES
        || file_stored(section) > file->header->bytes - begin) {
        return "offset";
    }
    return is_zero(file->data + end, begin - end) ? NULL : "offset: bytes before it are not zero";
}

smelt_status
smelt_file_check_sections(File *file, bool trusted, smelt_error *error)
{
    smelt_status status = check_header(file, error);
    if (status) {
        return status;
    }
    const int64_t count = file->header->sections;
    int64_t end = (int64_t)sizeof(FileHeader) + count * (int64_t)sizeof(FileSection);
    for (int64_t i = 0; i < count; i++) {
        const FileSection *section = &file->sections[i];
        const char *wrong = wrong_place(file, i, end);
        if (wrong) {
            return smelt_refuse(error, "sections", i, wrong);
        }
        end = section->offset + file_stored(section);
        if (!(trusted && section->kind >= WEIGHTS_SECTION)
            && smelt_checksum(file_bytes(file, section), (size_t)file_stored(section)) != (uint64_t)section->checksum) {
            return smelt_refuse(error, "sections", i, "checksum: it is damaged");
        }
    }
    if (end != file->header->bytes) {
        return smelt_refuse(error, "sections", count - 1, "length: the file goes on behind it");
    }
    return SMELT_OK;
}

/* --- artifacts --------------------------------------------------------------------------------------------- */

static SectionKind
expected_kind(int64_t number, int64_t count)
{
    if (number == 0) {
        return MANIFEST_SECTION;
    }
    if (number >= count - 2) {
        return number == count - 2 ? WEIGHTS_SECTION : STATE_SECTION;
    }
    return number % 2 ? TABLE_SECTION : CODE_SECTION;
}

/* Which target a section is of. */
static const char *
wrong_section(const File *file, int64_t number)
{
    const FileSection *section = &file->sections[number];
    const SectionKind kind = expected_kind(number, file->header->sections);
    const bool of_target = kind == TABLE_SECTION || kind == CODE_SECTION;
    if (section->kind != (int64_t)kind) {
        return "kind";
    }
    if (section->target != (of_target ? (number - 1) / 2 / file->entries : -1)) {
        return "target";
    }
    if (of_target ? section->machine <= ANY_MACHINE || section->machine > CUDA_MACHINE
                  : section->machine != ANY_MACHINE
                        || (section->features && !(kind == WEIGHTS_SECTION && section->features == WEIGHTS_ELSEWHERE))) {
        return "machine";
    }
    if (section->machine == CUDA_MACHINE && (section->features < 1 || section->features > MOST_CAPABILITY)) {
        return "features: no GPU is like that";
    }
    const bool follows = of_target && number > 1 && section[-1].target == section->target;
    if (follows && (section->machine != section[-1].machine || section->features != section[-1].features)) {
        return "machine: another than that of its target";
    }
    return NULL;
}

/* How many tables with their code the first target has: one for each entry point. */
static int64_t
count_entries(const File *file)
{
    const int64_t count = file->header->sections;
    int64_t entries = 1;
    while (1 + 2 * entries < count - 2 && file->sections[1 + 2 * entries].target == 0) {
        entries++;
    }
    return entries;
}

/* Sessions map state on their own, and write there: pages that were only read for their checksum would be in memory twice.
   What was mapped is read again when it is needed. */
static void
forget_pages(const File *file, const FileSection *section)
{
    const int64_t page = (int64_t)smelt_page_bytes(), begin = (section->offset + page - 1) / page * page;
    const int64_t end = (section->offset + section->bytes) / page * page;
    if (file->descriptor >= 0 && begin < end) {
        smelt_map_forget((char *)file->data + begin, (size_t)(end - begin));
    }
}

smelt_status
smelt_file_check(File *file, bool trusted, smelt_error *error)
{
    smelt_status status = smelt_file_check_sections(file, trusted, error);
    if (status) {
        return status;
    }
    const int64_t count = file->header->sections;
    if (count < 5 || count % 2 == 0) {
        return smelt_refuse(error, "header", 0, "number of sections");
    }
    file->entries = count_entries(file);
    if ((count - 3) / 2 % file->entries) {
        return smelt_refuse(error, "header", 0, "number of sections: a target has other entry points than the first");
    }
    for (int64_t i = 0; i < count; i++) {
        const char *wrong = wrong_section(file, i);
        if (wrong) {
            return smelt_refuse(error, "sections", i, wrong);
        }
    }
    file->manifest = &file->sections[0];
    file->weights = &file->sections[count - 2];
    file->state = &file->sections[count - 1];
    file->targets = (count - 3) / 2 / file->entries;
    forget_pages(file, file->state);
    return SMELT_OK;
}

/* --- saving ------------------------------------------------------------------------------------------------ */

typedef struct {
    const File *file;
    const void *state;
} Copy;

/* Header and directory anew, then what is between them and STATE, which is the last section. */
static bool
write_copy(int descriptor, const void *context)
{
    const File *file = ((const Copy *)context)->file;
    const void *state = ((const Copy *)context)->state;
    FileSection sections[MOST_SECTIONS];
    FileHeader header = *file->header;
    const size_t directory = (size_t)header.sections * sizeof *sections, head = sizeof header + directory;
    memcpy(sections, file->sections, directory);
    FileSection *last = &sections[header.sections - 1];
    last->checksum = (int64_t)smelt_checksum(state, (size_t)last->bytes);
    header.checksum = (int64_t)head_checksum(&header, sections);
    return smelt_descriptor_write(descriptor, (const char *)&header, sizeof header)
           && smelt_descriptor_write(descriptor, (const char *)sections, directory)
           && smelt_descriptor_write(descriptor, file->data + head, (size_t)last->offset - head)
           && smelt_descriptor_write(descriptor, state, (size_t)last->bytes);
}

smelt_status
smelt_file_save(const File *file, const char *path, const void *state, smelt_error *error)
{
    const Copy copy = {file, state};
    SystemProblem problem;
    return smelt_file_replace(path, write_copy, &copy, &problem)
               ? SMELT_OK
               : smelt_fail(error, SMELT_ERROR_IO, "%s cannot be written: %s", path, problem.text);
}
