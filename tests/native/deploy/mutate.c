/* Mutated files against the C runtime: none may crash it, hang it, leak, or make it touch memory that is not its own.

     mutate START COUNT seed.smelt…     files number START up to START + COUNT; prints a line of counts, or what went wrong

   It is built with the sanitizers, and with SMELT_TEST_LAUNCH: no code is ever executed; in the place of each kernel every
   byte that a launch was promised is read or written, so that the sanitizer sees a promise that does not hold. A file is
   taken apart into its sections, those are changed, and it is put together again with checksums that hold, so that
   most changes reach the checks behind them; some files are changed once more as a whole. Many changes know the rules of a
   field and go to just inside or just outside of them. Sections are also read alone, in memory that ends where they do,
   and everything that an accepted one refers to is read. */
#define _GNU_SOURCE
#include "executor/format/checksum.h"
#include "deploy/session_parts.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void __asan_set_death_callback(void (*callback)(void));

enum { MOST_FILES = 32, MOST_PARTS = 32, MOST_INPUTS = 32, LARGEST_INPUT = 1 << 12, ROOM = 1 << 14, LARGEST_BLOCK = 1 << 22 };

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

void
test_copy(const PlannedValue *to, const PlannedValue *source, int64_t bytes)
{
    if (bytes > to->bytes || bytes > source->bytes) {
        die("copies more than there is");
    }
    touch(source->pointer, source->bytes, false);
    touch(to->pointer, to->bytes, false);
}

#include "mutations.h"

/* --- a section by itself ---------------------------------------------------------------------------------------- */

static void
read_words(const int64_t *words, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        touched += (uint64_t)words[i];
    }
}

/* All that the records of a table refer to: strings up to their end, lists from the first to the last. */
static void
read_table(const Table *table)
{
    touched += strlen(table_string(table, table->header->name));
    for (int64_t i = 0; i < table->counts[STRINGS]; i++) {
        if ((int64_t)strlen(table_string(table, i)) != table->strings[i].length) {
            die("has a string that ends elsewhere");
        }
    }
    for (int i = 0; i < SECTION_COUNT; i++) {
        const int64_t *word = (const int64_t *)table->header + table->header->sections[i].first;
        for (int64_t k = 0; k < table->counts[i]; k++) {
            for (size_t f = 0; f < layout[i].width; f++, word++) {
                const Field *field = &layout[i].fields[f];
                const int64_t count = field->rule == SPAN ? word[1] : field->rule == INDEX || *word >= 0;
                if (field->rule == FREE || count == 0) {
                    continue;
                }
                if (*word < 0 || count < 0 || *word + count > table->counts[field->section]) {
                    die("refers to records that are not there");
                }
                const int64_t first = table->header->sections[field->section].first;
                const int64_t width = (int64_t)layout[field->section].width;
                read_words((const int64_t *)table->header + first + *word * width, width);
                read_words((const int64_t *)table->header + first + (*word + count - 1) * width, width);
            }
        }
    }
}

static void
evaluate_all(const Table *table)
{
    static int64_t symbols[64];
    for (int64_t i = 0; i < table->counts[EXPRESSIONS]; i++) {
        int64_t needs, value;
        const ExpressionRecord *record = &table->expressions[i];
        const int64_t *code = &table->instructions[record->code].op;
        if (smelt_expression_holds(code, record->code_count, &needs) && needs <= 64) {
            smelt_evaluate(code, record->code_count, symbols, &value);
        }
    }
}

static void
read_code(const Code *code)
{
    for (int64_t i = 0; i < code->header->kernels; i++) {
        touched += (unsigned char)code->image[code->entries[i]];
    }
    for (int64_t i = 0; i < code->header->slots; i++) {
        const SlotRecord *slot = &code->slots[i];
        uint64_t filled;
        memcpy(&filled, code->image + slot->offset, sizeof filled);
        touched += filled;
        if (code->names + slot->name + slot->length > code->image) {
            die("has a slot whose name ends elsewhere");
        }
        touch((char *)code->names + slot->name, slot->length, false);
    }
}

/* In a file there is always something behind a section; here the sanitizer knows where it ends. */
static void
read_alone(const Part *part)
{
    smelt_error error;
    Table table;
    Code code;
    void *alone = NULL;
    if (posix_memalign(&alone, 64, part->size ? part->size : 1)) {
        abort();
    }
    memcpy(alone, part->data, part->size);
    if (part->section.kind == TABLE_SECTION && smelt_table_read(&table, alone, (int64_t)part->size, 0, &error) == SMELT_OK) {
        read_table(&table);
        evaluate_all(&table);
    }
    if (part->section.kind == CODE_SECTION && smelt_code_read(&code, alone, (int64_t)part->size, &error) == SMELT_OK) {
        read_code(&code);
    }
    free(alone);
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
read_outputs(smelt_session *session, const smelt_model *model, size_t entry)
{
    smelt_error error;
    for (size_t i = 0; i < smelt_entry_output_count(model, entry); i++) {
        smelt_tensor output;
        if (smelt_output(session, i, &output, &error)) {
            die("has no output");
        }
        if (output.dtype != SMELT_NONE) {
            read_all(&output);
        }
    }
}

/* Inputs whose memory is just as large as they are; false: they would be too large, or are too many. */
static bool
make_inputs(const smelt_model *model, size_t entry, smelt_tensor *inputs, int64_t (*sizes)[SMELT_MAX_RANK], size_t count)
{
    const int64_t small = (int64_t)below(3);
    for (size_t i = 0; i < count; i++) {
        const smelt_info *info = smelt_entry_input(model, entry, i);
        int64_t elements = 1;
        for (int k = 0; k < info->rank; k++) {
            const int64_t low = info->dims[k].low, high = info->dims[k].high;
            const uint64_t more = below(3) ? below(4) : below(60);
            sizes[i][k] = below(4) && high >= low && more <= (uint64_t)high - (uint64_t)low ? low + (int64_t)more : low;
            if (elements && sizes[i][k] > LARGEST_INPUT / elements) {
                return false;
            }
            elements *= sizes[i][k];
        }
        const size_t bytes = (size_t)elements * smelt_dtype_size(info->dtype);
        inputs[i] = (smelt_tensor){info->dtype, info->rank, sizes[i], NULL, calloc(1, bytes ? bytes : 1)};
        memcpy(inputs[i].data, &small, bytes < sizeof small ? bytes : sizeof small);
        if (info->flags & SMELT_OPTIONAL && below(2)) {
            inputs[i].dtype = SMELT_NONE;
        }
    }
    return true;
}

static void
call(smelt_session *session, const smelt_model *model)
{
    smelt_tensor inputs[MOST_INPUTS] = {{0}};
    int64_t sizes[MOST_INPUTS][SMELT_MAX_RANK];
    smelt_error error;
    const size_t entry = below(smelt_model_entry_count(model)), count = smelt_entry_input_count(model, entry);
    if (smelt_session_choose(session, entry, &error)) {
        die("has an entry point that cannot be chosen");
    }
    if (count <= MOST_INPUTS && make_inputs(model, entry, inputs, sizes, count)) {
        if (smelt_run(session, inputs, count, &error) == SMELT_OK) {
            counts.ran++;
            read_outputs(session, model, entry);
        }
        else {
            counts.failed++;
            if (strnlen(error.message, sizeof error.message) >= sizeof error.message || !*error.message) {
                die("fails without a message");
            }
        }
    }
    for (size_t i = 0; i < MOST_INPUTS; i++) {
        free(inputs[i].data);
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

/* Data of registers, each inside of its section. */
static void
look_at_registers(const smelt_session *session, EntryRun *at)
{
    const File *file = &session->model->file;
    const Table *table = &at->entry->table;
    for (int64_t i = 0; i < table->counts[REGISTERS]; i++) {
        const int64_t kind = table->registers[i].kind;
        if (kind != CONSTANT_REGISTER && kind != STATE_REGISTER) {
            continue;
        }
        const char *begin = kind == STATE_REGISTER ? session->state : file_bytes(file, file->weights);
        const int64_t bytes = kind == STATE_REGISTER ? file->state->bytes : file->weights->bytes;
        int64_t held;
        char *data = run_data(&at->run, i, &held);
        if (data < begin || held < 0 || data - begin > bytes - held) {
            die("has data outside of its section");
        }
        touch(data, held, false);
    }
}

static void
use(const unsigned char *data, size_t size)
{
    const smelt_allocator allocator = {NULL, allocate, release};
    smelt_open_options options = {.size = sizeof options, .flags = below(4) ? 0 : SMELT_OPEN_TRUST_WEIGHTS,
                                  .allocator = &allocator, .device = SMELT_DEVICE_HOST}; /* no driver is given such files */
    smelt_session_options run = {.size = sizeof run, .threads = 1 + (int)below(3), .most_states = 100};
    smelt_model *model;
    smelt_session *session;
    smelt_error error;
    allocations_left = below(8) ? -1 : (long)below(40);
    options.flags |= SMELT_OPEN_WITHOUT_CODE;
    const bool is_whole = smelt_model_from_memory(data, size, &options, &model, &error) == SMELT_OK;
    if (is_whole) {
        smelt_model_close(model);
    }
    options.flags &= ~(unsigned)SMELT_OPEN_WITHOUT_CODE;
    if (smelt_model_from_memory(data, size, &options, &model, &error)) {
        counts.refused++;
        return;
    }
    counts.opened++;
    if (smelt_session_new(model, &run, &session, &error) == SMELT_OK) {
        for (size_t i = 0; i < model->entry_count; i++) {
            look_at_registers(session, &session->runs[i]);
        }
        for (int i = 0; i < 3; i++) {
            call(session, model);
        }
        use_state(session, model);
        if (is_whole && below(64) == 0) { /* else a target that is not used is damaged, and a checkpoint is refused */
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
        read_alone(&parts.parts[i]);
        free(parts.parts[i].data);
    }
    const uint64_t before = smelt_checksum(data, size);
    use(data, size);
    if (smelt_checksum(data, size) != before) {
        die("is written to");
    }
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
