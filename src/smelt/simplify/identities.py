"""Removes calls that change nothing.

    mul(x, 1) → x       sub(x, 0.0) → x         neg(neg(x)) → x         _to_copy(x, dtype=its own) → x
    detach(x) → x       add(x, -0.0) → x        _to_copy(_to_copy(f16, f32), f64) → _to_copy(f16, f64)
    cat([empty, x]) → cat([x]) → clone(x)       constant_pad_nd(x, [0, 0]) → x

`add(x, 0.0)` stays: it turns -0.0 into 0.0. A rewrite never changes a dtype, a stride, or who owns memory.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import fx

from smelt.base.rewrite_budget import RewriteBudget
from smelt.ir.graph import Traced
from smelt.ir.tensorspec import TensorSpec, spec_of
from smelt.simplify.aliasing import AliasedMemory, fits, same_layout

if TYPE_CHECKING:
    import torch
else:
    from smelt.base.torch_originals import pristine as torch

aten = torch.ops.aten

_DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
)  # fmt: skip
# Conversions that lose nothing: to what a dtype is promoted to, but not from integers to floats.
_LOSSLESS = frozenset(
    (narrow, wide)
    for narrow in _DTYPES
    for wide in _DTYPES
    if narrow is not wide and torch.promote_types(narrow, wide) is wide
    and (narrow is torch.bool or narrow.is_floating_point == wide.is_floating_point)
)


def fold_identities(traced: Traced, budget: RewriteBudget) -> Traced:
    memory = AliasedMemory(traced.graph)
    for node in list(traced.graph.nodes):
        if node.target is aten.cat.default:
            _leave_out_nothing(node, budget)
        rule = _RULES.get(node.target)
        if rule is None:
            continue
        if node.target is aten._to_copy.default:
            _join_casts(node, budget)
        equal = rule(node)
        if equal is None or not same_layout(node, equal):
            continue
        if node.target in _ALIASES:
            if budget.take(node):
                memory.took_over(node, equal)
                node.replace_all_uses_with(equal)
        elif memory.may_share(node, equal) and budget.take(node):
            node.replace_all_uses_with(equal)
    return traced


def _first(node: fx.Node) -> fx.Node | None:
    return node.args[0] if isinstance(node.args[0], fx.Node) else None


def _is_number(value: Any, wanted: float) -> bool:
    return type(value) in (int, float) and value == wanted


def _times_one(node: fx.Node) -> fx.Node | None:
    """`x * 1`, `1 * x`."""
    if len(node.args) == 2 and _is_number(node.args[1], 1):
        return _first(node)
    return None


def _over_one(node: fx.Node) -> fx.Node | None:
    return _first(node) if len(node.args) == 2 and not node.kwargs and _is_number(node.args[1], 1) else None


def _is_neutral(value: Any, node: fx.Node, sign: float) -> bool:
    """Whether adding `sign · value` changes nothing. Of a float's two zeros only -0.0 leaves -0.0 as it is."""
    if not _is_number(value, 0):
        return False
    spec = spec_of(node)
    if isinstance(spec, TensorSpec) and not spec.dtype.is_floating_point:
        return True
    return math.copysign(1.0, value) * sign < 0


def _nothing_more(sign: float) -> Callable[[fx.Node], fx.Node | None]:
    """`x + 0`, `x - 0`."""

    def rule(node: fx.Node) -> fx.Node | None:
        plain = len(node.args) == 2 and not node.kwargs
        return _first(node) if plain and _is_neutral(node.args[1], node, sign) else None

    return rule


def _pads_nothing(node: fx.Node) -> fx.Node | None:
    """As some models pad for strides that need no padding."""
    amounts = node.args[1]
    nothing = isinstance(amounts, list | tuple) and all(_is_number(amount, 0) for amount in amounts)
    return _first(node) if nothing else None


def _twice_negated(node: fx.Node) -> fx.Node | None:
    inner = _first(node)
    return _first(inner) if inner is not None and inner.target is aten.neg.default else None


def _join_casts(node: fx.Node, budget: RewriteBudget) -> None:
    """A cast of a lossless cast is one cast of what was cast first."""
    inner = _first(node)
    if inner is None or inner.target is not aten._to_copy.default or set(inner.kwargs) != {"dtype"}:
        return
    source = _first(inner)
    before, between = (spec_of(source) if source is not None else None), spec_of(inner)
    if not isinstance(before, TensorSpec) or not isinstance(between, TensorSpec) or source is None:
        return
    if (before.dtype, between.dtype) not in _LOSSLESS or not fits(node, node.target, (source,), dict(node.kwargs)):
        return
    if budget.take(node):
        node.args = (source,)


def _leave_out_nothing(node: fx.Node, budget: RewriteBudget) -> None:
    """A tensor without elements adds none: an empty cache of keys, say."""
    tensors, *rest = node.args
    assert isinstance(tensors, list | tuple)
    kept = [tensor for tensor in tensors if _has_elements(tensor)]
    if not 0 < len(kept) < len(tensors) or not fits(node, node.target, (kept, *rest), dict(node.kwargs)):
        return
    if not budget.take(node):
        return
    node.args = (kept, *rest)


    if len(kept) == 1 and fits(node, aten.clone.default, (kept[0],), _CONTIGUOUS):
        node.target, node.args, node.kwargs = aten.clone.default, (kept[0],), _CONTIGUOUS


_CONTIGUOUS: dict[str, Any] = {"memory_format": torch.contiguous_format}


def _has_elements(value: Any) -> bool:
    spec = spec_of(value) if isinstance(value, fx.Node) else None
    return not isinstance(spec, TensorSpec) or spec.numel != 0


_ALIASES = frozenset({aten.detach.default, aten.alias.default, aten.lift_fresh.default})

_RULES: dict[Any, Callable[[fx.Node], fx.Node | None]] = {
    **dict.fromkeys(_ALIASES, _first),
    aten.clone.default: _first,
    aten._to_copy.default: _first,
    aten.mul.Tensor: _times_one,
    aten.mul.Scalar: _times_one,
    aten.div.Tensor: _over_one,
    aten.div.Scalar: _over_one,
    aten.pow.Tensor_Scalar: _over_one,
    aten.add.Tensor: _nothing_more(1.0),
    aten.add.Scalar: _nothing_more(1.0),
    aten.sub.Tensor: _nothing_more(-1.0),
    aten.sub.Scalar: _nothing_more(-1.0),
    aten.neg.default: _twice_negated,
    aten.constant_pad_nd.default: _pads_nothing,
}
