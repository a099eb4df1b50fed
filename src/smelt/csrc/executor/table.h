/* A table that keeps to the rules of its records (executor/records.h). It is read where it lies. */
#ifndef SMELT_EXECUTOR_TABLE_H
#define SMELT_EXECUTOR_TABLE_H

#include "executor/error.h"
#include "executor/expression.h"
#include "executor/records.h"

#define SECTION_NUMBER(section, NUMBER, Type, FIELDS) NUMBER,
enum { TABLE_SECTIONS(SECTION_NUMBER) SECTION_COUNT, OBJECTS = SECTION_COUNT };

#define RECORD_FIELD(field, rule, section) int64_t field;
#define RECORD_TYPE(section, NUMBER, Type, FIELDS) typedef struct { FIELDS(RECORD_FIELD) } Type;
TABLE_SECTIONS(RECORD_TYPE)

/* Behind its own fields the header has for each section where it begins, in words, and how many records of how many
   words it has. */
typedef struct {
    TABLE_HEADER_FIELDS(RECORD_FIELD)
    struct { int64_t first, count, width; } sections[SECTION_COUNT];
} TableHeader;

#define SECTION_POINTER(section, NUMBER, Type, FIELDS) const Type *section;
typedef struct {
    const TableHeader *header;
    const char *blob;
    int64_t counts[SECTION_COUNT + 1]; /* records of each section, and objects */
    TABLE_SECTIONS(SECTION_POINTER)
} Table;

static inline const char *
table_string(const Table *table, int64_t number)
{
    return table->blob + table->strings[number].offset;
}

/* The value of an expression over these symbols; false where it does not fit 64 bits, or divides by zero. */
static inline bool
table_evaluate(const Table *table, int64_t expression, const int64_t *symbols, int64_t *value)
{
    const ExpressionRecord *record = &table->expressions[expression];
    const InstructionRecord *first = &table->instructions[record->code];
    if (record->code_count == 1) { /* most are a number or a symbol */
        *value = first->op == OP_PUSH ? first->operand : symbols[first->operand];
        return true;
    }
    return smelt_evaluate(&first->op, record->code_count, symbols, value);
}

/* Bytes of an element; 0: there is no such dtype. */
static inline int64_t
table_item_size(int64_t dtype)
{
#define ITEM_SIZE(dtype, size) size,
    static const int8_t sizes[] = {TABLE_DTYPES(ITEM_SIZE)};
    return dtype >= 0 && dtype < (int64_t)sizeof sizes ? sizes[dtype] : 0;
}

/* Reads a table at an address of whole words, with so many objects beside it: every reference in it is to something that
   exists. */
smelt_status smelt_table_read(Table *table, const void *data, int64_t size, int64_t objects, smelt_error *error);

#endif
