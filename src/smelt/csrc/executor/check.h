/* What a table must keep to beyond the rules of its fields. */
#ifndef SMELT_EXECUTOR_CHECK_H
#define SMELT_EXECUTOR_CHECK_H

#include "executor/table.h"

/* What depends on more than one record. `weights`, `state`: bytes of those sections; `kernels`: entries of the code.
   `scratch`: room for as many words as smelt_table_scratch says. */
size_t smelt_table_scratch(const Table *table);
smelt_status smelt_table_check(const Table *table, int64_t weights, int64_t state, int64_t kernels, int64_t *scratch,
                               smelt_error *error);

#endif
