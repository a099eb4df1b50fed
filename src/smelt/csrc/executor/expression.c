/* Evaluates postfix code on a small stack, every step checked for overflow of 64 bits. */
#include "executor/expression.h"

#define OP_ARITY(name, arity) arity,
static const int8_t arities[] = {EXPRESSION_OPS(OP_ARITY)};

bool
smelt_expression_holds(const int64_t *code, int64_t count, int64_t *symbols)
{
    int depth = 0;
    *symbols = 0;
    for (const int64_t *at = code; at < code + 2 * count; at += 2) {
        const int64_t op = at[0], operand = at[1];
        if (op < 0 || op >= OP_COUNT || depth < arities[op]) {
            return false;
        }
        depth += 1 - arities[op];
        if (depth > MOST_DEPTH || (op == OP_SYMBOL && (operand < 0 || operand == INT64_MAX))) {
            return false;
        }
        if (op == OP_SYMBOL && operand >= *symbols) {
            *symbols = operand + 1;
        }
    }
    return depth == 1;
}

static double
as_double(int64_t bits)
{
    double number;
    __builtin_memcpy(&number, &bits, sizeof number);
    return number;
}

static int64_t
as_bits(double number)
{
    int64_t bits;
    __builtin_memcpy(&bits, &number, sizeof bits);
    return bits;
}

/* As Python divides: towards minus infinity. */
static bool
divide(int64_t left, int64_t right, bool remainder_wanted, int64_t *result)
{
    if (right == 0 || (left == INT64_MIN && right == -1)) {
        return false;
    }
    const int64_t remainder = left % right;
    const bool borrows = remainder != 0 && (remainder < 0) != (right < 0);
    *result = remainder_wanted ? remainder + (borrows ? right : 0) : left / right - borrows;
    return true;
}

static bool
integers(int64_t op, int64_t left, int64_t right, int64_t *result)
{
    switch (op) {
    case OP_ADD: return !__builtin_add_overflow(left, right, result);
    case OP_SUB: return !__builtin_sub_overflow(left, right, result);
    case OP_MUL: return !__builtin_mul_overflow(left, right, result);
    case OP_DIV: return divide(left, right, false, result);
    case OP_MOD: return divide(left, right, true, result);
    case OP_NEG: return !__builtin_sub_overflow(INT64_C(0), left, result);
    case OP_MIN: *result = left < right ? left : right; return true;
    case OP_MAX: *result = left > right ? left : right; return true;
    case OP_EQ: *result = left == right; return true;
    case OP_NE: *result = left != right; return true;
    case OP_LT: *result = left < right; return true;
    case OP_LE: *result = left <= right; return true;
    case OP_GT: *result = left > right; return true;
    case OP_GE: *result = left >= right; return true;
    case OP_AND: *result = left && right; return true;
    case OP_OR: *result = left || right; return true;
    case OP_NOT: *result = !left; return true;
    case OP_FLOAT: *result = as_bits((double)left); return true;
    default: return false;
    }
}

static bool
floats(int64_t op, double left, double right, int64_t *result)
{
    switch (op) {
    case OP_INT:
        if (!(left > -0x1p63 && left < 0x1p63)) {
            return false;
        }
        *result = (int64_t)left;
        return true;
    case OP_FEQ: *result = left == right; return true;
    case OP_FLT: *result = left < right; return true;
    case OP_FLE: *result = left <= right; return true;
    case OP_FADD: *result = as_bits(left + right); return true;
    case OP_FSUB: *result = as_bits(left - right); return true;
    case OP_FMUL: *result = as_bits(left * right); return true;
    case OP_FDIV: *result = as_bits(left / right); return right != 0; /* else an error in Python */
    case OP_FNEG: *result = as_bits(-left); return true;
    case OP_FABS: *result = as_bits(__builtin_fabs(left)); return true;
    case OP_FMIN: *result = as_bits(left <= right ? left : right); return true;
    case OP_FMAX: *result = as_bits(left >= right ? left : right); return true;
    case OP_FMOD: *result = as_bits(smelt_math(op, left, right)); return right != 0;
    default: *result = as_bits(smelt_math(op, left, right)); return true;
    }
}

bool
smelt_evaluate(const int64_t *code, int64_t count, const int64_t *symbols, int64_t *value)
{
    int64_t stack[MOST_DEPTH];
    int depth = 0;
    for (const int64_t *at = code; at < code + 2 * count; at += 2) {
        const int64_t op = at[0];
        if (op == OP_PUSH || op == OP_SYMBOL) {
            stack[depth++] = op == OP_PUSH ? at[1] : symbols[at[1]];
            continue;
        }
        const int64_t right = arities[op] == 2 ? stack[--depth] : 0, left = stack[depth - 1];
        if (!(op >= OP_INT ? floats(op, as_double(left), as_double(right), &stack[depth - 1])
                           : integers(op, left, right, &stack[depth - 1]))) {
            return false;
        }
    }
    *value = stack[0];
    return true;
}
