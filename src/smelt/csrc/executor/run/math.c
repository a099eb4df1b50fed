/* Functions of floats in expressions, by the C library. */
#include "executor/run/math.h"

#include <math.h>

/* With the sign of the divisor, as Python does. */
static double
float_remainder(double left, double right)
{
    const double remainder = fmod(left, right);
    if (remainder == 0) {
        return copysign(0.0, right);
    }
    return (remainder < 0) != (right < 0) ? remainder + right : remainder;
}

double
smelt_math(int64_t op, double left, double right)
{
    switch (op) {
    case OP_FPOW: return pow(left, right);
    case OP_FSQRT: return sqrt(left);
    case OP_FEXP: return exp(left);
    case OP_FLOG: return log(left);
    case OP_FSIN: return sin(left);
    case OP_FCOS: return cos(left);
    case OP_FTANH: return tanh(left);
    case OP_FFLOOR: return floor(left);
    case OP_FCEIL: return ceil(left);
    default: return float_remainder(left, right);
    }
}
