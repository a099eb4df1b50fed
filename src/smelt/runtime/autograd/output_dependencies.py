"""Results that are computed from other outputs, and who looks at those outputs.

    h, y = f(x)        y's node in autograd's graph leads to the compiled graph's, as any does, and to h's

A compiled graph is one node, with a backward for all its results at once. But `y` may be computed from `h`, and then a
gradient of `y` passes `h` on its way: hooks on `h` see it and may change it, `h.retain_grad()` keeps it, and
`torch.autograd.grad(y, h)` asks for it. So `y` gets a node of its own. Most of the time nobody looks at `h`, and that
node hands on what it is given. If somebody does, it computes what of its gradient flows to `h` and gives it to `h`'s
node, and the compiled graph's backward does the rest: both are parts of the backward that stop at such outputs.
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
from smelt.runtime.autograd.saved_tensors import look


class GradObservers:
    """Whether somebody looks at outputs that others lean on; decided once for each backward."""

    __slots__ = ("_answer", "_hooks", "_tensors")

    def __init__(self) -> None:
        self._hooks: list[Mapping[int, Any]] = []
        self._tensors: list[Callable[[], torch.Tensor | None]] = []
        self._answer = (-1, False)  # the backward it was asked in, and what it was

    def watch(self, tensor: torch.Tensor) -> None:
        """Notice what becomes of an output. Its hooks outlive it, so they are kept where they can be seen."""
        node: Any = tensor.grad_fn
        if node is None:
            return
        if tensor._backward_hooks is None:
            tensor._backward_hooks = Hooks()
            node._register_hook_dict(tensor)
        self._hooks.append(tensor._backward_hooks)
        self._tensors.append(weakref.ref(tensor))

    def anyone(self) -> bool:
        """In the backward that is under way."""
        task = torch._C._current_graph_task_id()
        answer = self._answer  # as one: another thread may be in another backward
        if answer[0] != task:
            answer = self._answer = (task, self.is_looked_at() or _asks_for_computed())
        return answer[1]

    def is_looked_at(self) -> bool:
        """Whether there are hooks, or gradients to be retained."""
        if any(self._hooks):
            return True
        there = [reference() for reference in self._tensors]
        return any(tensor is not None and tensor.retains_grad for tensor in there)


_ENGINE = torch.autograd.graph._engine_run_backward.__code__
_INPUTS = 3  # behind gradients, `retain_graph` and `create_graph`


def _asks_for_computed() -> bool:
    """Whether the backward that is under way is for gradients of tensors that were computed. PyTorch does not tell, so
    its caller is looked at. The engine may run a node on a thread of its own: then it is one of the callers that wait
    on other threads. Where there is none to be seen, somebody may."""
    own = next(_callers(sys._getframe(1)), None)
    if own is not None:
        return _is_for_computed(own)
    waiting = [caller for frame in sys._current_frames().values() for caller in _callers(frame)]
    return not waiting or any(map(_is_for_computed, waiting))


def _callers(frame: types.FrameType | None) -> Iterator[types.FrameType]:
    """The frames that wait for the engine on one thread, the innermost first."""
    while frame is not None:
        if frame.f_code is _ENGINE:
            yield frame
        frame = frame.f_back


def _is_for_computed(caller: types.FrameType) -> bool:
    given = caller.f_locals["args"]
    if len(given) <= _INPUTS:
        return True
    return any(not isinstance(each, torch.Tensor) or each.grad_fn is not None for each in given[_INPUTS] or ())


@leave_alone
class LeaningResult(torch.autograd.Function):
    """A result, with the outputs that it leans on behind it."""

    @staticmethod
    def forward(ctx: Any, about: tuple[Differentiable, int, GradObservers], value: Any, *outputs: Any) -> torch.Tensor:
        ctx.about = about
        ctx.set_materialize_grads(False)
        detached: torch.Tensor = BASE.detach(value)
        return detached

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> tuple[Any, ...]:
        state, number, lookout = ctx.about
        count = len(ctx.needs_input_grad) - 2
        if gradient is None or not lookout.anyone():
            return (None, gradient, *[None] * count)
        node = ctx.next_functions[0][0]
        holder = node.crossing.ctx if "crossing" in node.__dict__ else node
        return (None, gradient, *_flowing_to_outputs(holder, state, number, gradient))


# `Function.apply` without its preparations for `torch.func`, where compiled graphs do not run.
_apply: Callable[..., Any] = super(torch.autograd.Function, LeaningResult).apply


def _flowing_to_outputs(node: Any, state: Differentiable, number: int, gradient: Any) -> Sequence[Any]:
    """What of the gradient of a result flows to the outputs that it leans on; `node` has what is saved."""
    if needs_double_backward((gradient,)):
        raise SmeltError(
            "SM040",
            "a gradient of one result of a compiled graph on its way to another is looked at (by a hook, retain_grad() "
            "or torch.autograd.grad), and create_graph=True asks for its derivative",
            hint="call this part under smelt.disable to differentiate it twice",
        )
    given = list(look(node, state, 1 << number)[0])
    fit_saved(given, state, node.joined[2])
    given.append(fit_tangent(gradient, *state.tangents[number]))
    part = state.part_for(1 << number, number)
    found: Sequence[Any] = without_autocast(part, (given,) if state.consuming else given)
    return found


def lean(
    state: Differentiable, lookout: GradObservers, inputs: Sequence[Any], results: Sequence[Any]
) -> tuple[list[Any], dict[int, Any]]:
    """Results, those that lean on outputs with a node of their own; and these outputs, by position. Inputs that are
    written have their new values afterwards."""
    plan, values = state.plan, list(results)
    made: dict[int, Any] = {}
    waiting = bool(plan.mutated_inputs)
    watched: set[int] = set()

    def output(place: int) -> Any:
        nonlocal waiting
        if waiting and place in state.after_writing:
            write_back(plan, inputs, values[plan.results :])
            waiting = False
        if place < len(plan.outputs):
            tensor = make_output(place, plan.outputs, inputs, values, made)
        else:
            tensor = inputs[plan.mutated_inputs[place - len(plan.outputs)]]
        if place not in watched:
            watched.add(place)
            lookout.watch(tensor)
        return tensor

    for number, places in plan.output_deps:
        position = plan.differentiable[number]
        values[position] = _apply((state, number, lookout), values[position], *map(output, places))
    for place in state.watched:
        output(place)
    if waiting:
        write_back(plan, inputs, values[plan.results :])
    return values, made
