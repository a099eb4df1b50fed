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
    return lambda x, first, second, value=1: function(x, first, second, value=value)


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
        return [function(*row, **kwargs) for row in rows]

    return decomposition


def _declare() -> None:
    functions = {name: getattr(torch, name) for name in _AS_NAMED} | _OTHERWISE
    for name, function in functions.items():
        packet = getattr(aten, f"_foreach_{name}", None)
        for overload in packet.overloads() if packet is not None else ():
            op = getattr(packet, overload)
            packed = name.startswith("addc") and overload == "Tensor"  # numbers in one tensor
            if not op._schema.is_mutable and not packed:
                rewrites(op)(_each(function))


_declare()
