"""Replaces tensors of one known value by numbers.

    ones_like(loss)                       → full([], 1.0)            does not depend on `loss`
    mul(expand(full([], 2.0), [4, 8]), x) → mul(x, 2.0)              the number becomes part of the kernel
    mul(full([], 2.0), full([], 3.0))     → full([], 6.0)

The value is rounded to the tensor's dtype first.
"""

import math
from typing import TYPE_CHECKING, Any

from torch import fx

from smelt.base.fast_dataclass import dataclass
from smelt.base.rewrite_budget import RewriteBudget
from smelt.base.torch_originals import BASE
from smelt.device.host_library import on_host
from smelt.ir.graph import Traced
from smelt.ir.tensorspec import TensorSpec, spec_of
from smelt.meta.rules.promotion import KNOWN
from smelt.ops.promote import in_range
from smelt.simplify.aliasing import fits, insert
from smelt.symbolic.shapes import contiguous_stride
from smelt.symbolic.symsize import SymScalar, is_symsize

if TYPE_CHECKING:
    import torch
else:
    from smelt.base.torch_originals import pristine as torch

aten = torch.ops.aten

_FILLED: dict[Any, int | None] = {  # where the value stands among the arguments, or None for a value the name says
    aten.full.default: 1,
    aten.full_like.default: 1,
    aten.new_full.default: 2,
    aten.scalar_tensor.default: 0,
}
_NAMED: dict[Any, int] = {
    aten.ones.default: 1,
    aten.ones_like.default: 1,
    aten.new_ones.default: 1,
    aten.zeros.default: 0,
    aten.zeros_like.default: 0,
    aten.new_zeros.default: 0,
}
_CARRIERS = frozenset(
    {
        aten.expand.default,
        aten.view.default,
        aten.permute.default,
        aten.clone.default,
        aten.unsqueeze.default,
        aten.squeeze.dim,
    }
)
_COMMUTATIVE = frozenset({aten.add.Tensor, aten.mul.Tensor})
_RIGHT = frozenset({aten.add.Tensor, aten.mul.Tensor, aten.sub.Tensor, aten.div.Tensor})
_FOLDED = frozenset({*_RIGHT, aten.neg.default, aten._to_copy.default})


@dataclass(frozen=True, slots=True)
class _Uniform:
    """A tensor all of whose elements are `value`, exactly as its dtype holds it."""

    value: bool | int | float
    dtype: torch.dtype


def fold_constants(traced: Traced, budget: RewriteBudget) -> Traced:
    known: dict[fx.Node, _Uniform] = {}
    for node in list(traced.graph.nodes):
        if node.op != "call_function":
            continue
        uniform = _uniform(node, known)
        if uniform is not None:
            known[node] = uniform
            if node.target not in (aten.full.default, *_CARRIERS):
                _as_full(node, uniform, known, budget)
        elif node.target in _RIGHT:
            _take_number(node, known, budget)
    return traced


def _uniform(node: fx.Node, known: dict[fx.Node, _Uniform]) -> _Uniform | None:
    spec = spec_of(node)
    target = node.target
    if not isinstance(spec, TensorSpec) or spec.dtype not in KNOWN or node.kwargs.get("pin_memory"):
        return None
    if target in _NAMED:
        return _rounded(_NAMED[target], spec.dtype)
    if target in _FILLED:
        position = _FILLED[target]
        value = node.args[position] if position is not None and position < len(node.args) else None
        return _rounded(value, spec.dtype)
    if target in _CARRIERS:
        source = node.args[0]
        return known.get(source) if isinstance(source, fx.Node) else None
    if target in _FOLDED:
        return _computed(node, spec, known)
    return None


def _rounded(value: Any, dtype: torch.dtype) -> _Uniform | None:
    if type(value) not in (bool, int, float) or not in_range(value, dtype):
        return None
    try:
        return _Uniform(BASE.item(torch.full((), value, dtype=dtype)), dtype)
    except (RuntimeError, OverflowError):
        return None


def _computed(node: fx.Node, spec: TensorSpec, known: dict[fx.Node, _Uniform]) -> _Uniform | None:
    """Arithmetic on uniform tensors, done by the operator itself on one element of each."""
    if (
        not all(isinstance(source, fx.Node) and source in known for source in node.all_input_nodes)
        or not node.all_input_nodes
    ):
        return None
    numbers = (*node.args, *node.kwargs.values())
    if not on_host(spec.device) or any(type(each) is SymScalar or is_symsize(each) for each in numbers):
        return None

    def sample(source: fx.Node) -> torch.Tensor:
        uniform, have = known[source], spec_of(source)
        assert isinstance(have, TensorSpec)
        return torch.full((1,) * len(have.shape), uniform.value, dtype=uniform.dtype)

    args = fx.node.map_arg(node.args, sample)
    kwargs = fx.node.map_arg(node.kwargs, sample)
    assert isinstance(node.target, torch._ops.OpOverload)
    element = node.target(*args, **kwargs)
    return _Uniform(BASE.item(element), spec.dtype) if element.dtype is spec.dtype else None


def _as_full(node: fx.Node, uniform: _Uniform, known: dict[fx.Node, _Uniform], budget: RewriteBudget) -> None:
    """Spell a constant as `full`, which depends on nothing."""
    spec = spec_of(node)
    assert isinstance(spec, TensorSpec)
    if spec.stride != contiguous_stride(spec.shape) or spec.offset != 0 or not budget.take(node):
        return
    full = insert(
        node, aten.full.default, (list(spec.shape), uniform.value), {"dtype": spec.dtype, "device": spec.device}
    )
    known[full] = uniform
    node.replace_all_uses_with(full)


def _take_number(node: fx.Node, known: dict[fx.Node, _Uniform], budget: RewriteBudget) -> None:
    """Put a number in a uniform tensor's place where the call returns the same spec with it."""
    if len(node.args) != 2:
        return
    left, right = node.args
    if isinstance(right, fx.Node) and right in known:
        tensor, number = left, known[right].value
    elif isinstance(left, fx.Node) and left in known and node.target in _COMMUTATIVE and not node.kwargs:
        tensor, number = right, known[left].value
    else:
        return
    if not isinstance(tensor, fx.Node) or (isinstance(number, float) and not math.isfinite(number)):
        return
    if fits(node, node.target, (tensor, number), dict(node.kwargs)) and budget.take(node):
        node.args = (tensor, number)
