"""Coins tossed in the order eager tosses them: a matter of how the tensor lies in memory.

    empty_like(x.t()).bernoulli_(p)  →  permute(bernoulli(permute(…), p))     where the CPU goes through memory
                                     →  bernoulli(…, p)                       where it goes through the rows

In place, coins fall where the tensor's memory is; `torch.bernoulli(x, p)` makes a contiguous tensor whatever `x` is.
Functionalization writes both as `aten.bernoulli.p`, so the second is given a contiguous argument when it is called
(`autograd.joint.substitutes`), and a call on any other layout is known to be the first. Dropout tosses in place.
"""

import functools
from typing import TYPE_CHECKING, Any

from torch.utils._mode_utils import no_dispatch

if TYPE_CHECKING:
    import torch
else:
    from smelt.base.torch_originals import pristine as torch

aten = torch.ops.aten


@functools.cache
def tossed_through_memory() -> bool:
    """Whether this build of PyTorch fills a transposed tensor in the order of its memory. Builds differ in it."""
    generators = [torch.Generator().manual_seed(0) for _ in range(2)]
    with no_dispatch():  # asked while a graph is recorded, of which this is no part
        transposed = torch.empty(32, 2, device="cpu").t().bernoulli_(0.5, generator=generators[0])
        plain = torch.empty(32, 2, device="cpu").bernoulli_(0.5, generator=generators[1])
        return torch.equal(transposed.t(), plain)


def toss(like: torch.Tensor, probability: float = 0.5, *, generator: Any = None) -> Any:
    """`aten.bernoulli.p` as it is recorded."""
    if like.is_contiguous() or generator is not None or like.device.type != "cpu" or not tossed_through_memory():
        return NotImplemented
    strides = like.stride()
    order = sorted(range(like.dim()), key=lambda dimension: -strides[dimension])
    in_memory = like.permute(order)
    if not in_memory.is_contiguous():
        return NotImplemented
    places = [order.index(dimension) for dimension in range(like.dim())]
    return aten.bernoulli.p(in_memory, probability).permute(places)


def toss_contiguous(input: torch.Tensor, *rest: Any, **options: Any) -> torch.Tensor:
    """`torch.bernoulli`, whose result is contiguous."""
    probability = rest[0] if rest else options.get("p")
    if probability is None or input.is_contiguous():
        return torch.bernoulli(input, *rest, **options)
    return torch.bernoulli(input.contiguous(), *rest, **options)
