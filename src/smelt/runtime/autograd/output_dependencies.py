"""Results that depend on other outputs, and whether anyone observes gradients of those outputs.

    h, y = f(x)        y's node in autograd's graph leads to the compiled graph's, as any does, and to h's

A compiled graph is one node, with a backward for all its results at once. But `y` may be computed from `h`, and then a
gradient of `y` passes `h` on its way: hooks on `h` see it and may change it, `h.retain_grad()` keeps it, and
`torch.autograd.grad(y, h)` asks for it. So `y` gets its own node. Most of the time nobody observes `h`, and that node
passes the gradient on. If somebody does, it computes the gradient that flows to `h` and gives it to `h`'s node, and the
compiled graph's backward does the rest: both are parts of the backward, cut at such outputs.
"""

import sys
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from smelt.base.coexist import leave_alone
from smelt.base.errors import SmeltError
from smelt.base.torch_originals import BASE
from smelt.runtime.autograd.alias_outputs import make_output
from smelt.runtime.autograd.differentiable import Differentiable
from smelt.runtime.autograd.double_backward import needs_double_backward
from smelt.runtime.autograd.hooks import Hooks
from smelt.runtime.autograd.input_mutation import write_back
from smelt.runtime.autograd.layout_fit import fit_saved, fit_tangent, without_autocast
from smelt.runtime.autograd.saved_tensors import peek_saved


class GradObservers:
    """Whether anyone observes gradients of outputs that other results depend on; decided once per backward."""

    __slots__ = ("_answer", "_hooks", "_tensors")

    def __init__(self) -> None:
        self._hooks: list[Mapping[int, Any]] = []
        self._tensors: list[Callable[[], torch.Tensor | None]] = []
        self._answer = (-1, False)  # the id of the backward, and the answer for it

    def watch(self, tensor: torch.Tensor) -> None:
        """Track an output and its hooks, which outlive it."""
        node: Any = tensor.grad_fn
        if node is None:
            return
        if tensor._backward_hooks is None:
            tensor._backward_hooks = Hooks()
            node._register_hook_dict(tensor)
        self._hooks.append(tensor._backward_hooks)
        self._tensors.append(weakref.ref(tensor))

    def observed_now(self) -> bool:
        """Whether anyone observes them in the current backward."""
        task = torch._C._current_graph_task_id()
        answer = self._answer  # read once: another thread may run another backward
        if answer[0] != task:
            answer = self._answer = (task, self.is_observed() or _asks_for_nonleaf())
        return answer[1]

    def is_observed(self) -> bool:
        """Whether an output has hooks or `retain_grad()`."""
        if any(self._hooks):
            return True
        there = [reference() for reference in self._tensors]
        return any(tensor is not None and tensor.retains_grad for tensor in there)


_ENGINE = torch.autograd.graph._engine_run_backward.__code__
_INPUTS = 3  # behind gradients, `retain_graph` and `create_graph`


def _asks_for_nonleaf() -> bool:
    """Whether the current backward was asked for gradients of non-leaf tensors. PyTorch does not tell, so the frame of
    its caller is inspected. The engine may run a node on its own thread: then the caller waits on another thread. If no
    caller is found, assume so."""
    own = next(_callers(sys._getframe(1)), None)
    if own is not None:
        return _wants_nonleaf(own)
    waiting = [caller for frame in sys._current_frames().values() for caller in _callers(frame)]
    return not waiting or any(map(_wants_nonleaf, waiting))


def _callers(frame: types.FrameType | None) -> Iterator[types.FrameType]:
    """The frames of one thread that wait for the engine, innermost first."""
    while frame is not None:
        if frame.f_code is _ENGINE:
            yield frame
        frame = frame.f_back


def _wants_nonleaf(caller: types.FrameType) -> bool:
    args = caller.f_locals["args"]
    if len(args) <= _INPUTS:
        return True
    return any(not isinstance(each, torch.Tensor) or each.grad_fn is not None for each in args[_INPUTS] or ())


@leave_alone
class DependentResult(torch.autograd.Function):
    """The node of a result that depends on other outputs; its edges lead to them."""

    @staticmethod
    def forward(ctx: Any, about: tuple[Differentiable, int, GradObservers], value: Any, *outputs: Any) -> torch.Tensor:
        ctx.about = about
        ctx.set_materialize_grads(False)
        detached: torch.Tensor = BASE.detach(value)
        return detached

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> tuple[Any, ...]:
        state, number, observers = ctx.about
        count = len(ctx.needs_input_grad) - 2
        if gradient is None or not observers.observed_now():
            return (None, gradient, *[None] * count)
        node = ctx.next_functions[0][0]
        holder = node.split_call.ctx if "split_call" in node.__dict__ else node
        return (None, gradient, *_flowing_to_outputs(holder, state, number, gradient))


# `Function.apply` without its preparations for `torch.func`, where compiled graphs do not run.
_apply: Callable[..., Any] = super(torch.autograd.Function, DependentResult).apply


def _flowing_to_outputs(node: Any, state: Differentiable, number: int, gradient: Any) -> Sequence[Any]:
    """The gradients that flow from a result to the outputs that it depends on; `node` holds the saved tensors."""
    if needs_double_backward((gradient,)):
        raise SmeltError(
            "SM040",
            "create_graph=True, and the gradient of an output that another output of the compiled graph depends on is "
            "observed (by a hook, retain_grad() or torch.autograd.grad)",
            hint="call this part under smelt.disable to differentiate it twice",
        )
    operands = list(peek_saved(node, state, 1 << number)[0])
    fit_saved(operands, state, node.compiled_call[2])
    operands.append(fit_tangent(gradient, *state.tangents[number]))
    part = state.part_for(1 << number, number)
    gradients: Sequence[Any] = without_autocast(part, (operands,) if state.consuming else operands)
    return gradients


def attach_dependencies(
    state: Differentiable, observers: GradObservers, inputs: Sequence[Any], results: Sequence[Any]
) -> tuple[list[Any], dict[int, Any]]:
    """Results, with a node for each that depends on other outputs; and those outputs, by position. Mutated inputs have
    their new values afterwards."""
    plan, values = state.plan, list(results)
    outputs: dict[int, Any] = {}
    waiting = bool(plan.mutated_inputs)
    watched: set[int] = set()

    def output(place: int) -> Any:
        nonlocal waiting
        if waiting and place in state.written_outputs:
            write_back(plan, inputs, values[plan.results :])
            waiting = False
        if place < len(plan.outputs):
            tensor = make_output(place, plan.outputs, inputs, values, outputs)
        else:
            tensor = inputs[plan.mutated_inputs[place - len(plan.outputs)]]
        if place not in watched:
            watched.add(place)
            observers.watch(tensor)
        return tensor

    for number, places in plan.output_deps:
        position = plan.differentiable[number]
        values[position] = _apply((state, number, observers), values[position], *map(output, places))
    for place in state.watched:
        output(place)
    if waiting:
        write_back(plan, inputs, values[plan.results :])
    return values, outputs
