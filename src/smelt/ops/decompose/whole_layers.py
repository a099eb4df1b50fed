"""Layers that PyTorch computes by one operator in inference, as what they are made of: encoders and their attention.

    _native_multi_head_attention(x, x, x, …)   →  linear of x, attention by heads, linear
    _transformer_encoder_layer_fwd(x, …)       →  that, sums, norms, and two linears with an activation between them

`nn.TransformerEncoderLayer` and `nn.MultiheadAttention` call these in `eval()` without gradients. The library does them
step by step; decomposed, what is done between the products fuses with them. A GPU has kernels of its own for them.
"""

import math
from typing import Any

import torch

from smelt.device.host_library import on_host
from smelt.ops.decompose.products import multiplied_by_head
from smelt.ops.decompose.table import choose, decomposes

Tensor = torch.Tensor
aten = torch.ops.aten

_BY_PAIRS, _BY_KEYS, _WHOLE = 0, 1, 2  # what a mask is of: queries and keys, keys of each sample, all scores


def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    rows = x.reshape([-1, x.shape[-1]])
    products: Tensor = aten.addmm.default(bias, rows, aten.t.default(weight))
    return aten.view.default(products, [*x.shape[:-1], weight.shape[0]])  # type: ignore[no-any-return]


def _projected(x: Tensor, weight: Tensor, bias: Tensor, heads: int) -> list[Tensor]:
    """What rows of a weight make of an input, `x.shape[-1]` rows each: by sample, head, place and channel."""
    samples, length, width = x.shape
    part_count = weight.shape[0] // width
    by_part = aten.view.default(_linear(x, weight, bias), [samples, length, part_count, heads, width // heads])
    return [aten.permute.default(aten.select.int(by_part, 2, number), [0, 2, 1, 3]) for number in range(part_count)]


def _heads_of(query: Tensor, key: Tensor, value: Tensor, weight: Tensor, bias: Tensor, heads: int) -> list[Tensor]:
    if query is key is value:
        return _projected(query, weight, bias, heads)
    width, projections = query.shape[-1], []
    for number, x in enumerate((query, key, value)):
        first, last = number * width, (number + 1) * width
        rows = aten.slice.Tensor(weight, 0, first, last), aten.slice.Tensor(bias, 0, first, last)
        projections += _projected(x, *rows, heads)
    return projections


def _mask_of(mask: Tensor, kind: int | None, scores: tuple[int, ...]) -> Any:
    """The mask laid over all scores: true where a query may not look."""
    samples, _, queries, keys = scores
    by = {_BY_PAIRS: (queries, keys), _BY_KEYS: (samples, keys), _WHOLE: scores}.get(-1 if kind is None else kind)
    if by is None or tuple(mask.shape) != by:
        return NotImplemented
    hidden = mask.to(torch.bool)
    return aten.view.default(hidden, [samples, 1, 1, keys]) if kind == _BY_KEYS else hidden


def _attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, kind: int | None) -> Any:
    """By heads. A query that may look at nothing finds NaN, other than in attention with a mask of numbers."""
    if mask is None:
        return aten._scaled_dot_product_flash_attention_for_cpu.default(query, key, value)[0]
    hidden = _mask_of(mask, kind, (*query.shape[:3], key.shape[2]))
    if hidden is NotImplemented:
        return NotImplemented
    scaled = query * (1 / math.sqrt(query.shape[3]))
    scores = multiplied_by_head(scaled, aten.permute.default(key, [0, 1, 3, 2]))
    return multiplied_by_head(aten._softmax.default(choose(hidden, -math.inf, scores), -1, False), value)


def _is_taken(x: Tensor, width: int, heads: int) -> bool:
    return on_host(x.device) and x.dim() == 3 and x.shape[2] == width and width % heads == 0


@decomposes(aten._native_multi_head_attention.default)
def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    width: int,
    heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    weight: Tensor,
    bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> Any:
    taken = all(_is_taken(each, width, heads) for each in (query, key, value))
    if need_weights or not taken or key.shape[1] != value.shape[1] or qkv_weight.shape[0] != 3 * width:
        return NotImplemented
    by_heads = _heads_of(query, key, value, qkv_weight, qkv_bias, heads)
    attended = _attention(by_heads[0], by_heads[1], by_heads[2], mask, mask_type)
    if attended is NotImplemented:
        return NotImplemented
    together = aten.permute.default(attended, [0, 2, 1, 3]).reshape([*query.shape[:2], width])
    return _linear(together, weight, bias), None


@decomposes(aten._transformer_encoder_layer_fwd.default)
def encoder_layer(
    x: Tensor,
    width: int,
    heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Any:
    if not _is_taken(x, width, heads):
        return NotImplemented
    norms = (norm_weight_1, norm_bias_1), (norm_weight_2, norm_bias_2)

    def normed(value: Tensor, which: int, here: bool) -> Tensor:
        if not here:
            return value
        return aten.native_layer_norm.default(value, [width], *norms[which], eps)[0]  # type: ignore[no-any-return]

    seen = normed(x, 0, norm_first)
    attended = multi_head_attention(
        seen, seen, seen, width, heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, False, True, mask_type
    )
    if attended is NotImplemented:
        return NotImplemented
    between = normed(attended[0] + x, 0, not norm_first)
    inner = _linear(normed(between, 1, norm_first), ffn_weight_1, ffn_bias_1)
    active = aten.gelu.default(inner) if use_gelu else aten.relu.default(inner)
    return normed(_linear(active, ffn_weight_2, ffn_bias_2) + between, 1, not norm_first)
