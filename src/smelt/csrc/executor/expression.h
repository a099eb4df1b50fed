/* Expressions over sizes and numbers, as postfix code: 4*s + 1 is SYMBOL s, PUSH 4, MUL, PUSH 1, ADD.

   Code is 64-bit words, two for each instruction: what it does, and its operand. symbolic/postfix.py writes it. Values
   are integers; instructions that begin with F, and INT, work on floats by their bits. */
#ifndef SMELT_EXECUTOR_EXPRESSION_H
#define SMELT_EXECUTOR_EXPRESSION_H

#include <stdbool.h>
#include <stdint.h>

enum { EXPRESSION_MOST_DEPTH = 32 /* of the stack */ };

/* O(instruction, how many numbers it takes off the stack), in the order of their numbers. */
#define EXPRESSION_OPS(O)                                                                                              \
    O(PUSH, 0) O(SYMBOL, 0) O(ADD, 2) O(SUB, 2) O(MUL, 2) O(DIV, 2) O(MOD, 2) O(MIN, 2) O(MAX, 2) O(NEG, 1)            \
    O(EQ, 2) O(NE, 2) O(LT, 2) O(LE, 2) O(GT, 2) O(GE, 2) O(AND, 2) O(OR, 2) O(NOT, 1) O(FLOAT, 1) O(INT, 1)           \
    O(FADD, 2) O(FSUB, 2) O(FMUL, 2) O(FDIV, 2) O(FNEG, 1) O(FABS, 1) O(FPOW, 2) O(FSQRT, 1) O(FEXP, 1) O(FLOG, 1)     \
    O(FSIN, 1) O(FCOS, 1) O(FTANH, 1) O(FFLOOR, 1) O(FCEIL, 1) O(FMIN, 2) O(FMAX, 2) O(FEQ, 2) O(FLT, 2) O(FLE, 2)     \
    O(FMOD, 2)

#define OP_NUMBER(name, arity) OP_##name,
enum { EXPRESSION_OPS(OP_NUMBER) OP_COUNT };

/* Whether so many instructions leave one number on a stack that is deep enough; `symbols`: how many symbols they need. */
bool smelt_expression_holds(const int64_t *code, int64_t count, int64_t *symbols);

/* The value of code that holds, over these symbols. False: it does not fit 64 bits, or divides by zero. */
bool smelt_evaluate(const int64_t *code, int64_t count, const int64_t *symbols, int64_t *value);

#endif
