/* Reads a TABLE: checks that its sections are in place, and that every reference is to an existing record. */
#include "deploy/format/table.h"

#include <string.h>

typedef enum { FREE, INDEX, OPTIONAL, SPAN } Rule;

typedef struct {
    const char *name;
    Rule rule;
    int section;
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

static bool
keeps_rule(const Table *table, const Field *field, const int64_t *word)
{
    const int64_t limit = table->counts[field->section];
    switch (field->rule) {
    case INDEX:
        return *word >= 0 && *word < limit;
    case OPTIONAL:
        return *word >= -1 && *word < limit;
    case SPAN:
        return word[0] >= 0 && word[0] <= limit && word[1] >= 0 && word[1] <= limit - word[0];
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
            if (field->rule == SPAN) {
                *budget -= word[1];
            }
        }
        if (*budget < 0) {
            return smelt_refuse(error, sections[section].name, record, "length of its lists");
        }
    }
    return SMELT_OK;
}

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

/* Sections follow each other without gaps, up to the strings. */
static smelt_status
check_header(const TableHeader *header, int64_t size, smelt_error *error)
{
    if (size < (int64_t)sizeof *header || header->magic != TABLE_MAGIC) {
        return smelt_fail(error, SMELT_ERROR_FILE, "a table does not begin like one");
    }
    if (header->version != FORMAT_VERSION) {
        return smelt_fail(error, SMELT_ERROR_VERSION, "a table has version %lld, this runtime reads version %d",
                          (long long)header->version, FORMAT_VERSION);
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
smelt_table_read(Table *table, const void *data, int64_t size, smelt_error *error)
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
    int64_t budget = 64 * (size / 8) + (1 << 20);
    for (int i = 0; !status && i < SECTION_COUNT; i++) {
        status = check_rules(table, i, &budget, error);
    }
    if (!status && (header->name < 0 || header->name >= table->counts[STRINGS])) {
        status = smelt_refuse(error, "header", 0, "name");
    }
    return status ? status : check_strings(table, error);
}
