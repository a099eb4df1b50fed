/* A TABLE of an artifact that passed its checks, and its expressions. */
#ifndef SMELT_DEPLOY_TABLE_H
#define SMELT_DEPLOY_TABLE_H

#include "deploy/format/error.h"
#include "deploy/format/records.h"
#include "executor/expression.h"

typedef struct {
    const TableHeader *header;
    const char *blob;
    int64_t counts[SECTION_COUNT];
    TABLE_SECTIONS(SECTION_POINTER)
} Table;

static inline const char *
table_string(const Table *table, int64_t number)
{
    return table->blob + table->strings[number].offset;
}

/* Reads a table where it lies, at an address of whole words; the fields that refer to other records do so. */
smelt_status smelt_table_read(Table *table, const void *data, int64_t size, smelt_error *error);

/* The value of an expression over these symbols; false where it does not fit 64 bits, or divides by zero. */
static inline bool
table_evaluate(const Table *table, int64_t expression, const int64_t *symbols, int64_t *value)
{
    const ExpressionRecord *record = &table->expressions[expression];
    return smelt_evaluate(&table->instructions[record->code].op, record->code_count, symbols, value);
}

#endif
