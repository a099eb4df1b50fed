"""Operators on lists of tensors (`torch._foreach_*`, which optimizers use) as one operator per tensor.

    _foreach_mul([a, b], 0.9)   →   [mul(a, 0.9), mul(b, 0.9)]

On the CPU that is what PyTorch itself does, so nothing is rounded otherwise; and what is apart can be fused with what
comes before and after.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from smelt.ops.decompose.table import rewrites

aten = torch.ops.aten


def _scaled(function: Callable[..., Any]) -> Callable[..., Any]:
    def decomposition(x: Tensor, first: Tensor, second: Tensor, value: Any = 1) -> Any:
        # One tensor may hold the numbers for all: that call is left whole.
        return NotImplemented if isinstance(value, Tensor) else function(x, first, second, value=value)

    return decomposition


def _bounded(by_tensor: Callable[..., Any], by_number: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, other: by_tensor(x, other) if isinstance(other, Tensor) else by_number(x, other)


# By the name of the operator on lists: what it does with each tensor, if not what its name says.
_OTHERWISE: dict[str, Callable[..., Any]] = {
    "addcdiv": _scaled(torch.addcdiv),
    "addcmul": _scaled(torch.addcmul),
    "maximum": _bounded(torch.maximum, torch.clamp_min),
    "minimum": _bounded(torch.minimum, torch.clamp_max),
    "norm": lambda x, order=2, dtype=None: torch.linalg.vector_norm(x, order, dtype=dtype),
    "copy": aten.copy.default,
    "zero": torch.zeros_like,
}
_AS_NAMED = (
    *("abs", "add", "ceil", "clamp_max", "clamp_min", "div", "erf", "erfc", "exp", "expm1", "floor", "lerp", "log"),
    *("log10", "log1p", "log2", "mul", "neg", "pow", "reciprocal", "rsqrt", "sigmoid", "sign", "sqrt", "sub", "tanh"),
)


def _each(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of lists: those of tensors and those of numbers go side by side, all else to each."""

    def decomposition(*args: Any, **kwargs: Any) -> Any:
        count = max(len(each) for each in args if isinstance(each, list | tuple))
        rows = zip(*[each if isinstance(each, list | tuple) else [each] * count for each in args], strict=True)
        results = [function(*row, **kwargs) for row in rows]
        return NotImplemented if any(each is NotImplemented for each in results) else results

    return decomposition


# By name: to look up each of their overloads would take longer than compiling a small function.
for _name, _function in ({name: getattr(torch, name) for name in _AS_NAMED} | _OTHERWISE).items():
    rewrites(f"aten::_foreach_{_name}")(_each(_function))
