"""Decomposes dropout that PyTorch computes with one kernel, where its random numbers follow from a formula.

    dropped, kept = native_dropout(x, 0.1, True)
    →  seed, offset = philox_state([], device, words, …); kept = view(dropout_mask(seed, offset, …), shape)
       dropped = mul(mul(x, kept), 1.1111112)

The result can be fused with its neighbours, and the backward recomputes the mask from two numbers. Consecutive masks
share one `philox_state`, unless something else draws random numbers between them. PyTorch's kernel depends on the
alignment of its operand; for an operand that comes from outside, that is checked when the program runs.
"""

import operator
from collections.abc import Callable

import torch
from torch import fx

from smelt.base.fast_dataclass import dataclass
from smelt.base.rewrite_budget import RewriteBudget
from smelt.device.host_library import HOST
from smelt.ir.call_contract import set_recompute_policy
from smelt.ir.graph import Traced
from smelt.ir.nodes.philox_draws import DROPOUT_MASK, PHILOX_STATE, Draws, taken_at_once, threshold
from smelt.ir.tensorspec import TensorSpec, tensor_spec
from smelt.meta.effects import draws, is_view
from smelt.meta.rules.strides import is_contiguous
from smelt.simplify.aliasing import insert
from smelt.symbolic.shapes import product

aten = torch.ops.aten

Blocks = Callable[[torch.device, torch.dtype, int], int | None]
"""How many blocks draw on a device at most, elements of a dtype taken so many at once; None: in an unknown way."""

_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@dataclass(slots=True)
class _Open:
    """A state that the next mask may be drawn from."""

    node: fx.Node
    seed: fx.Node
    offset: fx.Node
    words: int
    key: tuple[torch.device, int]


def draw_in_kernels(traced: Traced, budget: RewriteBudget, blocks: Blocks) -> Traced:
    """Rewrite a pure graph, or the joint graph of a training step before it is split."""
    state: _Open | None = None
    for node in list(traced.graph.nodes):
        if node.op != "call_function" or not draws(node):
            continue
        plan = _plan(node, blocks)
        if plan is None or not budget.take(node):
            state = None  # what it draws comes in between
            continue
        state = _rewritten(node, plan, state)
    return traced


@dataclass(frozen=True, slots=True)
class _Plan:
    drawn: Draws
    most: int  # blocks
    outside: fx.Node | None  # whose memory the operand is in, if that is given from outside
    alignment: int


def _plan(node: fx.Node, blocks: Blocks) -> _Plan | None:
    """How a call of dropout is drawn; None if it stays a call."""
    if node.target is not aten.native_dropout.default or node.args[2] is False or not 0.0 < node.args[1] < 1.0:  # type: ignore[operator]
        return None
    x = node.args[0]
    assert isinstance(x, fx.Node)
    spec = tensor_spec(x)
    if spec.varies or spec.dtype not in _FLOATS or not is_contiguous(spec.shape, spec.stride):
        return None
    count = product(spec.shape)
    at_once = taken_at_once(count, spec.dtype)
    if not 0 < count < 1 << 31:
        return None
    most = blocks(spec.device, spec.dtype, at_once)
    home = _home(x)
    further = spec.offset - (tensor_spec(home).offset if home.op == "placeholder" else 0)
    if most is None or further % at_once:
        return None
    outside = home if home.op == "placeholder" else None
    return _Plan(Draws.by_blocks(count, most, at_once), most, outside, at_once * spec.dtype.itemsize)


def _home(node: fx.Node) -> fx.Node:
    """What made the memory of a value."""
    while is_view(node.target) and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node


def _rewritten(node: fx.Node, plan: _Plan, state: _Open | None) -> _Open:
    x, probability = node.args[:2]
    assert isinstance(x, fx.Node) and isinstance(probability, float | int)
    spec, drawn = tensor_spec(x), plan.drawn
    key = spec.device, plan.most
    if state is None or state.key != key:
        state = _new_state(node, key)
    generators, device, _, most, alignment = state.node.args
    generators = [*generators, *([] if plan.outside is None or plan.outside in generators else [plan.outside])]  # type: ignore[misc, operator]
    alignment = max(alignment, plan.alignment)  # type: ignore[type-var]
    words = state.words + drawn.words
    state.node.args = (generators, device, words, most, alignment)
    below = threshold(1.0 - probability, spec.dtype)
    how = (drawn.count, drawn.threads, drawn.at_once, below, state.words)
    line = TensorSpec((drawn.count,), (1,), torch.bool, spec.device)
    kept_spec = TensorSpec(spec.shape, spec.stride, torch.bool, spec.device)
    flat = insert(node, DROPOUT_MASK, (state.seed, state.offset, *how), {"device": spec.device}, line)
    kept = insert(node, aten.view.default, (flat, list(spec.shape)), {}, kept_spec)
    dropped_spec = TensorSpec(spec.shape, spec.stride, spec.dtype, spec.device)
    wide = torch.float64 if spec.dtype is torch.float64 else torch.float32
    scale = (1 / torch.tensor(1.0 - probability, dtype=torch.float64, device=HOST).to(wide)).item()
    masked = insert(node, aten.mul.Tensor, (x, kept), {}, dropped_spec)
    product = insert(node, aten.mul.Tensor, (masked, scale), {}, dropped_spec)
    for user in list(node.users):
        assert user.target is operator.getitem
        user.replace_all_uses_with(product if user.args[1] == 0 else kept)
        node.graph.erase_node(user)
    node.graph.erase_node(node)
    state.words = words
    return state


def _new_state(node: fx.Node, key: tuple[torch.device, int]) -> _Open:
    device, most = key
    number = TensorSpec((), (), torch.int64, HOST)
    state = insert(node, PHILOX_STATE, ([], device, 0, most, 1), {}, (number, number))
    parts = [insert(node, operator.getitem, (state, place), {}, number) for place in range(2)]
    for each in (state, *parts):
        set_recompute_policy(each, None)  # what is drawn is drawn once
    return _Open(state, parts[0], parts[1], 0, key)
