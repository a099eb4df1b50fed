/* Tables of 64-bit words: a header, a section of records for each kind of thing, then the bytes of all strings.

   Both tables, of programs that run in Python's process (flat/table.h) and of artifacts (deploy/format/records.h), list
   their sections as S(section, NUMBER, Type, FIELDS) and the fields of records as F(name, rule, section). A field's rule
   is what a table must keep to, or it is refused:
     FREE       any number, or one that is checked by its own code
     INDEX      the number of a record of the section; OPTIONAL: the same, or -1
     SPAN       the first of several records of the section: the next field says how many
     LAYOUT     where in the section sizes begin, then strides, then an offset: the next field is the rank */
#ifndef SMELT_EXECUTOR_TABLE_H
#define SMELT_EXECUTOR_TABLE_H

#include <stdbool.h>
#include <stdint.h>

typedef enum { FREE, INDEX, OPTIONAL, SPAN, LAYOUT } TableRule;

typedef struct {
    const char *name;
    TableRule rule;
    int section;
} TableField;

typedef struct {
    const char *name;
    const TableField *fields;
    int64_t width;
} TableSection;

/* Of a section, in the header: its first word, its records, and the words of one. */
typedef struct {
    int64_t first, count, width;
} TablePlace;

/* What is wrong: a field of a record. */
typedef struct {
    const char *section;
    int64_t record;
    const char *field;
} TableFault;

/* TABLE_SECTIONS(FIELD_ROWS), then an array of TableSection with TABLE_SECTIONS(SECTION_ROW) in it. */
#define FIELD_ROW(field, rule, section) {#field, rule, section},
#define FIELD_ROWS(section, NUMBER, Type, FIELDS) static const TableField section##_fields[] = {FIELDS(FIELD_ROW)};
#define SECTION_ROW(section, NUMBER, Type, FIELDS)                                                                     \
    {#section, section##_fields, sizeof section##_fields / sizeof *section##_fields},

#define SECTION_NUMBER(section, NUMBER, Type, FIELDS) NUMBER,
#define SECTION_POINTER(section, NUMBER, Type, FIELDS) const Type *section;
#define RECORD_FIELD(field, rule, section) int64_t field;
#define RECORD_TYPE(section, NUMBER, Type, FIELDS) typedef struct { FIELDS(RECORD_FIELD) } Type;

/* Sets what SECTION_POINTER declares, and how many there are. */
#define SET_SECTION(section, NUMBER, Type, FIELDS)                                                                     \
    table->section = (const Type *)((const int64_t *)table->header + table->header->sections[NUMBER].first);           \
    table->counts[NUMBER] = table->header->sections[NUMBER].count;

/* Whether sections of a table of so many bytes follow each other without gaps from a word on, up to the strings. */
bool smelt_sections_hold(const TablePlace *places, const TableSection *sections, int count, int64_t first, int64_t bytes,
                         int64_t blob, TableFault *fault);

bool smelt_is_span(int64_t limit, int64_t first, int64_t count);
bool smelt_is_layout(int64_t limit, int64_t first, int64_t rank);

/* Whether all fields of so many records keep to their rules. `counts`: records of each section. `budget`: how long lists
   may be in all. Many records could share one long list, and checking each would take for ever. */
bool smelt_rules_hold(const TableSection *section, const int64_t *words, int64_t count, const int64_t *counts,
                      int64_t *budget, TableFault *fault);

/* Whether each of so many strings, (offset, length), is in the bytes of all, with the only zero byte behind it. */
bool smelt_strings_hold(const int64_t *strings, int64_t count, const char *bytes, int64_t size, TableFault *fault);

#endif
