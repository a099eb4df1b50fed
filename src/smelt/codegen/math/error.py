"""The error function: x + x·P(x²) near zero, 1 - 2^P(|x|) further out, 1 beyond 4."""

from smelt.codegen.builder import Builder, Value
from smelt.codegen.math.polynomial import polynomial, round_scaled, two_to

_NEAR = (
    -0.0006111294108045612, 0.00501622878421303, -0.02678195719448704,
    0.11282229969232951, -0.37612532445844643, 0.12837915531922467,
)  # fmt: skip
_FAR = (
    0.0002891856977403733, -0.0044536405602022, 0.03231594236867793, -0.15045285312928589,
    -0.9186841672106041, -1.627229430086016, -0.00020173949292789928,
)  # fmt: skip
# 2^r = 1 + r·P(r), a term shorter than elsewhere: what is left of 1 after it is subtracted is at least four times it.
_EXP2 = (0.0013264454200377874, 0.009671725471225258, 0.05550736323657608, 0.240222388309126, 0.6931469751606242)
_SPLIT = 0.89
_IS_ONE = 4.0


def erf(b: Builder, x: Value) -> Value:
    size = b.fabs(x)
    near = b.fma(polynomial(b, b.fmul(x, x), _NEAR), x, x)
    exponent = polynomial(b, b.minimum(_IS_ONE, size), _FAR)
    n, held = round_scaled(b, exponent, 1.0)
    r = b.fsub(exponent, n)
    power = b.fmul(b.fma(polynomial(b, r, _EXP2), r, 1.0), two_to(b, held))
    far = b.copysign(b.fsub(1.0, power), x)
    return b.select(b.fcmp("olt", size, _SPLIT), near, far)
