"""Convolutions and their gradients as matrix products and sums, where the library has no good code for them.

    convolution(x, w)             → w as a matrix · the windows of x, a copy of what each element of the kernel meets
    convolution_backward(g, x, w) → g · windows for the kernel, w · g added up window by window for the image
    each channel by itself        → a product for each element of the kernel, added up point by point

The last is so few operations that it fuses with what stands round it. `smelt.device.host_library` says where which
holds.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from smelt.device.host_library import (
    on_host,
    slow_by_channel,
    slow_convolutions,
    slow_narrow_convolutions,
    slow_windows,
)
from smelt.ops.decompose import own_convolutions
from smelt.ops.decompose.products import widened
from smelt.ops.decompose.table import checked, decomposes, widen
from smelt.symbolic.shapes import product

if TYPE_CHECKING:
    import torch
else:
    from smelt.base.torch_originals import pristine as torch

Tensor = torch.Tensor
aten = torch.ops.aten
Steps = tuple[Sequence[int], Sequence[int], Sequence[int]]  # stride, padding, dilation

_TAPS = 25  # elements of a kernel that are gone through one by one
_ROOM = 64 << 20  # bytes the windows of a convolution may take
_OUTPUTS = 16  # results for each window that make copying it worth while


@decomposes(aten.convolution.default)
def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    *,
    how: str = "auto",
    kernels: bool = True,
) -> Any:
    if how == "own":
        result = own_convolutions.convolution(
            x, weight, stride, (padding, dilation, output_padding), transposed, groups
        )
        return result if result is NotImplemented or bias is None else _with_bias(result, bias)
    if not on_host(x.device):
        return NotImplemented
    steps = (stride, padding, dilation)
    result = NotImplemented
    plane = x.dim() == 4 and not transposed and all(len(step) == 2 for step in steps)
    if kernels and how == "auto" and plane and _by_kernel(x, weight, stride, groups, windows=True):
        if x.is_contiguous() and weight.is_contiguous():
            return NotImplemented
        operands = (x.contiguous(), weight.contiguous(), bias)
        return aten.convolution.default(*operands, *steps, transposed, output_padding, groups)
    if _as_products(how) and plane:
        result = _convolved(widen(x).contiguous(), widen(weight).contiguous(), steps, groups)
    if result is not NotImplemented:
        if bias is not None:
            result = result + aten.view.default(widen(bias), [bias.shape[0], 1, 1])
        return result.to(x.dtype)
    if not slow_narrow_convolutions(x.dtype):
        return NotImplemented
    rest = (*steps, transposed, output_padding, groups)
    return widened(aten.convolution.default, x, weight, bias, *rest).to(x.dtype)


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
    *,
    how: str = "auto",
    kernels: bool = True,
) -> Any:
    products, steps = _as_products(how), (stride, padding, dilation)
    if how == "own":
        arguments = (bias_sizes, *steps, transposed, output_padding, groups)
        return _own_backward(grad, x, weight, steps, arguments, mask)
    if not on_host(x.device) or not (products or slow_narrow_convolutions(x.dtype)):
        return NotImplemented
    plane = x.dim() == 4 and not transposed and all(len(step) == 2 for step in steps)
    wide = (widen(grad), widen(x), widen(weight))
    to_x = to_weight = None
    if not products or not plane:
        if wide[0] is grad:
            return NotImplemented
        arguments = (bias_sizes, *steps, transposed, output_padding, groups)
        gradients = aten.convolution_backward.default(*wide, *arguments, mask)
        return tuple(one if one is None else one.to(x.dtype) for one in gradients)
    wide = (wide[0].contiguous(), wide[1].contiguous(), wide[2].contiguous())
    if mask[1]:
        to_weight = _to_weight(*wide, steps, groups)
    if mask[0]:
        whole = kernels and how == "auto" and _by_kernel(wide[0], wide[2], stride, groups)
        to_x = _to_image(*wide, steps, groups, whole)
        if to_x is NotImplemented and mask[1] and to_weight is not NotImplemented:
            rest = (bias_sizes, *steps, transposed, output_padding, groups, [True, False, False])
            to_x = aten.convolution_backward.default(*wide, *rest)[0]
        elif to_weight is NotImplemented and whole and to_x is not NotImplemented:
            rest = (bias_sizes, *steps, transposed, output_padding, groups, [False, True, False])
            to_weight = aten.convolution_backward.default(*wide, *rest)[1]
    if to_x is NotImplemented or to_weight is NotImplemented:
        return NotImplemented
    to_bias = torch.sum(wide[0], [0, 2, 3]) if mask[2] else None
    return tuple(None if one is None else one.to(x.dtype) for one in (to_x, to_weight, to_bias))


def _own_backward(
    grad: Tensor, x: Tensor, weight: Tensor, steps: Steps, rest: tuple[Any, ...], mask: Sequence[bool]
) -> Any:
    """Gradients of which some are made of other convolutions, or of sums; `rest`: what the operator has before its
    mask."""
    transposed, groups = rest[4], rest[6]
    gradients: list[Any] = [None, None, None]
    by_channel = x.dim() == 4 and not transposed and own_convolutions.is_by_channel(x, weight, groups)
    if mask[0] and not transposed:
        own = own_convolutions.to_image(grad, weight, x.shape[2:], steps, groups)
        gradients[0] = None if own is NotImplemented else own
    if mask[1] and by_channel and product(weight.shape[2:]) <= own_convolutions.TAPS:
        gradients[1] = _sums_by_channel(widen(grad).contiguous(), widen(x).contiguous(), weight, steps).to(x.dtype)
    if mask[0] and gradients[0] is None and by_channel and not (grad.is_contiguous() and weight.is_contiguous()):
        grad, x, weight = (each.contiguous() for each in (grad, x, weight))
    elif gradients[0] is None and gradients[1] is None:
        return NotImplemented
    left = [wanted and own is None for wanted, own in zip(mask, gradients, strict=True)]
    if any(left):
        others = aten.convolution_backward.default(grad, x, weight, *rest, left)
        gradients = [other if wanted else own for wanted, other, own in zip(left, others, gradients, strict=True)]
    return tuple(gradients)


def _with_bias(result: Tensor, bias: Tensor) -> Tensor:
    added: Tensor = widen(result) + aten.view.default(widen(bias), [bias.shape[0], *[1] * (result.dim() - 2)])
    return added.to(result.dtype)


def _sums_by_channel(grad: Tensor, x: Tensor, weight: Tensor, steps: Steps) -> Tensor:
    """The gradient to the kernel where each channel has its own: for each element the sum of what it met."""
    sums = [torch.sum(grad * points, [0, 2, 3]) for points in _met(x, grad.shape[2:], weight.shape[2:], steps)]
    gradient: Tensor = aten.view.default(torch.stack(sums, 1), list(weight.shape))
    return gradient


@cache
def convolutions_by(how: str, kernels: bool) -> Mapping[Any, Callable[..., Any]]:
    """The two decompositions where somebody has chosen: `how` as the option `convolutions` has it, or `own` where
    products are kernels of our own. With `kernels`, some are left for those by `auto` too."""
    forward: Callable[..., Any] = partial(convolution, how=how, kernels=kernels)
    backward: Callable[..., Any] = partial(convolution_backward, how=how, kernels=kernels)
    table = {aten.convolution.default: forward, aten.convolution_backward.default: backward}
    return {op: checked(op, function) for op, function in table.items()}


def _as_products(how: str) -> bool:
    return slow_convolutions() if how == "auto" else how == "products"


def _by_kernel(x: Tensor, weight: Tensor, stride: Sequence[int], groups: int, *, windows: bool = False) -> bool:
    """Whether a convolution is left whole, for a kernel: by channel once its image is contiguous, or with `windows` one
    of several channels at a time."""
    if any(not isinstance(size, int) for size in x.shape) or x.dtype is not weight.dtype:
        return False
    if slow_by_channel(weight.shape, groups, stride, x.dtype):
        return True
    contiguous = x.is_contiguous() and weight.is_contiguous()
    return windows and contiguous and slow_windows(weight.shape, groups, x.dtype)


def _padded(x: Tensor, padding: Sequence[int]) -> Tensor:
    above, before = padding
    if not above and not before:
        return x
    wider: Tensor = aten.constant_pad_nd.default(x, [before, before, above, above], 0.0)
    return wider


def _windows(x: Tensor, size: Sequence[int], kernel: Sequence[int], steps: Steps) -> Tensor:
    """What each element of the kernel meets: [channels, kernel height, width, images, height, width], a view."""
    (down, right), padding, (low, wide) = steps
    x = _padded(x, padding)
    image, channel, row, column = x.stride()
    shape = [x.shape[1], *kernel, x.shape[0], *size]
    strides = [channel, row * low, column * wide, image, row * down, column * right]
    windows: Tensor = aten.as_strided.default(x, shape, strides)
    return windows


def _met(x: Tensor, size: Sequence[int], kernel: Sequence[int], steps: Steps) -> list[Tensor]:
    """For each element of the kernel the points that it meets, a view of the padded image each."""
    stride, padding, dilation = steps
    x = _padded(x, padding)
    views = []
    for place in range(product(kernel)):
        view = x
        for dim, index in enumerate((place // kernel[1], place % kernel[1])):
            first = index * dilation[dim]
            view = aten.slice.Tensor(view, 2 + dim, first, first + (size[dim] - 1) * stride[dim] + 1, stride[dim])
        views.append(view)
    return views


def _convolved(x: Tensor, weight: Tensor, steps: Steps, groups: int) -> Any:
    outputs, each, *kernel = weight.shape
    images, channels, *extent = x.shape
    size = [
        (extent[dim] + 2 * steps[1][dim] - steps[2][dim] * (kernel[dim] - 1) - 1) // steps[0][dim] + 1 for dim in (0, 1)
    ]
    if groups == channels == outputs and product(kernel) <= _TAPS:
        return _convolved_by_channel(x, weight, size, steps)
    elements, points = each * product(kernel), images * product(size)
    if groups != 1 or outputs < _OUTPUTS or elements * points * x.dtype.itemsize > _ROOM:
        return NotImplemented
    columns = _matrix(_windows(x, size, kernel, steps), [elements, points])
    products = aten.mm.default(aten.view.default(weight, [outputs, elements]), columns)
    return aten.permute.default(aten.view.default(products, [outputs, images, *size]), [1, 0, 2, 3])


def _convolved_by_channel(x: Tensor, weight: Tensor, size: Sequence[int], steps: Steps) -> Tensor:
    channels, _, *kernel = weight.shape
    factors = aten.view.default(weight, [channels, product(kernel)])
    total: Tensor | None = None
    for place, points in enumerate(_met(x, size, kernel, steps)):
        term = points * aten.view.default(aten.select.int(factors, 1, place), [channels, 1, 1])
        total = term if total is None else total + term
    assert total is not None
    return total


def _to_weight(grad: Tensor, x: Tensor, weight: Tensor, steps: Steps, groups: int) -> Any:
    outputs, each, *kernel = weight.shape
    images, _, *size = grad.shape
    if groups == x.shape[1] == outputs:
        if product(kernel) > _TAPS:
            return NotImplemented
        return _sums_by_channel(grad, x, weight, steps)
    elements, points = each * product(kernel), images * product(size)
    if groups != 1 or elements * points * x.dtype.itemsize > _ROOM:
        return NotImplemented
    columns = _matrix(_windows(x, size, kernel, steps), [elements, points])
    across = _matrix(aten.permute.default(grad, [1, 0, 2, 3]), [outputs, points])
    products = aten.mm.default(across, aten.permute.default(columns, [1, 0]))
    return aten.view.default(products, list(weight.shape))


def _to_image(grad: Tensor, x: Tensor, weight: Tensor, steps: Steps, groups: int, whole: bool) -> Any:
    outputs, each, *kernel = weight.shape
    stride, padding, dilation = steps
    images, channels, *size = x.shape
    if groups == channels == outputs:
        return _to_image_by_channel(grad, x, weight, steps, whole)
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


def _to_image_by_channel(grad: Tensor, x: Tensor, weight: Tensor, steps: Steps, whole: bool) -> Any:
    """A convolution with the kernel flipped, where every point was visited; where a kernel computes it, it is left
    `whole` instead."""
    stride, padding, dilation = steps
    if whole and set(stride) == {1}:
        return aten.convolution.default(grad, weight, None, *steps, True, [0, 0], weight.shape[0])
    kernel = weight.shape[2:]
    around = [step * (size - 1) - pad for step, size, pad in zip(dilation, kernel, padding, strict=True)]
    if set(stride) != {1} or min(around) < 0 or product(kernel) > _TAPS:
        return NotImplemented
    flipped = aten.flip.default(weight, [2, 3])
    return _convolved_by_channel(grad, flipped, x.shape[2:], (stride, around, dilation))


def _matrix(value: Tensor, shape: list[Any]) -> Tensor:
    dense = aten.clone.default(value, memory_format=torch.contiguous_format)
    matrix: Tensor = aten.view.default(dense, shape)
    return matrix
