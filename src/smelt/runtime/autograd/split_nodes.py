"""A compiled graph as several autograd nodes, where one node would connect histories that are independent in eager.

    h, k = a * 2, b * 3; p, q = f(h, k)        p depends on h only and q on k only:  p → node of h,  q → node of k
    p.sum().backward(); q.sum().backward()     with one node for both, the first would free the graph behind `k`

PyTorch's engine walks from a node to all its inputs, also where no gradient flows, and frees what is saved on the way.
In eager it never gets there. So results that depend on the same inputs share a node (`ResultGroupNode`), and inputs
that the same results depend on share one (`InputGroupNode`); saved tensors belong to the call (`SplitCall`). A result
node only records tangents. Input nodes have lower sequence numbers, so that the engine runs them after all tangents
have arrived: the first of them runs the backward, once. Where hooks wait for gradients, each runs a part of it instead
(`smelt.runtime.autograd.early_gradients`).
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.base.coexist import leave_alone
from smelt.base.fast_dataclass import dataclass
from smelt.base.torch_originals import BASE
from smelt.runtime.autograd.alias_outputs import detach_views
from smelt.runtime.autograd.differentiable import Differentiable
from smelt.runtime.autograd.early_gradients import EarlyBackward, Groups, delivery_order
from smelt.runtime.autograd.function_node import compute, gradients_of, run_whole
from smelt.runtime.autograd.hooks import skip_hooks_without_grad
from smelt.runtime.autograd.saved_tensors import RemainingSaved

# Makes a node require grad where no input does: never written, never read.
_anchor = torch.empty(0, device="cpu", requires_grad=True)


@dataclass(slots=True)
class _Arrived:
    """State of one backward: tangents not processed yet, gradients not passed on yet, and a run that has paused."""

    tangents: dict[int, Any]
    gradients: list[Any]
    paused: EarlyBackward | None = None

    def add(self, gradients: Sequence[tuple[int, Any]]) -> None:
        """Gradients by input."""
        for index, new in gradients:
            old = self.gradients[index]
            self.gradients[index] = new if old is None else old if new is None else old + new

    def begin(
        self, tangents: Sequence[Any], state: Differentiable, backward: Any, operands: list[Any]
    ) -> Sequence[Any]:
        """Begin a backward that pauses, if it can: it has no results yet. Else run it."""
        order = delivery_order(backward, state.plan)
        if order is None:
            return run_whole(state, backward, operands)
        arrived = sum(1 << number for number, tangent in enumerate(tangents) if tangent is not None)
        self.paused = EarlyBackward(state, backward, operands, order, arrived)
        return (None,) * len(state.plan.gradients)


class _Released:
    """Stands for the context of the forward node once it was freed."""

    def __init__(self, joined: Any, remaining: RemainingSaved) -> None:
        self.compiled_call, self.remaining = joined, remaining

    def maybe_clear_saved_tensors(self) -> None:
        """Nothing is saved."""


class SplitCall:
    """One call of a compiled graph that is split into several nodes."""

    __slots__ = ("_arrived", "_token", "is_early", "state")

    def __init__(self, state: Differentiable, token: torch.Tensor, is_early: bool) -> None:
        self.state = state
        self.is_early = is_early
        self._token: torch.Tensor | _Released = token  # its grad_fn holds what is saved
        self._arrived: dict[int, _Arrived] = {}

    @property
    def ctx(self) -> Any:
        """The context that holds what the forward saved."""
        return self._token.grad_fn if isinstance(self._token, torch.Tensor) else self._token

    def release(self) -> None:
        """Free the forward node after a backward that does not retain the graph, as the engine does."""
        ctx = self.ctx
        everything = (1 << len(self.state.tangents)) - 1
        self._token = _Released(ctx.compiled_call, ctx.__dict__.get("remaining") or ([], everything))

    def arrive(self, numbers: Sequence[int], tangents: Sequence[Any]) -> None:
        """Record tangents of results in the current backward."""
        task = torch._C._current_graph_task_id()
        if task not in self._arrived:
            self._arrived[task] = _Arrived({}, [None] * self.state.plan.inputs)
            if task != -1:  # input nodes that the engine skips would leave it here
                engine: Any = torch.autograd.Variable._execution_engine
                engine.queue_callback(lambda: self._arrived.pop(task, None))
        pairs = zip(numbers, tangents, strict=True)
        self._arrived[task].tangents.update((number, each) for number, each in pairs if each is not None)

    def flowing_to(self, inputs: Sequence[int]) -> list[Any]:
        """Gradients of some inputs; each is passed on once."""
        arrived = self._arrived.get(torch._C._current_graph_task_id())
        if arrived is None:
            return [None] * len(inputs)
        if arrived.tangents:
            by_number, arrived.tangents = arrived.tangents, {}
            tangents = [by_number.pop(number, None) for number in range(len(self.state.tangents))]
            if arrived.paused is not None:
                arrived.add(arrived.paused.remaining())
            run = functools.partial(arrived.begin, tangents) if self.is_early else run_whole
            arrived.add(list(enumerate(gradients_of(self.ctx, tangents, *self.ctx.compiled_call, run=run))))
        if arrived.paused is not None:
            arrived.add(arrived.paused.gradients(inputs))
        taken = [arrived.gradients[index] for index in inputs]
        for index in inputs:
            arrived.gradients[index] = None
        return taken


class _ForwardNode(torch.autograd.Function):
    """Runs the forward and holds what it saved. No backward reaches it."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, box: list[Any], inputs: Sequence[Any], results: list[Any]) -> Any:
        results += compute(ctx, box, inputs)
        return torch.empty(0, device="cpu")


@leave_alone
class InputGroupNode(torch.autograd.Function):
    """The node of inputs that the same results depend on."""

    @staticmethod
    def forward(ctx: Any, split_call: SplitCall, indices: Sequence[int], *inputs: Any) -> torch.Tensor:
        ctx.split_call, ctx.indices = split_call, indices
        ctx.set_materialize_grads(False)
        # The engine runs the node on the stream of its forward if its result is on that device.
        return torch.empty(0, device=inputs[0].device if inputs[0].is_cuda else "cpu")

    @staticmethod
    def backward(ctx: Any, nothing: Any) -> tuple[Any, ...]:
        return (None, None, *ctx.split_call.flowing_to(ctx.indices))


@leave_alone
class ResultGroupNode(torch.autograd.Function):
    """The node of results that depend on the same inputs."""

    @staticmethod
    def forward(ctx: Any, split_call: SplitCall, numbers: Sequence[int], values: Sequence[Any], *groups: Any) -> Any:
        ctx.split_call, ctx.numbers = split_call, numbers
        ctx.set_materialize_grads(False)
        # Detached: a saved tensor may be one of the values, and would form a reference cycle with this node.
        return tuple([BASE.detach(value) for value in values])

    @staticmethod
    def backward(ctx: Any, *tangents: Any) -> tuple[Any, ...]:
        ctx.split_call.arrive(ctx.numbers, tangents)
        return (None,) * len(ctx.needs_input_grad)


skip_hooks_without_grad(ResultGroupNode)
# `Function.apply` without its preparations for `torch.func`, under which compiled graphs are not split.
_run_forward: Callable[..., Any] = super(torch.autograd.Function, _ForwardNode).apply
_input_group: Callable[..., Any] = super(torch.autograd.Function, InputGroupNode).apply
_result_group: Callable[..., Any] = super(torch.autograd.Function, ResultGroupNode).apply


def needs_split(state: Differentiable, inputs: Sequence[Any]) -> bool:
    """Whether an input that only some results depend on has a history or hooks."""
    for index in state.partly_reached:
        each = inputs[index]
        if not each.is_leaf or each._backward_hooks or each._post_accumulate_grad_hooks:
            return True
    return False


def apply_split(state: Differentiable, box: list[Any], inputs: Sequence[Any], early: Groups | None) -> tuple[Any, ...]:
    """As `apply` of the one node: the differentiable results; all values go into the box. `early`: the groups of
    inputs, if the backward is to pause after each."""
    plan = state.plan
    values: list[Any] = []
    split_call = SplitCall(state, _run_forward(_anchor, box, inputs, values), early is not None)
    groups: dict[int, list[Any]] = {}
    for bits, indices in reversed(early or tuple(state.input_groups.items())):  # the engine runs the last made first
        node = _input_group(split_call, indices, *[inputs[index] for index in indices])
        groups.setdefault(bits, []).append(node)
    differentiable: list[Any] = [None] * len(plan.differentiable)
    everything = (1 << len(plan.tangents)) - 1
    for reached, numbers in (state.results_by_groups or {(everything,): tuple(range(len(plan.tangents)))}).items():
        group_values = [values[plan.differentiable[number]] for number in numbers]
        nodes = [node for bits in reached for node in groups[bits]]
        results = _result_group(split_call, numbers, group_values, _anchor, *nodes)
        for number, result in zip(numbers, results, strict=True):
            differentiable[number] = result
    if not state.only_results:
        box.append([*detach_views(values[: plan.results]), *values[plan.results : plan.forward_outputs]])
    return tuple(differentiable)
