"""Matrix products and attention in 16 bits, where the library has no good code for them on this processor.

    mm(a, b) in bfloat16          → mm(a.float(), b.float()).bfloat16()

A product in float32 that is rounded once is what the library's narrow products are defined to be. The conversions fuse
with whatever stands beside them. `smelt.device.host_library` says where which holds.
"""

from collections.abc import Mapping
from typing import Any

import torch

from smelt.device.host_library import on_host, slow_products
from smelt.ops.decompose.table import decomposes, widen

Tensor = torch.Tensor
aten = torch.ops.aten


def widened(op: Any, *tensors: Any, **options: Any) -> Any:
    """The operator on its tensors as float32."""
    return op(*(widen(value) if isinstance(value, torch.Tensor) else value for value in tensors), **options)


def multiplied_by_head(a: Tensor, b: Tensor) -> Tensor:
    """The products of matrices, for each image and head."""
    images, heads, rows, inner = a.shape
    left, right = a.reshape([images * heads, rows, inner]), b.reshape([images * heads, inner, b.shape[3]])
    products: Tensor = aten.view.default(aten.bmm.default(left, right), [images, heads, rows, b.shape[3]])
    return products


def _product(op: Any) -> Any:
    def product(a: Tensor, b: Tensor) -> Any:
        return widened(op, a, b).to(a.dtype) if on_host(a.device) and slow_products(a.dtype) else NotImplemented

    return product


for _op in (aten.mm.default, aten.bmm.default):
    decomposes(_op)(_product(_op))


@decomposes(aten.addmm.default)
def addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    """The sum fuses with what follows; in 16 bits it would round twice, and stays inside the product."""
    return _sum(aten.mm.default, bias, a, b, beta, alpha)


@decomposes(aten.baddbmm.default)
def baddbmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    return _sum(aten.bmm.default, bias, a, b, beta, alpha)


def _sum(op: Any, bias: Tensor, a: Tensor, b: Tensor, beta: float, alpha: float) -> Any:
    if beta == alpha == 1 and on_host(a.device) and slow_products(a.dtype):
        return (widened(op, a, b) + widen(bias)).to(a.dtype)
    return _wide_sum(op, bias, a, b, beta, alpha)


def _wide_sum(op: Any, bias: Tensor, a: Tensor, b: Tensor, beta: float, alpha: float) -> Any:
    is_wide = a.dtype in (torch.float32, torch.float64)
    return op(a, b) + bias if is_wide and beta == alpha == 1 else NotImplemented


def on_gpus(table: Mapping[Any, Any]) -> dict[Any, Any]:
    """The table for programs that a GPU runs though the tensors of the trace are on the host, whose library does not
    matter."""
    others = {op: rule for op, rule in table.items() if op not in (aten.mm.default, aten.bmm.default)}

    def addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
        return _wide_sum(aten.mm.default, bias, a, b, beta, alpha)

    def baddbmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
        return _wide_sum(aten.bmm.default, bias, a, b, beta, alpha)

    return others | {aten.addmm.default: addmm, aten.baddbmm.default: baddbmm}


@decomposes(aten._scaled_dot_product_flash_attention_for_cpu.default)
def attention(query: Tensor, key: Tensor, value: Tensor, *rest: Any, attn_mask: Any = None, scale: Any = None) -> Any:
    if not slow_products(query.dtype):
        return NotImplemented
    mask = widen(attn_mask) if attn_mask is not None else None
    op = aten._scaled_dot_product_flash_attention_for_cpu.default
    result, sums = widened(op, query, key, value, *rest, attn_mask=mask, scale=scale)
    return result.to(query.dtype), sums


@decomposes(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def attention_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    sums: Tensor,
    dropout: float,
    causal: bool,
    *,
    attn_mask: Any = None,
    scale: Any = None,
) -> Any:
    if not slow_products(query.dtype):
        return NotImplemented
    mask = widen(attn_mask) if attn_mask is not None else None
    op = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    gradients = widened(op, grad, query, key, value, out, sums, dropout, causal, attn_mask=mask, scale=scale)
    return tuple(each.to(query.dtype) for each in gradients)


# As sums of products, for targets whose kernels hold no contractions, where no library may be called. Nothing as large
# as all products is in memory: the multiplication is part of the kernel that sums.


def _summed(a: Tensor, b: Tensor) -> Tensor:
    terms = widen(a).unsqueeze(-1) * widen(b).unsqueeze(-3)
    return terms.sum(-2)


def summed_product(a: Tensor, b: Tensor) -> Tensor:
    return _summed(a, b).to(a.dtype)


def summed_product_and_bias(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    total = _summed(a, b)
    total = total if alpha == 1 else total * alpha
    if beta != 0:
        total = total + (widen(bias) if beta == 1 else widen(bias) * beta)
    return total.to(a.dtype)


AS_SUMS: dict[Any, Any] = {
    aten.mm.default: summed_product,
    aten.bmm.default: summed_product,
    aten.addmm.default: summed_product_and_bias,
    aten.baddbmm.default: summed_product_and_bias,
}
