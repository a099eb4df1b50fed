"""The error function: x + x·P(x²) near zero, 1 - 2^P(|x|) further out, 1 beyond 4."""

from smelt.codegen.builder import Builder, Value
from smelt.codegen.math.exponential import exp2_moderate
from smelt.codegen.math.polynomial import polynomial

_NEAR = (
    -0.0006111294108045612, 0.00501622878421303, -0.02678195719448704,
    0.11282229969232951, -0.37612532445844643, 0.12837915531922467,
)  # fmt: skip
_FAR = (
    -2.9620050530392222e-05, 0.0006174593196715109, -0.0059727062391002565, 0.03612262902713949,
    -0.1560360047390152, -0.9138874091772765, -1.6294669091964802, 0.00023586486357984882,
)  # fmt: skip
_SPLIT = 0.89
_IS_ONE = 4.0


def erf(b: Builder, x: Value) -> Value:
    size = b.fabs(x)
    near = b.fma(polynomial(b, b.fmul(x, x), _NEAR), x, x)
    exponent = polynomial(b, b.minimum(_IS_ONE, size), _FAR)
    far = b.copysign(b.fsub(1.0, exp2_moderate(b, exponent)), x)
    return b.select(b.fcmp("olt", size, _SPLIT), near, far)
