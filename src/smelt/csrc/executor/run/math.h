/* Instructions of expressions, and what those compute that are functions of floats. */
#ifndef SMELT_EXECUTOR_RUN_MATH_H
#define SMELT_EXECUTOR_RUN_MATH_H

#include "executor/records.h"

#define OP_NUMBER(name, arity) OP_##name,
enum { EXPRESSION_OPS(OP_NUMBER) OP_COUNT };

/* OP_FPOW, OP_FSQRT, …, OP_FMOD. A static model has its own, of the functions that its table uses. */
double smelt_math(int64_t op, double left, double right);

#endif
