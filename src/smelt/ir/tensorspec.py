"""`TensorSpec`: all the compiler knows of a tensor at compile time.

`spec_of(node)` and `set_spec(node, spec)` are the only way stages read and write metadata on `torch.fx` nodes.
"""

from typing import Any

import torch
from torch import fx

from smelt.base.fast_dataclass import dataclass
from smelt.symbolic.expressions import Expression
from smelt.symbolic.shapes import Shape, Size, contiguous_stride, product
from smelt.symbolic.symnode import Formula
from smelt.symbolic.symsize import known_equal

_SPEC = "smelt_spec"
_INT = frozenset({int})

SHORT_NAMES: dict[torch.dtype, str] = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "bool",
    torch.complex64: "c64",
    torch.complex128: "c128",
}


def short_name(dtype: torch.dtype) -> str:
    """`torch.float32` → `"f32"`."""
    return SHORT_NAMES.get(dtype) or str(dtype).removeprefix("torch.")


WORKSPACE = (0, 0, 0)
"""The shape, in specs, of what an operator of our own keeps for its backward, and alone knows the size of: nothing
else has it, and no kernel reads an element of it."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape, strides, offset, dtype and device of a tensor that may not exist yet. `is_number`: one element that the
    host has, whatever device the graph is for; whoever launches a kernel may pass it along."""

    shape: Shape
    stride: Shape
    dtype: torch.dtype
    device: torch.device
    offset: Size = 0
    requires_grad: bool = False
    is_number: bool = False

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "TensorSpec":
        """The spec of an existing tensor, real or fake tensor."""
        return cls(
            tuple(tensor.shape),
            tuple(tensor.stride()),
            tensor.dtype,
            tensor.device,
            tensor.storage_offset(),  # type: ignore[arg-type]  # a SymInt is a Size
            tensor.requires_grad,
        )

    @property
    def varies(self) -> bool:
        """Whether some size differs from call to call."""
        return not _INT.issuperset(map(type, (*self.shape, *self.stride, self.offset)))

    @property
    def numel(self) -> Size:
        return product(self.shape)

    @property
    def nbytes(self) -> Size:
        return self.numel * self.dtype.itemsize

    @property
    def is_contiguous(self) -> bool:
        """Row-major and dense; extents of one may have any stride."""
        wanted = contiguous_stride(self.shape)
        return self.numel == 0 or all(
            size == 1 or have == want for size, have, want in zip(self.shape, self.stride, wanted, strict=True)
        )

    def __str__(self) -> str:
        text = f"{short_name(self.dtype)}[{', '.join(map(str, self.shape))}]"
        wanted = contiguous_stride(self.shape)
        plain = any(known_equal(size, 0) for size in self.shape) or all(
            known_equal(size, 1) or known_equal(have, want)  # deciding nothing: text is no reason to
            for size, have, want in zip(self.shape, self.stride, wanted, strict=True)
        )
        return text if plain else f"{text}:({', '.join(map(str, self.stride))})"


@dataclass(frozen=True, slots=True)
class UnplacedSpec:
    """What an operator's rule says of a result: all but its device, which follows from the operands."""

    shape: Shape
    stride: Shape
    dtype: torch.dtype
    offset: Size = 0

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "UnplacedSpec":
        offset: Size = tensor.storage_offset()  # type: ignore[assignment]  # a SymInt is a Size
        return cls(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, offset)

    @property
    def varies(self) -> bool:
        """Whether some size differs from call to call."""
        return not _INT.issuperset(map(type, (*self.shape, *self.stride, self.offset)))

    def on(self, device: torch.device) -> TensorSpec:
        """The spec of that result on a device."""
        return TensorSpec(self.shape, self.stride, self.dtype, device, self.offset)


@dataclass(frozen=True, slots=True)
class NumberSpec:
    """A number that a graph is given or computes at each call: a size, or a float."""

    what: Expression | Formula

    def as_tensor(self) -> TensorSpec:
        """A tensor that holds the number."""
        dtype = torch.float64 if isinstance(self.what, Formula) else torch.int64
        return TensorSpec((), (), dtype, torch.device("cpu"), is_number=True)

    def __str__(self) -> str:
        return f"number {self.what.text if isinstance(self.what, Formula) else self.what}"


# What a node returns: one tensor, several (None where an operator returns no tensor there), a number, or something else
# entirely.
NodeSpec = TensorSpec | tuple["TensorSpec | None", ...] | NumberSpec | None


def spec_of(node: fx.Node) -> NodeSpec:
    """What `node` returns, or None for a node that returns no tensor."""
    spec: NodeSpec = node.meta.get(_SPEC)
    return spec


def tensor_spec(node: fx.Node) -> TensorSpec:
    """The spec of a node that returns one tensor."""
    spec = node.meta.get(_SPEC)
    if not isinstance(spec, TensorSpec):
        raise TypeError(f"{node.format_node()} does not return one tensor")
    return spec


def tensor_specs(node: fx.Node) -> list[TensorSpec]:
    """The specs of all tensors that a node returns."""
    spec = spec_of(node)
    return [each for each in (spec if isinstance(spec, tuple) else (spec,)) if isinstance(each, TensorSpec)]


def set_spec(node: fx.Node, spec: NodeSpec) -> None:
    node.meta[_SPEC] = spec


def spec_of_value(value: Any) -> NodeSpec:
    """The spec of what a call returned: a tensor, a tuple or list of tensors, or anything else (None)."""
    if isinstance(value, torch.Tensor):
        return TensorSpec.of(value)
    if isinstance(value, tuple | list):
        return tuple(TensorSpec.of(item) if isinstance(item, torch.Tensor) else None for item in value)
    return None
