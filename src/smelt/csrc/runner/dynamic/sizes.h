/* The sizes of a program with dynamic shapes: each call reads them from its inputs and computes the numbers that depend
   on them, so that one Runner serves all sizes for which its facts hold. */
#ifndef SMELT_RUNNER_SIZES_H
#define SMELT_RUNNER_SIZES_H

#include "runner/run.h"

/* Out of what a Runner is given as `sizes` (see _native.pyi): NULL with an exception. `table` has the program. */
ProgramSizes *program_sizes_make(PyObject *spec, const Table *table);
void program_sizes_drop(ProgramSizes *sizes); /* NULL is fine */

/* Bytes that a call needs for its numbers. */
size_t program_sizes_bytes(const ProgramSizes *sizes, const Table *table);

/* Whether all facts hold for these inputs. Fills in the numbers of the call, unless `room` is NULL. */
bool program_sizes_fill(const ProgramSizes *sizes, const Table *table, PyObject *const *inputs, int64_t *room);

/* Constants that consist of sizes, and views of the arena whose layouts depend on them. 0, or -1 with an exception. */
int program_sizes_begin(Run *run);

#endif
