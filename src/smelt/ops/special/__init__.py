"""Special functions as kernels, for where no library may be called: Γ, the error function, Bessel, Airy.

    lgamma(x)   →   polynomials and logarithms of float64, chosen by where x is, rounded once

`TABLE` has them all. Coefficients come from tools/fit_special.py; accuracy is in docs/math.md.
"""

from smelt.ops.special import airy, bessel, error, gamma  # noqa: F401  (they fill the table)
from smelt.ops.special.evaluate import TABLE

__all__ = ["TABLE"]
