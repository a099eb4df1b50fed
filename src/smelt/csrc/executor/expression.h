/* Expressions over sizes and numbers, as postfix code: 4*s + 1 is SYMBOL s, PUSH 4, MUL, PUSH 1, ADD.

   Code is 64-bit words, two for each instruction: what it does, and its operand. symbolic/postfix.py writes it. Values
   are integers; instructions that begin with F, and INT, work on floats by their bits. */
#ifndef SMELT_EXECUTOR_EXPRESSION_H
#define SMELT_EXECUTOR_EXPRESSION_H

#include "executor/run/math.h"

#include <stdbool.h>

/* Whether so many instructions leave one number on a stack that is deep enough; `symbols`: how many symbols they need. */
bool smelt_expression_holds(const int64_t *code, int64_t count, int64_t *symbols);

/* The value of code that holds, over these symbols. False: it does not fit 64 bits, or divides by zero. */
__attribute__((noinline)) bool smelt_evaluate(const int64_t *code, int64_t count, const int64_t *symbols, int64_t *value);

#endif
