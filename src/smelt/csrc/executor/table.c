/* Reads a table and checks every reference in it, so that the code that runs it need not. */
#include "executor/table.h"

#include <string.h>

typedef enum { FREE, INDEX, OPTIONAL, SPAN, LAYOUT, BELOW, LIST, OPTIONAL_LIST } Rule;

typedef struct {
    const char *name;
    Rule rule;
    int section; /* or how many members there are */
} Field;

#define FIELD_ROW(field, rule, section) {#field, rule, section},
#define FIELD_ROWS(section, NUMBER, Type, FIELDS) static const Field section##_fields[] = {FIELDS(FIELD_ROW)};
TABLE_SECTIONS(FIELD_ROWS)

#define LENGTH(array) (sizeof(array) / sizeof(array)[0])
#define SECTION_ROW(section, NUMBER, Type, FIELDS) {#section, section##_fields, LENGTH(section##_fields)},
static const struct {
    const char *name;
    const Field *fields;
    size_t width;
} sections[] = {TABLE_SECTIONS(SECTION_ROW)};

/* --- the rules of single fields ----------------------------------------------------------------------- */

static bool
is_index(const Table *table, int section, int64_t number)
{
    return number >= 0 && number < table->counts[section];
}

static bool
is_span(const Table *table, int section, int64_t first, int64_t count)
{
    const int64_t limit = table->counts[section];
    return first >= 0 && first <= limit && count >= 0 && count <= limit - first;
}

static bool
is_layout(const Table *table, int64_t first, int64_t rank)
{
    const int64_t limit = table->counts[NUMBERS];
    return first >= 0 && rank >= 0 && rank < limit && first < limit && 2 * rank + 1 <= limit - first;
}

/* Whether references are to records of a section; `least`: -1 where they may be to none. */
static bool
is_list(const Table *table, int section, int64_t first, int64_t count, int64_t least)
{
    bool fits = is_span(table, REFERENCES, first, count);
    for (int64_t i = 0; fits && i < count; i++) {
        const int64_t number = table->references[first + i].number;
        fits = number >= least && number < table->counts[section];
    }
    return fits;
}

static bool
keeps_rule(const Table *table, const Field *field, const int64_t *word)
{
    switch (field->rule) {
    case INDEX:
        return is_index(table, field->section, *word);
    case OPTIONAL:
        return *word == -1 || is_index(table, field->section, *word);
    case SPAN:
        return is_span(table, field->section, word[0], word[1]);
    case LAYOUT:
        return is_layout(table, word[0], word[1]);
    case BELOW:
        return *word >= 0 && *word < field->section;
    case LIST:
    case OPTIONAL_LIST:
        return is_list(table, field->section, word[0], word[1], field->rule == LIST ? 0 : -1);
    default:
        return true;
    }
}

/* `budget`: how long lists may be in all. Many records could share one long list, and checking each would take for ever. */
static smelt_status
check_rules(const Table *table, int section, int64_t *budget, smelt_error *error)
{
    const size_t width = sections[section].width;
    const int64_t *word = (const int64_t *)table->header + table->header->sections[section].first;
    for (int64_t record = 0; record < table->counts[section]; record++) {
        for (size_t i = 0; i < width; i++, word++) {
            const Field *field = &sections[section].fields[i];
            if (!keeps_rule(table, field, word)) {
                return smelt_refuse(error, sections[section].name, record, field->name);
            }
            if (field->rule == SPAN || field->rule == LIST || field->rule == OPTIONAL_LIST) {
                *budget -= word[1];
            }
        }
        if (*budget < 0) {
            return smelt_refuse(error, sections[section].name, record, "length of its lists");
        }
    }
    return SMELT_OK;
}

/* --- what depends on more than one field ------------------------------------------------------------ */

static smelt_status
check_strings(const Table *table, smelt_error *error)
{
    const int64_t size = table->header->bytes - table->header->blob;
    int64_t budget = 16 * size; /* many could be the same long one */
    for (int64_t i = 0; i < table->counts[STRINGS]; i++) {
        const StringRecord *string = &table->strings[i];
        if (string->offset < 0 || string->offset >= size || string->length < 0
            || string->length >= size - string->offset || (budget -= string->length) < 0) {
            return smelt_refuse(error, "strings", i, "length");
        }
        const char *text = table->blob + string->offset;
        if (text[string->length] || memchr(text, 0, (size_t)string->length)) {
            return smelt_refuse(error, "strings", i, "end");
        }
    }
    return SMELT_OK;
}

/* The items of a list follow it, in the order of the lists. So there is no cycle, and no item belongs to two lists: a few
   shared lists could stand for more items than fit memory. */
static smelt_status
check_items(const Table *table, smelt_error *error)
{
    int64_t end = 0; /* of the list before */
    for (int64_t i = 0; i < table->counts[ITEMS]; i++) {
        const ItemRecord *item = &table->items[i];
        bool fits = true;
        if (item->kind == OBJECT_ITEM) {
            fits = is_index(table, OBJECTS, item->what);
        }
        else if (item->kind == VALUE_ITEM) {
            fits = is_index(table, TENSORS, item->what)
                   && (item->numbers == -1 || is_layout(table, item->numbers, item->length));
        }
        else if (item->kind == TUPLE_ITEM || item->kind == LIST_ITEM) {
            fits = item->what > i && item->what >= end && is_span(table, ITEMS, item->what, item->length);
            end = fits ? item->what + item->length : end;
        }
        if (!fits) {
            return smelt_refuse(error, "items", i, "kind");
        }
    }
    return SMELT_OK;
}

static smelt_status
check_steps(const Table *table, smelt_error *error)
{
    static const int section_of[] = {
        [ALLOCATE_STEP] = TENSORS, [LAUNCH_STEP] = LAUNCHES, [COPY_STEP] = COPIES, [CALL_STEP] = CALLS,
        [DROP_STEP] = DROPS};
    for (int64_t i = 0; i < table->counts[STEPS]; i++) {
        const StepRecord *step = &table->steps[i];
        if (!is_index(table, section_of[step->kind], step->place)) {
            return smelt_refuse(error, "steps", i, "place");
        }
    }
    return SMELT_OK;
}

static smelt_status
check_tensors_given(const Table *table, smelt_error *error)
{
    for (int64_t i = 0; i < table->counts[LAUNCHES]; i++) {
        const LaunchRecord *launch = &table->launches[i];
        if (launch->value_count != table->kernels[launch->kernel].buffers) {
            return smelt_refuse(error, "launches", i, "value_count: its kernel takes another number of buffers");
        }
        if (!is_list(table, TENSORS, launch->values, launch->value_count, 0)) {
            return smelt_refuse(error, "launches", i, "values");
        }
    }
    for (int64_t i = 0; i < table->counts[NATIVES]; i++) {
        const NativeRecord *native = &table->natives[i];
        for (int64_t k = 0; k < native->tensor_count; k++) {
            if (table->items[native->tensors + k].kind != VALUE_ITEM) {
                return smelt_refuse(error, "natives", i, "tensor");
            }
        }
    }
    return SMELT_OK;
}

/* A program of a process: its tensors are as many as it counts, one after the other, and it has no values of a file. */
static smelt_status
check_program(const Table *table, smelt_error *error)
{
    const ProgramRecord *program = table->programs;
    const int64_t tensors = table->counts[TENSORS];
    const bool fits = program->inputs >= 0 && program->inputs <= tensors && program->constants >= 0
                      && program->constants <= tensors - program->inputs
                      && program->constants <= table->counts[OBJECTS] && program->arena >= 0
                      && program->arena <= tensors - program->inputs - program->constants
                      && table->counts[COPIES] == 0 && table->counts[PROGRAMS] == 1;
    for (int64_t i = 0; i < table->counts[KERNELS]; i++) {
        if (table->kernels[i].object < 0 || table->kernels[i].target < 0) {
            return smelt_refuse(error, "kernels", i, "object");
        }
    }
    return fits ? check_tensors_given(table, error) : smelt_refuse(error, "programs", 0, "number of tensors");
}

/* --- the whole -------------------------------------------------------------------------------------- */

/* Sections follow each other without gaps, up to the strings. */
static smelt_status
check_header(const TableHeader *header, int64_t size, smelt_error *error)
{
    if (size < (int64_t)sizeof *header || header->magic != TABLE_MAGIC) {
        return smelt_fail(error, SMELT_ERROR_FILE, "this is no program: its table does not begin like one");
    }
    if (header->version != TABLE_VERSION) {
        return smelt_fail(error, SMELT_ERROR_VERSION, "a table has version %lld, this runtime reads version %d",
                          (long long)header->version, TABLE_VERSION);
    }
    int64_t next = sizeof *header / 8;
    const int64_t limit = size / 8;
    for (int i = 0; i < SECTION_COUNT; i++) {
        const int64_t count = header->sections[i].count, width = (int64_t)sections[i].width;
        if (header->sections[i].width != width || header->sections[i].first != next || count < 0
            || count > (limit - next) / width) {
            return smelt_refuse(error, "header", i, sections[i].name);
        }
        next += count * width;
    }
    if (header->bytes != size || header->blob != 8 * next) {
        return smelt_refuse(error, "header", 0, "length");
    }
    return SMELT_OK;
}

smelt_status
smelt_table_read(Table *table, const void *data, int64_t size, int64_t objects, smelt_error *error)
{
    const TableHeader *header = data;
    smelt_status status = check_header(header, size, error);
    if (status) {
        return status;
    }
    *table = (Table){.header = header, .blob = (const char *)data + header->blob};
#define SET_SECTION(section, NUMBER, Type, FIELDS)                                                                     \
    table->section = (const Type *)((const int64_t *)data + header->sections[NUMBER].first);                           \
    table->counts[NUMBER] = header->sections[NUMBER].count;
    TABLE_SECTIONS(SET_SECTION)
    table->counts[OBJECTS] = objects;
    int64_t budget = 64 * (size / 8) + (1 << 20);
    for (int i = 0; !status && i < SECTION_COUNT; i++) {
        status = check_rules(table, i, &budget, error);
    }
    if (!status && !is_index(table, STRINGS, header->name)) {
        status = smelt_refuse(error, "header", 0, "name");
    }
    status = status ? status : check_strings(table, error);
    status = status ? status : check_items(table, error);
    status = status ? status : check_steps(table, error);
    return status || table->counts[PROGRAMS] == 0 ? status : check_program(table, error);
}
