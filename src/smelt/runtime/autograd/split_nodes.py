"""A compiled graph as several nodes of autograd's graph, where one would join histories that have nothing to do with
each other.

    h, k = a * 2, b * 3; p, q = f(h, k)        p leads to h alone and q to k alone:  p → way to h,  q → way to k
    p.sum().backward(); q.sum().backward()     with one node for both, the first would free what `k` is computed from

PyTorch's engine goes on from a node to all that it was computed from, with no gradient where there is none, and frees
what is saved on the way. In eager it never gets there. So results that lead to the same inputs have a node, and inputs
that the same results lead to have one, a way; what is saved lies beside them all. A result's node only notes what
arrives. Ways are older than results, so that the engine comes to them when all that will arrive has: the first of them
runs the backward, once for all that arrived.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.base.coexist import leave_alone
from smelt.base.fast_dataclass import dataclass
from smelt.base.torch_originals import BASE
from smelt.runtime.autograd.alias_outputs import own_tensors
from smelt.runtime.autograd.differentiable import Differentiable
from smelt.runtime.autograd.function_node import compute, gradients_of
from smelt.runtime.autograd.hooks import call_for_own_gradients
from smelt.runtime.autograd.saved_tensors import Left

# What a node needs to be one of autograd's, where nothing else requires grad: never written, never read.
_anchor = torch.empty(0, device="cpu", requires_grad=True)


@dataclass(slots=True)
class _Arrived:
    """What one backward has brought: tangents that were not dealt with yet, and gradients that were not handed on."""

    tangents: dict[int, Any]
    gradients: list[Any]


class _Released:
    """A context of which PyTorch holds nothing any more."""

    def __init__(self, joined: Any, left: Left) -> None:
        self.joined, self.left = joined, left

    def maybe_clear_saved_tensors(self) -> None:
        """There are none."""


class SplitCall:
    """Where the ways of one call meet."""

    __slots__ = ("_arrived", "_held", "state")

    def __init__(self, state: Differentiable, token: torch.Tensor) -> None:
        self.state = state
        self._held: torch.Tensor | _Released = token  # what is saved hangs on its node
        self._arrived: dict[int, _Arrived] = {}

    @property
    def ctx(self) -> Any:
        """The context that has what the forward saved."""
        return self._held.grad_fn if isinstance(self._held, torch.Tensor) else self._held

    def release(self) -> None:
        """A backward has been that does not retain the graph: what PyTorch holds is let go, as by the engine."""
        ctx = self.ctx
        everything = (1 << len(self.state.tangents)) - 1
        self._held = _Released(ctx.joined, ctx.__dict__.get("left") or ([], everything))

    def arrive(self, numbers: Sequence[int], tangents: Sequence[Any]) -> None:
        """Note what arrives for results in the backward that is under way."""
        task = torch._C._current_graph_task_id()
        if task not in self._arrived:
            self._arrived[task] = _Arrived({}, [None] * self.state.plan.inputs)
            if task != -1:  # ways that nobody asks for are not gone
                engine: Any = torch.autograd.Variable._execution_engine
                engine.queue_callback(lambda: self._arrived.pop(task, None))
        found = zip(numbers, tangents, strict=True)
        self._arrived[task].tangents.update((number, each) for number, each in found if each is not None)

    def flowing_to(self, inputs: Sequence[int]) -> list[Any]:
        """Gradients of some inputs, which are handed on once."""
        arrived = self._arrived.get(torch._C._current_graph_task_id())
        if arrived is None:
            return [None] * len(inputs)
        if arrived.tangents:
            given, arrived.tangents = arrived.tangents, {}
            tangents = [given.pop(number, None) for number in range(len(self.state.tangents))]
            found = gradients_of(self.ctx, tangents, *self.ctx.joined)
            arrived.gradients = [
                new if old is None else old if new is None else old + new
                for old, new in zip(arrived.gradients, found, strict=True)
            ]
        taken = [arrived.gradients[index] for index in inputs]
        for index in inputs:
            arrived.gradients[index] = None
        return taken


class _Holder(torch.autograd.Function):
    """Runs the forward and has what it saved. No backward comes here."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, box: list[Any], inputs: Sequence[Any], found: list[Any]) -> Any:
        found += compute(ctx, box, inputs)
        return torch.empty(0, device="cpu")


@leave_alone
class InputGroupNode(torch.autograd.Function):
    """The node behind which inputs are that the same results lead to."""

    @staticmethod
    def forward(ctx: Any, crossing: SplitCall, indices: Sequence[int], *inputs: Any) -> torch.Tensor:
        ctx.crossing, ctx.indices = crossing, indices
        ctx.set_materialize_grads(False)
        return torch.empty(0, device="cpu")

    @staticmethod
    def backward(ctx: Any, nothing: Any) -> tuple[Any, ...]:
        return (None, None, *ctx.crossing.flowing_to(ctx.indices))


@leave_alone
class PartOfResults(torch.autograd.Function):
    """The node of results that lead to the same inputs."""

    @staticmethod
    def forward(ctx: Any, crossing: SplitCall, numbers: Sequence[int], values: Sequence[Any], *ways: Any) -> Any:
        ctx.crossing, ctx.numbers = crossing, numbers
        ctx.set_materialize_grads(False)
        # Not the values themselves: what is saved may be one of them, and would lead back to this node.
        return tuple([BASE.detach(value) for value in values])

    @staticmethod
    def backward(ctx: Any, *tangents: Any) -> tuple[Any, ...]:
        ctx.crossing.arrive(ctx.numbers, tangents)
        return (None,) * len(ctx.needs_input_grad)


call_for_own_gradients(PartOfResults)
# `Function.apply` without its preparations for `torch.func`, where compiled graphs do not run so.
_hold: Callable[..., Any] = super(torch.autograd.Function, _Holder).apply
_way: Callable[..., Any] = super(torch.autograd.Function, InputGroupNode).apply
_part: Callable[..., Any] = super(torch.autograd.Function, PartOfResults).apply


def is_parted(state: Differentiable, inputs: Sequence[Any]) -> bool:
    """Whether an input that not all results lead to has a history, or hooks, which are not called for nothing."""
    return any(not inputs[index].is_leaf or inputs[index]._backward_hooks for index in state.not_always)


def apply_parted(state: Differentiable, box: list[Any], inputs: Sequence[Any]) -> tuple[Any, ...]:
    """As `apply` of the one node: what gradients may arrive for; all results are put into the box."""
    plan = state.plan
    values: list[Any] = []
    crossing = SplitCall(state, _hold(_anchor, box, inputs, values))
    ways: dict[int, Any] = {}
    for fed, indices in reversed(state.ways.items()):  # of those, the engine takes the youngest first
        ways[fed] = _way(crossing, indices, *[inputs[index] for index in indices])
    made: list[Any] = [None] * len(plan.differentiable)
    for led, numbers in state.results_by_ways.items():
        given = [values[plan.differentiable[number]] for number in numbers]
        results = _part(crossing, numbers, given, _anchor, *[ways[fed] for fed in led])
        for number, result in zip(numbers, results, strict=True):
            made[number] = result
    if not state.only_results:
        box.append([*own_tensors(values[: plan.results]), *values[plan.results : plan.forward_outputs]])
    return tuple(made)
