"""Matrix products as contractions: which factors a call multiplies, where they are, and what is done to the sums.

    mm(x, w.t()) of f32[4, 8], f32[16, 8]   →   4 × 16 points, summed over 8: x at 8·i + k, w at 8·j + k
    addmm(c, a, b, beta=2, alpha=3)         →   that of mm(a, b), then 3 · sum + 2 · c

Transposes, slices and broadcasts of the factors are strides like any others.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from smelt.base.fast_dataclass import dataclass
from smelt.fuse.lowering.rules import ContractRule, FactorRead
from smelt.ir.tensorspec import TensorSpec, short_name, spec_of, tensor_spec
from smelt.ops.record import OperandLayout
from smelt.symbolic.shapes import Shape, Size, is_dense

aten = torch.ops.aten

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

LayoutOf = Callable[[fx.Node], OperandLayout]


@dataclass(frozen=True, slots=True)
class Added:
    """What is added to the sums, `beta` times: a tensor, and its strides over the dims of the product."""

    node: fx.Node
    stride: Shape
    offset: Size
    beta: float


@dataclass(frozen=True, slots=True)
class ProductCall:
    """A call, read: its points have `shape` and fill dense memory by `stride`; `layout` is the result's view of it."""

    left: fx.Node
    right: fx.Node
    rule: ContractRule
    shape: Shape
    stride: Shape
    layout: OperandLayout
    alpha: float = 1
    added: Added | None = None

    @property
    def is_bare(self) -> bool:
        """Whether nothing is done to the sums."""
        return self.alpha == 1 and self.added is None

    def with_rule(self, rule: ContractRule) -> "ProductCall":
        return replace(self, rule=rule)

    def with_dims(self, shape: Shape, split: Callable[[Shape], Shape], rule: ContractRule) -> "ProductCall":
        """The same points by other dims, whose strides `split` computes."""
        added = None if self.added is None else replace(self.added, stride=split(self.added.stride))
        return replace(self, rule=rule, shape=shape, stride=split(self.stride), added=added)


def is_product(node: fx.Node) -> bool:
    """Whether a call multiplies matrices or vectors."""
    return node.target in FORMS


def read_product(node: fx.Node, layout_of: LayoutOf) -> ProductCall | str:
    """The product that a call computes, or the reason why no kernel can."""
    reason = why_not_contract(node)
    if reason is not None:
        return reason
    spec, (batch, rows, cols, added) = tensor_spec(node), FORMS[node.target]
    first = 1 if added else 0
    left, right = node.args[first], node.args[first + 1]
    assert isinstance(left, fx.Node) and isinstance(right, fx.Node)
    rule = _rule(layout_of(left), layout_of(right), batch, rows, cols)
    layout = OperandLayout(spec.shape, spec.stride)
    if not added:
        return ProductCall(left, right, rule, spec.shape, spec.stride, layout)
    alpha, beta = (node.kwargs.get(name, 1) for name in ("alpha", "beta"))
    if not all(isinstance(each, int | float) for each in (alpha, beta)):
        return "is scaled by numbers that are given at each call"
    addend = node.args[0]
    assert isinstance(addend, fx.Node)
    plus = None if beta == 0 else _added(addend, layout_of(addend), spec.shape, float(beta))  # type: ignore[arg-type]
    return ProductCall(left, right, rule, spec.shape, spec.stride, layout, float(alpha), plus)  # type: ignore[arg-type]


def why_not_contract(node: fx.Node) -> str | None:
    """Why no kernel can compute a call, whatever its operands; None if one can."""
    result = spec_of(node)
    if not isinstance(result, TensorSpec):
        return "does not return one tensor"
    if result.dtype not in DTYPES:
        return f"multiplies {short_name(result.dtype)}, for which only the library has code"
    for argument in node.all_input_nodes:
        spec = tensor_spec(argument)
        if spec.dtype is not result.dtype:
            return f"multiplies {short_name(spec.dtype)} and returns {short_name(result.dtype)}"
        if spec.device != result.device:
            return f"moves between {spec.device} and {result.device}"
        if spec.numel == 0:
            return "has no elements"
    if result.numel == 0:
        return "has no elements"
    return None if is_dense(result.shape, result.stride) else "returns a tensor with gaps"


# Operator → how many dims of its result are a batch, rows and cols; and whether something is added to the product.
FORMS: dict[Any, tuple[int, int, int, bool]] = {
    aten.mm.default: (0, 1, 1, False),
    aten.bmm.default: (1, 1, 1, False),
    aten.mv.default: (0, 1, 0, False),
    aten.dot.default: (0, 0, 0, False),
    aten.vdot.default: (0, 0, 0, False),
    aten.addmm.default: (0, 1, 1, True),
    aten.baddbmm.default: (1, 1, 1, True),
    aten.addmv.default: (0, 1, 0, True),
}


def _rule(left: OperandLayout, right: OperandLayout, batch: int, rows: int, cols: int) -> ContractRule:
    """Left has the dims batch, rows, sum; right has batch, sum, cols."""
    mine, theirs = _strides(left), _strides(right)
    return ContractRule(
        (left.shape[-1],),
        FactorRead((*mine[: batch + rows], *(0,) * cols), mine[-1:], left.offset),
        FactorRead((*theirs[:batch], *(0,) * rows, *theirs[batch + 1 :]), theirs[batch : batch + 1], right.offset),
    )


def _strides(layout: OperandLayout) -> Shape:
    """Strides, zero for extents of one."""
    return tuple(0 if size == 1 else step for size, step in zip(layout.shape, layout.stride, strict=True))


def _added(node: fx.Node, layout: OperandLayout, shape: Shape, beta: float) -> Added:
    return Added(node, (*(0,) * (len(shape) - len(layout.shape)), *_strides(layout)), layout.offset, beta)
