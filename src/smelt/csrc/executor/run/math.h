/* Functions of floats in expressions. */
#ifndef SMELT_EXECUTOR_RUN_MATH_H
#define SMELT_EXECUTOR_RUN_MATH_H

#include <stdint.h>

/* What OP_FPOW, OP_FSQRT, …, OP_FMOD compute. A static model has its own, of the functions that its table uses. */
double smelt_math(int64_t op, double left, double right);

#endif
