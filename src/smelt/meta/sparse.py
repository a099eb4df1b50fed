"""Which operators return sparse tensors. A fake tensor does not tell: what computes with one falls back to eager.

yields_sparse(aten._embedding_bag_backward.default, (…, sparse=True, …), {})   →   True
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch


def yields_sparse(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the result of a call of an operator is no tensor with strides."""
    place = _asked_for(func)
    if isinstance(place, bool):
        return place
    name, number = place
    asked = args[number] if number < len(args) else kwargs.get(name)
    return asked is True or (isinstance(asked, torch.layout) and asked is not torch.strided)


@functools.cache
def _asked_for(func: Any) -> bool | tuple[str, int]:
    """What always holds, or the name and place of the argument that decides."""
    if not isinstance(func, torch._ops.OpOverload):
        return False
    name = func._schema.name.removeprefix("aten::")
    if "sparse_backward" in name or "to_sparse" in name:
        return True
    deciding = ("layout", "sparse") if "backward" in name else ("layout",)
    return next(
        ((each.name, place) for place, each in enumerate(func._schema.arguments) if each.name in deciding), False
    )
