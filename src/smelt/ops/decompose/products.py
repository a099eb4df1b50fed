"""Matrix products, convolutions and attention where the library has no good code for them on this processor.

    mm(a, b) in bfloat16          → mm(a.float(), b.float()).bfloat16()
    convolution_backward(g, x, w) → the windows of x as a matrix; then one matrix product for each gradient

A product in float32 that is rounded once is what the library's narrow products are defined to be. The conversions fuse
with whatever stands beside them. `smelt.device.library` says where which holds.
"""

from collections.abc import Sequence
from typing import Any

import torch

from smelt.base.sizes import product
from smelt.device.library import slow_convolution_gradients, slow_convolutions, slow_products
from smelt.ops.decompose.table import decomposes, widen

Tensor = torch.Tensor
aten = torch.ops.aten

_TAPS = 25  # elements of a kernel that are summed in one pass
_ROOM = 64 << 20  # bytes the windows of a convolution may take


def _widened(op: Any, *tensors: Any, **options: Any) -> Any:
    return op(*(widen(value) if isinstance(value, torch.Tensor) else value for value in tensors), **options)


def _host(value: Tensor) -> bool:
    return value.device.type == "cpu"


@decomposes(aten.mm.default)
def mm(a: Tensor, b: Tensor) -> Any:
    if not _host(a) or not slow_products(a.dtype):
        return NotImplemented
    return _widened(aten.mm.default, a, b).to(a.dtype)


@decomposes(aten.bmm.default)
def bmm(a: Tensor, b: Tensor) -> Any:
    if not _host(a) or not slow_products(a.dtype):
        return NotImplemented
    return _widened(aten.bmm.default, a, b).to(a.dtype)


@decomposes(aten.addmm.default)
def addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    """The sum fuses with what follows; in 16 bits it would round twice, and stays inside the product."""
    return _sum(aten.mm.default, bias, a, b, beta, alpha)


@decomposes(aten.baddbmm.default)
def baddbmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    return _sum(aten.bmm.default, bias, a, b, beta, alpha)


def _sum(op: Any, bias: Tensor, a: Tensor, b: Tensor, beta: float, alpha: float) -> Any:
    if beta != 1 or alpha != 1:
        return NotImplemented
    if a.dtype in (torch.float32, torch.float64):
        return op(a, b) + bias
    if not _host(a) or not slow_products(a.dtype):
        return NotImplemented
    return (_widened(op, a, b) + widen(bias)).to(a.dtype)


@decomposes(aten._scaled_dot_product_flash_attention_for_cpu.default)
def attention(query: Tensor, key: Tensor, value: Tensor, *rest: Any, attn_mask: Any = None, scale: Any = None) -> Any:
    if not slow_products(query.dtype):
        return NotImplemented
    mask = widen(attn_mask) if attn_mask is not None else None
    op = aten._scaled_dot_product_flash_attention_for_cpu.default
    result, sums = _widened(op, query, key, value, *rest, attn_mask=mask, scale=scale)
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
    made = _widened(op, grad, query, key, value, out, sums, dropout, causal, attn_mask=mask, scale=scale)
    return tuple(each.to(query.dtype) for each in made)


@decomposes(aten.convolution.default)
def convolution(x: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Any:
    if not _host(x) or not slow_convolutions(x.dtype):
        return NotImplemented
    return _widened(aten.convolution.default, x, weight, bias, *rest).to(x.dtype)


@decomposes(aten.convolution_backward.default)
def convolution_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    mask: Sequence[bool],
) -> Any:
    if not _host(x) or not (slow_convolution_gradients() or slow_convolutions(x.dtype)):
        return NotImplemented
    wide = (widen(grad), widen(x), widen(weight))
    steps = (stride, padding, dilation)
    to_x = to_weight = None
    if transposed or x.dim() != 4 or not slow_convolution_gradients() or any(len(step) != 2 for step in steps):
        how = (bias_sizes, *steps, transposed, output_padding, groups, mask)
        made = aten.convolution_backward.default(*wide, *how) if wide[0] is not grad else NotImplemented
        return made if made is NotImplemented else tuple(one if one is None else one.to(x.dtype) for one in made)
    wide = (wide[0].contiguous(), wide[1].contiguous(), wide[2].contiguous())
    if mask[1]:
        to_weight = _to_weight(*wide, steps, groups)
    if mask[0]:
        to_x = _to_image(*wide, steps, groups)
        if to_x is NotImplemented and mask[1] and to_weight is not NotImplemented:
            how = (bias_sizes, *steps, transposed, output_padding, groups, [True, False, False])
            to_x = aten.convolution_backward.default(*wide, *how)[0]
    if to_x is NotImplemented or to_weight is NotImplemented:
        return NotImplemented
    to_bias = torch.sum(wide[0], [0, 2, 3]) if mask[2] else None
    return tuple(None if one is None else one.to(x.dtype) for one in (to_x, to_weight, to_bias))


Steps = tuple[Sequence[int], Sequence[int], Sequence[int]]


def _windows(x: Tensor, grad: Tensor, kernel: Sequence[int], steps: Steps) -> Tensor:
    """What each element of the kernel meets: [channels, kernel height, width, images, height, width], a view."""
    (down, right), (above, before), (low, wide) = steps
    if above or before:
        x = aten.constant_pad_nd.default(x, [before, before, above, above], 0.0)
    image, channel, row, column = x.stride()
    shape = [x.shape[1], *kernel, x.shape[0], *grad.shape[2:]]
    strides = [channel, row * low, column * wide, image, row * down, column * right]
    found: Tensor = aten.as_strided.default(x, shape, strides)
    return found


def _to_weight(grad: Tensor, x: Tensor, weight: Tensor, steps: Steps, groups: int) -> Any:
    outputs, each, *kernel = weight.shape
    windows = _windows(x, grad, kernel, steps)
    if groups == x.shape[1] == outputs:
        return _to_taps(grad, windows, weight)
    across = aten.permute.default(grad, [1, 0, 2, 3])
    if groups != 1 or product(windows.shape) * windows.dtype.itemsize > _ROOM:
        return NotImplemented
    points = product(across.shape[1:])
    columns = _matrix(windows, [each * product(kernel), points])
    found = aten.mm.default(_matrix(across, [outputs, points]), aten.permute.default(columns, [1, 0]))
    return aten.view.default(found, list(weight.shape))


def _to_taps(grad: Tensor, windows: Tensor, weight: Tensor) -> Any:
    """Each channel by itself: a sum for each element of the kernel, all of them one pass over the memory."""
    height, width = weight.shape[2:]
    if height * width > _TAPS:
        return NotImplemented
    sums = []
    for place in range(height * width):
        met = aten.select.int(aten.select.int(windows, 1, place // width), 1, place % width)
        sums.append(torch.sum(grad * aten.permute.default(met, [1, 0, 2, 3]), [0, 2, 3]))
    return aten.view.default(torch.stack(sums, 1), list(weight.shape))


def _to_image(grad: Tensor, x: Tensor, weight: Tensor, steps: Steps, groups: int) -> Any:
    outputs, each, *kernel = weight.shape
    stride, padding, dilation = steps
    images, channels, *size = x.shape
    if groups == channels == outputs:
        return _to_channels(grad, weight, steps)
    points, elements = product(grad.shape[2:]), each * product(kernel)
    if groups != 1 or images * points * elements * grad.dtype.itemsize > _ROOM:
        return NotImplemented
    across = _matrix(aten.permute.default(grad, [1, 0, 2, 3]), [outputs, images * points])
    rows = aten.permute.default(aten.view.default(weight, [outputs, elements]), [1, 0])
    columns = aten.view.default(aten.mm.default(rows, across), [elements, images, points])
    columns = aten.clone.default(aten.permute.default(columns, [1, 0, 2]), memory_format=torch.contiguous_format)
    if list(kernel) == [1, 1] and not any(padding) and set(stride) == {1}:
        return aten.view.default(columns, list(x.shape))
    return aten.col2im.default(columns, size, kernel, list(dilation), list(padding), list(stride))


def _to_channels(grad: Tensor, weight: Tensor, steps: Steps) -> Any:
    """Each channel by itself: a convolution with the kernel turned round, where every point was visited."""
    stride, padding, dilation = steps
    reach = [step * (size - 1) for step, size in zip(dilation, weight.shape[2:], strict=True)]
    around = [most - pad for most, pad in zip(reach, padding, strict=True)]
    if set(stride) != {1} or min(around) < 0:
        return NotImplemented
    turned = aten.flip.default(weight, [2, 3])
    return aten.convolution.default(grad, turned, None, [1, 1], around, dilation, False, [0, 0], weight.shape[0])


def _matrix(value: Tensor, shape: list[Any]) -> Tensor:
    dense = aten.clone.default(value, memory_format=torch.contiguous_format)
    found: Tensor = aten.view.default(dense, shape)
    return found
