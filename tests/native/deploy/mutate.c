/* Mutated files against the C runtime: none may crash it, hang it, leak, or make it touch memory that is not its own.

     mutate START COUNT seed.smelt…     files number START up to START + COUNT; prints a line of counts, or what went wrong

   It is built with the sanitizers, and with SMELT_TEST_LAUNCH: no code is ever executed; in the place of each kernel every
   byte that a launch was promised is read or written, so that the sanitizer sees a promise that does not hold. A file is
   taken apart into its sections, those are changed, and it is put together again with checksums that hold, so that
   most changes reach the checks behind them; some files are changed once more as a whole. */
#define _GNU_SOURCE
#include "deploy/format/checksum.h"
#include "deploy/session.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void __asan_set_death_callback(void (*callback)(void));

enum { MOST_FILES = 32, MOST_PARTS = 32, ROOM = 1 << 12, LARGEST_BLOCK = 1 << 22 };

static uint64_t number, random_state, touched;
static long balance, allocations_left;
static struct { int refused, opened, ran, failed; } counts;

static uint64_t
draw(void)
{
    random_state += UINT64_C(0x9E3779B97F4A7C15); /* splitmix64 */
    uint64_t mixed = random_state;
    mixed = (mixed ^ mixed >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    mixed = (mixed ^ mixed >> 27) * UINT64_C(0x94D049BB133111EB);
    return mixed ^ mixed >> 31;
}

static uint64_t
below(uint64_t limit)
{
    return limit ? draw() % limit : 0;
}

static void
die(const char *why)
{
    fprintf(stderr, "file %llu %s\n", (unsigned long long)number, why);
    abort();
}

static void
tell_number(void)
{
    fprintf(stderr, "at file %llu\n", (unsigned long long)number);
}

static void
hang(int signal)
{
    (void)signal;
    static const char text[] = "hangs\n";
    (void)!write(2, text, sizeof text - 1);
    tell_number();
    _exit(99);
}

/* --- memory that is counted, small, and sometimes not there --------------------------------------------------- */

static void *
allocate(void *context, size_t size, size_t alignment)
{
    (void)context;
    void *memory = NULL;
    if (size > LARGEST_BLOCK || allocations_left-- == 0 || posix_memalign(&memory, alignment, size)) {
        return NULL;
    }
    balance += (long)size;
    return memory;
}

static void
release(void *context, void *memory, size_t size)
{
    (void)context;
    balance -= (long)size;
    free(memory);
}

/* --- in the place of kernels ---------------------------------------------------------------------------------- */

static void
touch(char *at, int64_t bytes, bool writes)
{
    const int64_t few = bytes < 256 ? bytes : 256;
    for (int64_t i = 0; i < few; i++) { /* the first and the last */
        touched += (unsigned char)at[i] + (unsigned char)at[bytes - 1 - i];
        if (writes) {
            at[i] = at[bytes - 1 - i] = (char)(draw() & 1);
        }
    }
}

void
test_launch(const Table *table, const LaunchRecord *launch, const ValueRecord *records, const PlannedValue *values,
            char *workspace, int64_t workspace_bytes)
{
    for (int64_t i = 0; i < launch->value_count; i++) {
        const int64_t value = table->references[launch->values + i].number;
        touch(values[value].pointer, values[value].bytes, records[value].writes);
    }
    touch(workspace, workspace_bytes, true);
}

/* --- files in parts ------------------------------------------------------------------------------------------- */

typedef struct {
    FileSection section;
    unsigned char *data;
    size_t size;
} Part;

typedef struct {
    Part parts[MOST_PARTS];
    int count;
} Parts;

static struct { unsigned char *data; size_t size; } seeds[MOST_FILES];
static int seed_count;

static void
take_apart(int seed, Parts *parts)
{
    const FileHeader *header = (const FileHeader *)seeds[seed].data;
    const FileSection *sections = (const FileSection *)(header + 1);
    parts->count = (int)header->sections;
    for (int i = 0; i < parts->count; i++) {
        Part *part = &parts->parts[i];
        part->section = sections[i];
        part->size = (size_t)sections[i].bytes;
        part->data = malloc(part->size + ROOM);
        memcpy(part->data, seeds[seed].data + sections[i].offset, part->size);
    }
}

static unsigned char *
put_together(const Parts *parts, size_t *size)
{
    FileHeader header = {FILE_MAGIC, FORMAT_VERSION, 0, parts->count, 0, 0};
    FileSection sections[MOST_PARTS];
    size_t end = sizeof header + (size_t)parts->count * sizeof *sections;
    for (int i = 0; i < parts->count; i++) {
        const int64_t kind = parts->parts[i].section.kind;
        const size_t step = kind == CODE_SECTION || kind == WEIGHTS_SECTION || kind == STATE_SECTION ? FILE_PAGE : FILE_ALIGN;
        sections[i] = parts->parts[i].section;
        sections[i].offset = (int64_t)((end + step - 1) / step * step);
        sections[i].bytes = (int64_t)parts->parts[i].size;
        sections[i].checksum = (int64_t)smelt_checksum(parts->parts[i].data, parts->parts[i].size);
        end = (size_t)sections[i].offset + parts->parts[i].size;
    }
    header.bytes = (int64_t)end;
    unsigned char *data = NULL;
    if (posix_memalign((void **)&data, 64, end)) {
        abort();
    }
    memset(data, 0, end);
    memcpy(data + sizeof header, sections, (size_t)parts->count * sizeof *sections);
    for (int i = 0; i < parts->count; i++) {
        memcpy(data + sections[i].offset, parts->parts[i].data, parts->parts[i].size);
    }
    memcpy(data, &header, sizeof header);
    header.checksum = (int64_t)smelt_checksum(data, sizeof header + (size_t)parts->count * sizeof *sections);
    memcpy(data, &header, sizeof header);
    *size = end;
    return data;
}

/* --- changes -------------------------------------------------------------------------------------------------- */

static int64_t
odd_number(void)
{
    static const int64_t numbers[] = {0, 1, 2, 3, -1, -2, 7, 8, 16, 64, 255, 4096, INT32_MAX, INT64_C(1) << 32,
                                      INT64_C(1) << 47, INT64_C(1) << 62, INT64_MAX, INT64_MIN, INT64_MAX - 7};
    const uint64_t which = below(6);
    if (which > 2) {
        return (int64_t)below(which == 3 ? 8 : which == 4 ? 40 : 200); /* often the number of another record */
    }
    return which == 0 ? (int64_t)draw() : numbers[below(sizeof numbers / sizeof *numbers)];
}

static void
change_word(unsigned char *data, size_t size)
{
    if (size < 8) {
        return;
    }
    const size_t place = below(size / 8) * 8;
    int64_t word;
    memcpy(&word, data + place, 8);
    switch (below(5)) {
    case 0: word = (int64_t)((uint64_t)word + below(7) - 3); break;
    case 1: word ^= (int64_t)(UINT64_C(1) << below(64)); break;
    case 2: word = word > 0 ? (int64_t)below((uint64_t)word) : word; break;
    default: word = odd_number();
    }
    memcpy(data + place, &word, 8);
}

static void
swap_words(unsigned char *data, size_t size)
{
    if (size >= 16) {
        const size_t one = below(size / 8) * 8, other = below(size / 8) * 8;
        unsigned char kept[8];
        memcpy(kept, data + one, 8);
        memcpy(data + one, data + other, 8);
        memcpy(data + other, kept, 8);
    }
}

/* A record of a table more or less, all that comes behind it moved, and said so in its header. */
static void
change_length(Part *part)
{
    TableHeader *header = (TableHeader *)part->data;
    if (part->size < sizeof *header) {
        return;
    }
    const int section = (int)below(SECTION_COUNT);
    const int64_t width = header->sections[section].width, count = header->sections[section].count;
    const int64_t first = header->sections[section].first;
    const int64_t words = (int64_t)part->size / 8;
    if (width <= 0 || width > 64 || first < 0 || first > words || count < 0 || count > (words - first) / width) {
        return;
    }
    const bool more = below(2) == 0 || count == 0;
    const size_t record = (size_t)width * 8, place = (size_t)first * 8 + below((uint64_t)count) * record;
    if (more) {
        memmove(part->data + place + record, part->data + place, part->size - place);
        for (size_t i = 0; i < record && below(2); i += 8) {
            const int64_t word = odd_number();
            memcpy(part->data + place + i, &word, 8);
        }
        part->size += record;
    }
    else {
        memmove(part->data + place, part->data + place + record, part->size - place - record);
        part->size -= record;
    }
    const int64_t moved = more ? 1 : -1;
    header->sections[section].count += moved;
    for (int i = section + 1; i < SECTION_COUNT; i++) {
        header->sections[i].first = (int64_t)((uint64_t)header->sections[i].first + (uint64_t)(moved * width));
    }
    header->blob = (int64_t)((uint64_t)header->blob + (uint64_t)(moved * width * 8));
    header->bytes = (int64_t)((uint64_t)header->bytes + (uint64_t)(moved * width * 8));
}

static void
copy_block(unsigned char *data, size_t size)
{
    if (size >= 16) {
        const size_t from = below(size / 8) * 8, to = below(size / 8) * 8;
        size_t length = below(32) * 8;
        length = length < size - from ? length : size - from;
        length = length < size - to ? length : size - to;
        memmove(data + to, data + from, length);
    }
}

static void
change_part(Part *part, const Parts *all)
{
    switch (below(16)) {
    case 0:
        if (part->size) {
            part->data[below(part->size)] ^= (unsigned char)(1u << below(8));
        }
        break;
    case 1: swap_words(part->data, part->size); break;
    case 2: copy_block(part->data, part->size); break;
    case 3: part->size = below(part->size + 1); break;
    case 4:
        part->size += below(64);
        break;
    case 5: {
        const Part *other = &all->parts[below((uint64_t)all->count)];
        const size_t length = other->size < part->size ? other->size : part->size;
        memmove(part->data, other->data, below(length + 1));
        break;
    }
    case 6: case 7: case 8:
        if (part->section.kind == TABLE_SECTION) {
            change_length(part);
            break;
        }
        /* fall through */
    default: change_word(part->data, part->section.kind == CODE_SECTION && part->size > 512 ? 512 : part->size);
    }
}

static void
change_directory(Parts *parts)
{
    FileSection *section = &parts->parts[below((uint64_t)parts->count)].section;
    const int one = (int)below((uint64_t)parts->count), other = (int)below((uint64_t)parts->count);
    const Part kept = parts->parts[one];
    switch (below(6)) {
    case 0: section->kind = odd_number(); break;
    case 1: section->target = odd_number(); break;
    case 2: section->machine = odd_number(); break;
    case 3: section->features = odd_number(); break;
    case 4:
        parts->parts[one] = parts->parts[other];
        parts->parts[other] = kept;
        break;
    default: parts->parts[one].section = parts->parts[other].section;
    }
}

/* The whole file, its checksums left as they are. */
static void
change_whole(unsigned char *data, size_t *size)
{
    for (uint64_t i = 1 + below(4); i-- > 0 && *size;) {
        switch (below(4)) {
        case 0: data[below(*size)] ^= (unsigned char)(1u << below(8)); break;
        case 1: *size = below(*size + 1); break;
        case 2: change_word(data, *size < 512 ? *size : 512); break;
        default: swap_words(data, *size);
        }
    }
}

/* --- what is done with a file --------------------------------------------------------------------------------- */

static void
read_all(const smelt_tensor *tensor)
{
    int64_t bytes = (int64_t)smelt_dtype_size(tensor->dtype);
    for (int i = 0; i < tensor->rank; i++) {
        bytes *= tensor->sizes[i];
    }
    touch(tensor->data, bytes, false);
}

static void
call(smelt_session *session, const smelt_model *model)
{
    static char memory[1 << 16];
    smelt_tensor inputs[32];
    int64_t sizes[32][SMELT_MAX_RANK];
    smelt_error error;
    const size_t count = smelt_model_input_count(model);
    if (count > 32) {
        return;
    }
    for (size_t i = 0; i < count; i++) {
        const smelt_info *info = smelt_model_input(model, i);
        int64_t elements = 1;
        for (int k = 0; k < info->rank; k++) {
            const int64_t low = info->dims[k].low, high = info->dims[k].high;
            sizes[i][k] = low < high - 4 && below(2) ? low + 1 + (int64_t)below(3) : low;
            if (elements && sizes[i][k] > (int64_t)sizeof memory / 16 / elements) {
                return; /* larger than what is there */
            }
            elements *= sizes[i][k];
        }
        inputs[i] = (smelt_tensor){info->dtype, info->rank, sizes[i], NULL, memory};
        if (info->flags & SMELT_OPTIONAL && below(2)) {
            inputs[i].dtype = SMELT_NONE;
        }
    }
    const int64_t small = (int64_t)below(3);
    memcpy(memory, &small, sizeof small);
    if (smelt_run(session, inputs, count, &error)) {
        counts.failed++;
        if (strnlen(error.message, sizeof error.message) >= sizeof error.message || !*error.message) {
            die("fails without a message");
        }
        return;
    }
    counts.ran++;
    for (size_t i = 0; i < smelt_model_output_count(model); i++) {
        smelt_tensor output;
        if (smelt_output(session, i, &output, &error)) {
            die("has no output");
        }
        if (output.dtype != SMELT_NONE) {
            read_all(&output);
        }
    }
}

static void
use_state(smelt_session *session, const smelt_model *model)
{
    static char memory[1 << 16];
    smelt_error error;
    for (size_t i = 0; i < smelt_model_state_count(model) && i < 8; i++) {
        const smelt_info *info = smelt_model_state(model, i);
        int64_t bytes = (int64_t)smelt_dtype_size(info->dtype);
        for (int k = 0; k < info->rank && bytes <= (int64_t)sizeof memory; k++) {
            bytes = info->dims[k].low > (int64_t)sizeof memory ? INT32_MAX : bytes * info->dims[k].low;
        }
        if (bytes <= (int64_t)sizeof memory) {
            smelt_state_read(session, i, memory, (size_t)bytes, &error);
            smelt_state_write(session, i, memory, (size_t)bytes, &error);
        }
    }
    smelt_session_reset(session, &error);
}

/* A checkpoint: what is saved must be loaded. */
static void
save_and_load(smelt_session *session)
{
    smelt_error error;
    char path[64];
    snprintf(path, sizeof path, "/dev/shm/smelt-mutate-%d", (int)getpid());
    const bool may_fail = allocations_left >= 0;
    if (smelt_session_save(session, path, &error) == SMELT_OK) {
        if (smelt_session_load(session, path, &error) && !may_fail && error.status != SMELT_ERROR_MEMORY) {
            die(error.message);
        }
        unlink(path);
    }
}

static void
use(const unsigned char *data, size_t size)
{
    const smelt_allocator allocator = {NULL, allocate, release};
    smelt_open_options options = {sizeof options, below(4) ? 0 : SMELT_OPEN_TRUST_WEIGHTS, &allocator};
    smelt_session_options run = {.size = sizeof run, .threads = 1 + (int)below(3), .most_states = 100};
    smelt_model *model;
    smelt_session *session;
    smelt_error error;
    allocations_left = below(8) ? -1 : (long)below(40);
    options.flags |= SMELT_OPEN_WITHOUT_CODE;
    if (smelt_model_from_memory(data, size, &options, &model, &error) == SMELT_OK) {
        smelt_model_close(model);
    }
    options.flags &= ~(unsigned)SMELT_OPEN_WITHOUT_CODE;
    if (smelt_model_from_memory(data, size, &options, &model, &error)) {
        counts.refused++;
        return;
    }
    counts.opened++;
    if (smelt_session_new(model, &run, &session, &error) == SMELT_OK) {
        for (int i = 0; i < 3; i++) {
            call(session, model);
        }
        use_state(session, model);
        if (below(64) == 0) {
            save_and_load(session);
        }
        smelt_session_free(session);
    }
    smelt_model_close(model);
}

static void
examine(void)
{
    Parts parts;
    size_t size;
    random_state = number * UINT64_C(0xD1342543DE82EF95) + 1;
    take_apart((int)below((uint64_t)seed_count), &parts);
    for (uint64_t i = below(4) ? 1 : 1 + below(6); i-- > 0;) {
        if (below(24) == 0) {
            change_directory(&parts);
            continue;
        }
        Part *part = &parts.parts[below((uint64_t)parts.count)];
        for (int k = 0; k < 4 && part->section.kind != TABLE_SECTION && below(3); k++) { /* most are of tables */
            part = &parts.parts[below((uint64_t)parts.count)];
        }
        change_part(part, &parts);
    }
    unsigned char *data = put_together(&parts, &size);
    if (below(12) == 0) {
        change_whole(data, &size);
        void *cut = NULL; /* so that the sanitizer knows where it ends */
        if (posix_memalign(&cut, 64, size ? size : 1)) {
            abort();
        }
        memcpy(cut, data, size);
        free(data);
        data = cut;
    }
    for (int i = 0; i < parts.count; i++) {
        free(parts.parts[i].data);
    }
    use(data, size);
    free(data);
    if (balance) {
        die("leaks");
    }
}

static void
read_seed(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL || seed_count == MOST_FILES) {
        fprintf(stderr, "%s cannot be read\n", path);
        exit(2);
    }
    fseek(file, 0, SEEK_END);
    const size_t size = (size_t)ftell(file);
    rewind(file);
    seeds[seed_count].data = malloc(size);
    seeds[seed_count].size = fread(seeds[seed_count].data, 1, size, file);
    seed_count++;
    fclose(file);
}

static int
count_mappings(void)
{
    FILE *file = fopen("/proc/self/maps", "r");
    int lines = 0;
    for (int read; file && (read = fgetc(file)) != EOF;) {
        lines += read == '\n';
    }
    if (file) {
        fclose(file);
    }
    return lines;
}

int
main(int argc, char **argv)
{
    if (argc < 4) {
        return 2;
    }
    const uint64_t start = strtoull(argv[1], NULL, 10), count = strtoull(argv[2], NULL, 10);
    for (int i = 3; i < argc; i++) {
        read_seed(argv[i]);
    }
    const int mappings = count_mappings();
    __asan_set_death_callback(tell_number);
    signal(SIGALRM, hang);
    for (number = start; number < start + count; number++) {
        alarm(20);
        examine();
    }
    alarm(0);
    if (count_mappings() > mappings + 1000) { /* the sanitizer keeps what was freed for a while */
        die("or one before it leaves memory mapped");
    }
    printf("{\"files\": %llu, \"refused\": %d, \"opened\": %d, \"ran\": %d, \"failed\": %d}\n", (unsigned long long)count,
           counts.refused, counts.opened, counts.ran, counts.failed);
    for (int i = 0; i < seed_count; i++) {
        free(seeds[i].data);
    }
    return 0;
}
