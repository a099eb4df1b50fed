"""`QuantizedTensor`, a matrix of integers with scales, and `QuantizedLinear`, a linear layer with one.

    value = (integer - offset - zero) · scale + low      scale, zero and low for each group of a row

Integers of 4 bits share bytes: a run of `half_run` bytes has `2 · half_run` integers, the lower halves of all its bytes
first. With runs of one byte, neighbours share a byte. A compiled layer multiplies with the integers as they are in
memory; in eager the matrix is dequantized at each call.

With `activations="int8"` a layer rounds its inputs to bytes, too, each group of a row by itself (`rounded_to_bytes`).
"""

from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from smelt.base.errors import SmeltError
from smelt.base.fast_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class QuantizedTensor:
    """Integers of a matrix: uint8 with two integers of 4 bits each, or int8. `scale`, `zero` and `low` have a column
    for each group."""

    integers: Tensor
    scale: Tensor
    zero: Tensor | None = None
    low: Tensor | None = None
    bits: int = 8
    offset: int = 0
    half_run: int = 1

    @property
    def shape(self) -> torch.Size:
        rows, columns = self.integers.shape
        return torch.Size((rows, columns * 8 // self.bits))

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in (self.integers, self.scale, self.zero, self.low) if each is not None)

    def dequantized(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The matrix as floats."""
        return dequantized(self, dtype)

    def rows(self, order: Tensor) -> "QuantizedTensor":
        """Some of its rows, in this order."""
        taken = {name: tensor[order] for name in _TENSORS if (tensor := getattr(self, name)) is not None}
        return replace(self, **taken)


def dequantized(weight: "QuantizedTensor | QuantizedLinear", dtype: torch.dtype) -> Tensor:
    """The matrix as floats, rounded once."""
    rows, groups = weight.scale.shape
    integers, wide = weight.integers, torch.promote_types(dtype, torch.float32)
    if weight.bits == 4:
        shifts = torch.arange(0, 8, 4, dtype=torch.uint8, device=integers.device)
        integers = integers.view(rows, -1, 1, weight.half_run) >> shifts[:, None] & 15
    values = integers.reshape(rows, groups, -1).to(wide)
    if weight.offset:
        values = values - weight.offset
    if weight.zero is not None:
        values = values - weight.zero.to(wide)[..., None]
    values = values * weight.scale.to(wide)[..., None]
    if weight.low is not None:
        values = values + weight.low.to(wide)[..., None]
    return values.view(rows, -1).to(dtype)


_BYTE_GROUP = 64  # inputs of a group, where a row of weights has one scale


def rounded_to_bytes(x: Tensor, groups: int) -> Tensor:
    """x with the last dim in `groups` that are rounded to 255 values each, in float32 or wider:

        scale = largest magnitude / 127
        integer = x / scale, rounded to the nearest, halves to even
        result = integer · scale

    A group of zeros stays zero. A group with an infinite or undefined element becomes NaN.
    """
    values = x.to(torch.promote_types(x.dtype, torch.float32)).view(*x.shape[:-1], groups, x.shape[-1] // groups)
    largest = values.abs().amax(-1, keepdim=True)
    scale = torch.where(largest < torch.inf, largest / 127, torch.nan)
    integers = (values / torch.where(scale > 0, scale, 1)).round().clamp(-127, 127).to(torch.int8)
    return (integers.to(values.dtype) * scale).flatten(-2)


class _RoundedToBytes(torch.autograd.Function):
    """`rounded_to_bytes`, whose gradient is passed on as if nothing were rounded."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, groups: int) -> Tensor:
        ctx.dtype = x.dtype
        return rounded_to_bytes(x, groups)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.to(ctx.dtype), None


def byte_groups(weight: QuantizedTensor) -> int:
    """Groups of a row of inputs that are rounded to bytes: those of the weights. Where a row of weights has one scale,
    groups have 64 elements, or up to 127 where 64 do not divide the row."""
    columns, groups = weight.shape[1], weight.scale.shape[1]
    sizes = (_BYTE_GROUP, *range(2 * _BYTE_GROUP - 1, _BYTE_GROUP // 4 - 1, -1)) if groups == 1 else ()
    return next((columns // size for size in sizes if columns % size == 0), groups)


_TENSORS = tuple(field.name for field in fields(QuantizedTensor) if field.name in ("integers", "scale", "zero", "low"))


def check_activations(activations: str | None) -> None:
    if activations not in (None, "int8"):
        raise SmeltError("SM090", f"activations={activations!r}", hint='choose from None and "int8"')


class QuantizedLinear(nn.Module):
    """`nn.Linear` with quantized weights, which are buffers: they have no gradient, and are in the `state_dict`.

    `activations="int8"`: inputs are rounded to bytes before they are multiplied.
    """

    integers: Tensor
    scale: Tensor
    zero: Tensor | None
    low: Tensor | None
    bias: nn.Parameter | None

    def __init__(
        self,
        weight: QuantizedTensor,
        bias: nn.Parameter | None = None,
        dtype: torch.dtype = torch.float32,
        *,
        activations: str | None = None,
    ) -> None:
        super().__init__()
        check_activations(activations)
        self.activations, self.byte_groups = activations, byte_groups(weight) if activations else 0
        self.dtype = dtype if bias is None else bias.dtype
        self.out_features, self.in_features = weight.shape
        self.bits, self.offset, self.half_run = weight.bits, weight.offset, weight.half_run
        for name in _TENSORS:
            self.register_buffer(name, getattr(weight, name))
        self.register_parameter("bias", bias)

    @property
    def quantized(self) -> QuantizedTensor:
        """The weights."""
        parts = self.integers, self.scale, self.zero, self.low
        return QuantizedTensor(*parts, self.bits, self.offset, self.half_run)

    @property
    def weight(self) -> Tensor:
        """The matrix as floats of the model, for code that reads it, such as `nn.TransformerEncoderLayer`."""
        return dequantized(self, self.dtype)

    def forward(self, x: Tensor) -> Tensor:
        if not self.byte_groups:
            return nn.functional.linear(x, dequantized(self, x.dtype), self.bias)
        is_differentiated = torch.is_grad_enabled() and x.requires_grad
        rounded = (_RoundedToBytes.apply if is_differentiated else rounded_to_bytes)(x, self.byte_groups)
        bias = None if self.bias is None else self.bias.to(rounded.dtype)
        return nn.functional.linear(rounded, dequantized(self, rounded.dtype), bias).to(x.dtype)

    def _apply(self, fn: Any, recurse: bool = True) -> "QuantizedLinear":
        """Moves to devices, but not to dtypes: scales keep theirs, and their values."""
        before = {name: tensor for name in _TENSORS if (tensor := getattr(self, name)) is not None}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, tensor in before.items():
            moved = getattr(self, name)
            if moved.dtype is not tensor.dtype:
                setattr(self, name, tensor.to(moved.device))
        self.dtype = fn(torch.empty(0, dtype=self.dtype)).dtype
        return self

    def extra_repr(self) -> str:
        groups = self.scale.shape[1]
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, "
            f"bits={self.bits}, group_size={self.in_features // groups}"
            + (f", activations={self.activations!r}" if self.activations else "")
        )
