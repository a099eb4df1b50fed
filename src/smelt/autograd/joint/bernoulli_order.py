"""Random bits drawn in the order eager draws them, which depends on the layout of the tensor.

    empty_like(x.t()).bernoulli_(p)  →  permute(bernoulli(permute(…), p))     where PyTorch samples in memory order
                                     →  bernoulli(…, p)                       where it samples in index order

CUDA samples in memory order; of CPUs, not every build of PyTorch does.

`x.bernoulli_(p)` samples in the memory order of `x`; `torch.bernoulli(x, p)` returns a contiguous tensor whatever the
layout of `x`. Functionalization records both as `aten.bernoulli.p`, so the second gets a contiguous argument when it is
called (`autograd.joint.substitutes`), and a call on any other layout is known to be the first. Dropout is in place.
"""

import functools
from typing import TYPE_CHECKING, Any

from torch.utils._mode_utils import no_dispatch

from smelt.device.host_library import HOST, on_host

if TYPE_CHECKING:
    import torch
else:
    from smelt.base.torch_originals import pristine as torch

aten = torch.ops.aten


@functools.cache
def host_samples_in_memory_order() -> bool:
    """Whether this build of PyTorch fills a transposed tensor of the CPU in memory order."""
    generators = [torch.Generator().manual_seed(0) for _ in range(2)]
    with no_dispatch():  # a graph is being recorded, of which this is no part
        transposed = torch.empty(32, 2, device=HOST).t().bernoulli_(0.5, generator=generators[0])
        plain = torch.empty(32, 2, device=HOST).bernoulli_(0.5, generator=generators[1])
        return torch.equal(transposed.t(), plain)


def samples_in_memory_order(device: torch.device) -> bool:
    """Whether PyTorch fills a transposed tensor of this device in memory order."""
    return host_samples_in_memory_order() if on_host(device) else device.type == "cuda"


def bernoulli(like: torch.Tensor, probability: float = 0.5, *, generator: Any = None) -> Any:
    """`aten.bernoulli.p` as it is recorded."""
    if like.is_contiguous() or generator is not None or not samples_in_memory_order(like.device):
        return NotImplemented
    strides = like.stride()
    order = sorted(range(like.dim()), key=lambda dimension: -strides[dimension])
    in_memory = like.permute(order)
    if not in_memory.is_contiguous():
        return NotImplemented
    places = [order.index(dimension) for dimension in range(like.dim())]
    return aten.bernoulli.p(in_memory, probability).permute(places)


def bernoulli_contiguous(input: torch.Tensor, *rest: Any, **options: Any) -> torch.Tensor:
    """`torch.bernoulli`, whose result is contiguous."""
    probability = rest[0] if rest else options.get("p")
    if probability is None or input.is_contiguous():
        return torch.bernoulli(input, *rest, **options)
    return torch.bernoulli(input.contiguous(), *rest, **options)
