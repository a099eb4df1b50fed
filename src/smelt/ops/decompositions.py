"""What operators are made of, applied while a graph is recorded: operator → function of the same arguments.

    native_layer_norm(x, [n], w, b, eps)  →  mean, sub, mul, mean, add, rsqrt, mul, mul, add

Everything becomes pointwise operators, keepdim reductions, views and library calls. Sixteen-bit floats are computed in
float32 and rounded once, as the operators themselves do. A function answers `NotImplemented` to leave a call whole.
Operators that the kernels compute at a point anyway (`relu`, `silu`, `clamp`, `where`, …) are not decomposed.
"""

from collections.abc import Callable, Mapping
from typing import Any

from smelt.base.options import KERNELS_FIRST, Options
from smelt.device import find, holds_contractions
from smelt.ops.decompose import (  # noqa: F401  (they fill the table)
    activations,
    convolutions,
    foreach,
    images,
    losses,
    norms,
    products,
    rearrange,
    recurrent,
    reductions,
    resampling,
    scatters,
    sorting,
    torch_decompositions,
    whole_layers,
    without_library,
)
from smelt.ops.decompose.library_free import bags, division, special, windows  # noqa: F401
from smelt.ops.decompose.table import DECOMPOSITIONS as _TABLE

DECOMPOSITIONS: Mapping[Any, Callable[..., Any]] = _TABLE
_IN_DOUBLE = {**division.TABLE, **special.TABLE}


def decompositions(options: Options) -> Mapping[Any, Callable[..., Any]]:
    """The table for one compilation: with convolutions as the options want them, and more where there is no library."""
    alone = options.library in ("none", KERNELS_FIRST)
    sums = alone and options.target != "" and not holds_contractions(options.target)
    how = "own" if options.convolutions == "auto" and options.products == "own" else options.convolutions
    how = "products" if sums else how
    kernels = options.products == "auto"
    usual = how == "auto" and kernels
    table = DECOMPOSITIONS if usual else {**DECOMPOSITIONS, **convolutions.convolutions_by(how, kernels)}
    if alone:
        table = {**table, **without_library.TABLE, **(_IN_DOUBLE if _has_double(options.target) else {})}
    if alone and options.target and (sums or find(options.target).warp_size > 1):
        table = {**table, **recurrent.step_by_step()}
    if alone and options.target and find(options.target).warp_size > 1:
        has_matrices = find(options.target).multiplies_matrices
        in_memory = without_library.WIDE_SCORES_IN_MEMORY if has_matrices else without_library.SCORES_IN_MEMORY
        table = {**products.on_gpus(table), **in_memory}
    return {**table, **products.AS_SUMS} if sums else table


def _has_double(target: str) -> bool:
    """Whether kernels can compute in float64."""
    dtypes = find(target).dtypes if target else ()
    return not dtypes or "float64" in dtypes
