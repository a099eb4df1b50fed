"""Which kernel PyTorch runs attention by on CUDA, chosen where there is no GPU to ask.

    bfloat16, no mask, heads of at most 256        → flash
    float32, or a mask                             → memory-efficient
    neither serves                                 → products and a softmax

On a machine with a GPU PyTorch chooses itself while the graph is traced. The conditions here are those that its own
code checks (`sdp_utils.cpp`), kernel by kernel in the order that `torch.nn.attention.sdpa_kernel` sets. One that is not
sure to hold there counts as failed: the next kernel takes it.
"""

import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
else:
    from smelt.base.torch_originals import functional as F
    from smelt.base.torch_originals import pristine as torch

aten = torch.ops.aten

_NARROW = (torch.float16, torch.bfloat16)
_FLASH_HEAD = 256  # the widest head that the flash kernel has
_MATH, _FLASH, _EFFICIENT = 0, 1, 2  # as `torch._C._SDPBackend` counts them


def capability(target: str) -> tuple[int, int]:
    """`sm_90a` → (9, 0); (8, 0) where nothing is said: what all kernels of PyTorch run on."""
    match = re.fullmatch(r"sm_(\d+)(\d)[af]?", target)
    return (int(match[1]), int(match[2])) if match is not None else (8, 0)


def attention_of(
    target: str,
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    dropout: float,
    causal: bool,
    scale: float | None,
    shared_heads: bool,
) -> Any:
    """Attention by the kernel that PyTorch would choose; `NotImplemented` for what it writes out, or would refuse."""
    if query.dim() != 4 or key.dim() != 4 or value.dim() != 4 or not (query.dtype is key.dtype is value.dtype):
        return NotImplemented
    if (mask is not None and causal) or 0 in (*query.shape, *key.shape, *value.shape):
        return NotImplemented
    for backend in torch._C._get_sdp_priority_order():
        if int(backend) == _MATH:
            return NotImplemented
        kernel = _KERNELS.get(int(backend))
        if kernel is not None and kernel[0](target, query, key, value, mask, causal, shared_heads):
            return kernel[1](query, key, value, mask, dropout, causal, scale)
    return NotImplemented


def _fits_flash(
    target: str, query: Any, key: Any, value: Any, mask: Any, causal: bool, shared_heads: bool
) -> bool:
    if not torch._C._get_flash_sdp_enabled() or capability(target) < (8, 0):
        return False
    width = query.shape[-1]
    if mask is not None or query.dtype not in _NARROW or not width == key.shape[-1] == value.shape[-1] <= _FLASH_HEAD:
        return False
    if causal and query.shape[-2] != key.shape[-2]:
        return False
    return _rows_are_dense(query, key, value) and _heads_fit(query, key, value, shared_heads)


def _fits_efficient(
    target: str, query: Any, key: Any, value: Any, mask: Any, causal: bool, shared_heads: bool
) -> bool:
    if not torch._C._get_mem_efficient_sdp_enabled():
        return False
    new = capability(target) >= (8, 0)
    if query.dtype not in ((torch.float32, *_NARROW) if new else (torch.float32, torch.float16)):
        return False
    if query.shape[-1] != key.shape[-1]:
        return False
    aligned = 8 if query.dtype in _NARROW else 4
    if query.shape[-1] % aligned or value.shape[-1] % aligned:
        return False
    return _rows_are_dense(query, key, value) and _heads_fit(query, key, value, False)


def _rows_are_dense(*tensors: Any) -> bool:
    return all(tensor.stride(-1) == 1 for tensor in tensors)


def _heads_fit(query: Any, key: Any, value: Any, shared: bool) -> bool:
    """Batches and heads alike; with `shared` several heads of the query may share one of the others."""
    if not query.shape[0] == key.shape[0] == value.shape[0] or key.shape[-2] != value.shape[-2]:
        return False
    heads, others = query.shape[1], (key.shape[1], value.shape[1])
    return others == (heads, heads) or (shared and others[0] == others[1] and heads % others[0] == 0)


def _flash(
    query: Any, key: Any, value: Any, mask: Any, dropout: float, causal: bool, scale: float | None
) -> Any:
    """Heads are padded to eights; the scale is that of the heads as they were."""
    width = query.shape[-1]
    scale = 1 / math.sqrt(width) if scale is None else scale
    padded = [each if width % 8 == 0 else F.pad(each, [0, 8 - width % 8]) for each in (query, key, value)]
    attended = aten._scaled_dot_product_flash_attention.default(*padded, dropout, causal, False, scale=scale)[0]
    return attended if width % 8 == 0 else attended[..., :width]


def _efficient(
    query: Any, key: Any, value: Any, mask: Any, dropout: float, causal: bool, scale: float | None
) -> Any:
    """A mask of bools becomes one to be added, padded to sixteens: its rows are read so."""
    keeps = torch.is_grad_enabled() and any(each.requires_grad for each in (query, key, value))
    if mask is not None:
        if mask.dtype is torch.bool:
            mask = torch.where(mask, 0.0, -math.inf).to(query.dtype)
        columns = mask.shape[-1]
        if columns % 16:
            mask = F.pad(mask, [0, 16 - columns % 16])[..., :columns]
        mask = mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    op = aten._scaled_dot_product_efficient_attention.default
    return op(query, key, value, mask, keeps, dropout, causal, scale=scale)[0]


_KERNELS: dict[int, tuple[Callable[..., bool], Callable[..., Any]]] = {
    _FLASH: (_fits_flash, _flash),
    _EFFICIENT: (_fits_efficient, _efficient),
}
