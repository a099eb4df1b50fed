"""All rules in two tables, and the answer to a call out of them; loaded at the first question.

`RULES` of element-wise operators, reductions, copies and views hold on every device; `CPU_RULES` adds the libraries'.
"""

from collections.abc import Mapping
from typing import Any

import torch

from smelt.ir.specrules import (
    creation,
    fourier,
    images,
    indexing,
    library,
    losses,
    missing,
    pointwise,
    rearranging,
    reduction,
    views,
)
from smelt.ir.tensorspec import TensorSpec

RULES: dict[Any, Any] = {**pointwise.RULES, **reduction.RULES, **creation.RULES, **views.RULES}
_LIBRARIES = (library, images, rearranging, indexing, losses, fourier, missing)
CPU_RULES: dict[Any, Any] = {**RULES, **{op: rule for each in _LIBRARIES for op, rule in each.RULES.items()}}


def answer(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], device: torch.device) -> Any:
    """A spec (its device not filled in), a tuple of specs, or `NotImplemented` where no rule answers."""
    rule = (CPU_RULES if device.type == "cpu" else RULES).get(func)
    if rule is not None:
        return rule(*args, **kwargs)
    functional = _functional_of(func)
    return NotImplemented if functional is None else _written(functional, args, kwargs, device)


def _written(functional: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], device: torch.device) -> Any:
    """`x.add_(y)` yields `x`, if `x + y` has the shape of `x` and a dtype that may be stored in it."""
    value = args[0]
    made = answer(functional, args, kwargs, device)
    if not isinstance(made, TensorSpec) or made.shape != tuple(value.shape):
        return NotImplemented
    if not torch.can_cast(made.dtype, value.dtype):
        raise RuntimeError(f"result type {made.dtype} can't be cast to the desired output type {value.dtype}")
    return TensorSpec(made.shape, value.stride(), value.dtype, device, value.storage_offset())


_functionals: dict[Any, Any] = {}
_SAME_BY_ANOTHER_NAME = {
    torch.ops.aten.bernoulli_.float: torch.ops.aten.bernoulli.p,
    torch.ops.aten.pow_.Scalar: torch.ops.aten.pow.Tensor_Scalar,
    torch.ops.aten.pow_.Tensor: torch.ops.aten.pow.Tensor_Tensor,
}


def _functional_of(func: Any) -> Any:
    """`aten.add_.Tensor` → `aten.add.Tensor`, where that one has an element-wise rule; None for everything else."""
    if func not in _functionals:
        packet, overload = func.overloadpacket.__name__, func._overloadname
        found = _SAME_BY_ANOTHER_NAME.get(func)
        if found is None and packet.endswith("_") and not packet.endswith("__") and func.namespace == "aten":
            functional = getattr(torch.ops.aten, packet[:-1], None)
            found = getattr(functional, overload, None) if functional is not None else None
        named = func in _SAME_BY_ANOTHER_NAME
        _functionals[func] = found if named or found in pointwise.RULES else None
    return _functionals[func]
