"""Joining compiled graphs to their caller: write-backs, aliases, and PyTorch's autograd.

    join(forward, backward, plan) : flat tensors → flat outputs, as eager would leave the world

With tangents in the plan the forward runs inside one `torch.autograd.Function`. What it saves goes through
`save_for_backward`, so PyTorch's version checks, saved-tensor hooks and freeing work as ever. A backward under
`create_graph=True` does not run the compiled backward, whose own derivative nobody has: it computes the results again
from the inputs, differentiably and with the same random numbers, and lets PyTorch differentiate that. So does one for
many tangents at once, which are no tensors with memory.

An input that is written differentiably gets its new value by `copy_`, which is how PyTorch's autograd learns of it.
"""

import contextlib
import itertools
import operator
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import forward_ad

from smelt import _native
from smelt.base.collector import paused
from smelt.base.errors import SmeltError, UnexpectedResult
from smelt.ir.graph import Traced
from smelt.ir.joint import Plan, Replay
from smelt.ir.tensorspec import TensorSpec
from smelt.runtime.outputs import finisher, own_tensors

Flat = Callable[..., "tuple[Any, ...]"]


# Makes the backward for gradients that arrive for some results, a bit each; None where only the one for all will do.
MakeBackward = Callable[[int], "Flat | None"]
# The same as a graph, for whoever writes it out in a larger one.
GraphOfBackward = Callable[[int], "Traced | None"]


def join(
    forward: Flat,
    backwards: MakeBackward | None,
    plan: Plan,
    *,
    replay: Replay | str = "no graph to compute the results from again was kept",
    eager: Flat | None = None,
    consuming: bool = False,
    graphs: GraphOfBackward | None = None,
) -> Flat:
    """A callable from flat input tensors to flat outputs.

    Each backward is made when it is first needed; it takes what was saved and the tangents that have a bit. If they are
    `consuming`, backwards take all that in a list, out of which they take it, so that memory is free again as soon as
    it has been read.

    `eager`, the original graph, runs instead where the compiled one would not be right: when inputs that are written
    share memory, under `torch.func` transforms, in forward-mode differentiation, inside `torch.utils.checkpoint`, and
    where an operator turns out to yield something else than was said of it.
    """
    if not plan.tangents:
        alone = _Forward(forward, plan, eager)
        return _quick_forward(alone) if alone.is_simple else alone.__call__
    if backwards is None:
        raise ValueError("a plan with tangents needs a backward")
    state = _Differentiable(forward, backwards, plan, replay, eager, consuming, graphs)
    return _quick(state) if state.is_simple else state.__call__


class _Forward:
    """A compiled graph without gradients."""

    def __init__(self, forward: Flat, plan: Plan, eager: Flat | None) -> None:
        self.forward = forward
        self.plan = plan
        self.eager = eager
        self.finish = finisher(plan)
        self.in_place: bool = getattr(forward, "in_place", False)  # whether it writes to inputs itself
        # Nothing to be done but to compute: see `_quick_forward`.
        self.is_simple = self.finish is None and not (plan.copied or plan.written or plan.rebased or self.in_place)

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        plan = self.plan
        if self.eager is not None and _only_eager_is_right(plan, inputs):
            return self.eager(*inputs)
        grad = torch.is_grad_enabled()
        if grad:
            torch._C._set_grad_enabled(False)
        try:
            autocast = torch._C._is_any_autocast_enabled()
            values = _without_autocast(self.forward, inputs) if autocast else self.forward(*inputs)
            if plan.copied:
                values = _own(values, plan.copied)
        except UnexpectedResult:
            if self.eager is None:
                raise
            return self.eager(*inputs)  # nothing is written before the last call that may end here
        except RuntimeError as error:
            if self.in_place and "allocate" in str(error):  # memory ran out, maybe between two writes
                _count_writes([inputs[index] for index in plan.written])
            raise
        finally:
            if grad:
                torch._C._set_grad_enabled(True)
        if plan.written:
            _write_back(plan, inputs, values[plan.results : plan.forward_outputs])
        results = own_tensors(values[: plan.results])
        return tuple(results) if self.finish is None else self.finish(inputs, results)


_numbers = itertools.count()


class _Differentiable:
    """A compiled forward and backward."""

    def __init__(
        self,
        forward: Flat,
        backwards: MakeBackward,
        plan: Plan,
        replay: Replay | str,
        eager: Flat | None,
        consuming: bool,
        graphs: GraphOfBackward | None,
    ) -> None:
        self.forward = forward
        self.backwards = backwards
        self.graphs = graphs
        # By the results that gradients arrive for: the backward, and whether it takes zeros for the others.
        self.made: dict[int, tuple[Flat, bool]] = {}
        self.making = threading.Lock()
        self.number = next(_numbers)
        self.plan = plan
        self.replay = replay
        self.eager = eager
        self.consuming = consuming
        self.finish = finisher(plan)
        # Where each saved tensor comes from: an input's number, or a position among the forward's values.
        self.kept = tuple(
            (saved.source is not None, plan.forward_outputs + place if saved.source is None else saved.source)
            for place, saved in enumerate(plan.saved)
        )
        saved_inputs = {saved.source for saved in plan.saved}
        # Old values that only a derivative of higher order needs; PyTorch keeps them with what else is saved.
        self.recalled = tuple(index for index in plan.recalled if index not in saved_inputs)
        self.kept += tuple((True, index) for index in self.recalled)
        saved_inputs.update(self.recalled)
        self.others = tuple(index for index in range(plan.inputs) if index not in saved_inputs)
        self.wanted = frozenset(plan.gradients)
        self.only_results = plan.results == len(plan.differentiable) and not plan.written
        self.only_values = self.only_results and plan.differentiable == tuple(range(plan.forward_outputs))
        self.tangents = tuple((spec, spec.stride) for spec in plan.tangents)
        # Nothing to be done but to compute: see `_quick`.
        self.is_simple = self.only_values and self.finish is None and not (plan.copied or plan.recalled or plan.random)
        # What autograd is handed and what it hands on, from the graph's own order and back; see `Plan.handed`.
        self.out, self.back = _turned(plan.handed)
        needed = frozenset(plan.needed).difference(plan.written)
        self.tracked = tuple((index, index in self.wanted, index in needed) for index in self.others)

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        plan = self.plan
        transformed = torch._C._are_functorch_transforms_active()
        hooked = torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
        if (transformed or hooked or forward_ad._current_level >= 0 or plan.written) and (
            self.eager is not None and (_only_eager_is_right(plan, inputs) or _is_checkpointed())
        ):
            return self.eager(*inputs)
        copied = (*plan.recalled, *(index for index in plan.passing if not inputs[index].is_leaf))
        given = _with_old_values(copied, inputs) if copied else inputs
        # The way in, and the way out for values that are no results of the function.
        box: list[Any] = [self, torch.get_rng_state() if plan.random else None]
        apply: Flat = _Joined.apply if transformed else _apply
        try:
            differentiable = apply(box, *self.out(given))
        except UnexpectedResult:
            if self.eager is None:
                raise
            return self.eager(*inputs)
        values: Any = differentiable
        if len(box) > 2:
            values = box[2]
            for position, value in zip(plan.differentiable, differentiable, strict=True):
                values[position] = value
            if plan.written:
                _write_back(plan, inputs, values[plan.results :])
        result: tuple[Any, ...] = values if self.finish is None else self.finish(inputs, values)
        return result

    def backward_for(self, arrived: int) -> tuple[Flat, bool]:
        """The backward for gradients of these results, and whether it takes zeros for the others."""
        found = self.made.get(arrived)
        if found is None:
            found = _native.suspended(self._make_once, arrived)  # what is done there is not the program's
        return found

    def _make_once(self, arrived: int) -> tuple[Flat, bool]:
        with self.making, paused():
            return self.made.get(arrived) or self._make(arrived)

    def _make(self, arrived: int) -> tuple[Flat, bool]:
        run, zeros = self.backwards(arrived), False
        if run is None:
            everything = (1 << len(self.tangents)) - 1
            if arrived == everything:
                raise ValueError("a plan with tangents needs a backward")
            run, zeros = (self.made.get(everything) or self._make(everything))[0], True
        self.made[arrived] = (run, zeros)
        return run, zeros

    def saved_inputs(self, saved: Sequence[Any], others: "Sequence[_Other]") -> list[torch.Tensor]:
        """All inputs of the forward: those saved, and those it only kept track of. Where nothing depends on what an
        input was, any tensor will do."""
        inputs: list[Any] = [None] * self.plan.inputs
        for (is_input, index), tensor in zip(self.kept, saved, strict=True):
            if is_input:
                inputs[index] = tensor
        for (index, _, needed), (other, version, layout) in zip(self.tracked, others, strict=True):
            tensor = other if isinstance(other, torch.Tensor) else _still_there(other)
            if tensor is None and layout is not None:
                shape, stride, dtype, device = layout
                tensor = torch.empty_strided(shape, stride, dtype=dtype, device=device).zero_()
                tensor.requires_grad_(index in self.wanted)
            if tensor is None:
                raise SmeltError(
                    "SM040",
                    f"input {index} of the compiled graph is gone, and create_graph=True needs it again",
                    hint="keep a reference to it until the backward has run",
                )
            if needed and _version(tensor) != version:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace operation: "
                    f"input {index} of the compiled graph, needed again for create_graph=True, is at version "
                    f"{tensor._version}; expected version {version} instead."
                )
            inputs[index] = tensor
        return inputs


def _turned(order: Sequence[int]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """From the graph's order of inputs to the one autograd sees, and back."""
    if not order:
        return _as_is, _as_is
    places = sorted(range(len(order)), key=order.__getitem__)
    return operator.itemgetter(*order), operator.itemgetter(*places)


def _as_is(values: Any) -> Any:
    return values


class _Joined(torch.autograd.Function):
    """The one node that a compiled graph is to PyTorch's autograd."""

    @staticmethod
    def forward(ctx: Any, box: list[Any], *inputs: Any) -> tuple[Any, ...]:
        state: _Differentiable = box[0]
        plan, inputs = state.plan, state.back(inputs)
        # The casts autocast asks for are in the graph already.
        autocast = torch._C._is_any_autocast_enabled()
        values = _without_autocast(state.forward, inputs) if autocast else state.forward(*inputs)
        if plan.copied:
            values = _own(values, plan.copied)
        hooked = False
        others = _track(state, inputs)
        if state.kept:
            ctx.save_for_backward(*[inputs[index] if is_input else values[index] for is_input, index in state.kept])
            hooked = torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
        ctx.set_materialize_grads(False)
        ctx.joined = (state, others, hooked, box[1])  # in one: every attribute of a context costs
        if not state.only_results:
            box.append([*own_tensors(values[: plan.results]), *values[plan.results : plan.forward_outputs]])
        return _results([values[index] for index in plan.differentiable])

    @staticmethod
    def backward(ctx: Any, *tangents: Any) -> tuple[Any, ...]:
        return (None, *ctx.joined[0].out(_gradients(ctx, tangents, *ctx.joined)))


def _gradients(
    ctx: Any,
    tangents: Sequence[Any],
    state: _Differentiable,
    others: "list[_Other] | None" = None,
    hooked: bool = False,
    random: torch.Tensor | None = None,
) -> list[Any]:
    """What flows into each input of the graph."""
    arrived = sum(1 << number for number, tangent in enumerate(tangents) if tangent is not None)
    saved, spent = _saved(ctx, state, arrived)
    if not arrived:
        return [None] * state.plan.inputs  # as from any node that a later one had no gradient for
    if _only_replay_is_right(tangents):
        inputs = state.saved_inputs(saved, others or [])
        gradients: Sequence[Any] = _differentiable_backward(state, inputs, random, tangents)
    else:
        given = list(saved)
        del saved
        ctx.maybe_clear_saved_tensors()  # unless the graph is retained, only `given` has them now
        if others and spent:
            _let_go(others)
        if state.recalled:
            del given[-len(state.recalled) :]
        if hooked:
            given = [_fit(tensor, kept.spec) for tensor, kept in zip(given, state.plan.saved, strict=True)]
        backward, zeros = state.backward_for(arrived)
        for tangent, (spec, stride) in zip(tangents, state.tangents, strict=True):
            if tangent is None and not zeros:
                continue
            plain = tangent is not None and _is_plain(tangent) and tangent.stride() == stride
            given.append(tangent if plain else _fit(tangent, spec))
        gradients = _without_autocast(backward, (given,) if state.consuming else given)
        if state.plan.fed:
            gradients = _without_unfed(gradients, state.plan.fed, arrived)
    placed: list[Any] = [None] * state.plan.inputs
    for index, gradient in zip(state.plan.gradients, gradients, strict=True):
        placed[index] = gradient
    return placed


def _only_replay_is_right(tangents: Sequence[Any]) -> bool:
    """Whether a backward is differentiated itself, or computed for many tangents at once (`is_grads_batched`)."""
    if torch.is_grad_enabled() or torch._C._are_functorch_transforms_active():
        return True
    return any(tangent is not None and _is_batched(tangent) for tangent in tangents)


def _saved(ctx: Any, state: _Differentiable, arrived: int) -> tuple[Sequence[Any], bool]:
    """What was saved for the backward, and whether nobody may ask for it again.

    PyTorch frees all that a node saved when a backward that does not retain the graph has passed it. In eager the
    graph is many nodes, and results that share none that saves anything have a backward each: it is kept for those.
    """
    left: _Left | None = ctx.__dict__.get("left")
    saved, spent = _from_left(left, arrived) if left else (ctx.saved_tensors if state.kept else (), 0)
    if torch._C._autograd._get_current_graph_task_keep_graph():
        return saved, False
    return saved, _spend(ctx, state, arrived, saved, left, spent)


def _spend(
    ctx: Any, state: _Differentiable, arrived: int, saved: Sequence[Any], left: "_Left | None", spent: int
) -> bool:
    """Note that a backward has been that does not retain the graph; whether nobody may ask for what was saved again."""
    everything = (1 << len(state.tangents)) - 1
    for number, used in enumerate(state.plan.spends or (everything,)):
        spent |= used if arrived >> number & 1 else 0
    if spent != everything:
        ctx.left = ([(tensor, _version(tensor)) for tensor in saved], spent)
    elif left:
        ctx.left = ([], spent)
    return spent == everything


# Saved tensors with their versions, and the results whose backward has been.
_Left = tuple[list[tuple[torch.Tensor, int]], int]


def _from_left(left: _Left, arrived: int) -> tuple[Sequence[Any], int]:
    """What an earlier backward left, and which results are spent."""
    tensors, spent = left
    if spent & arrived:
        _gone()
    if any(_version(tensor) != version for tensor, version in tensors):
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation "
            "since the first backward through the graph"
        )
    return [tensor for tensor, _ in tensors], spent


def _without_unfed(gradients: Sequence[Any], fed: Sequence[int], arrived: int) -> list[Any]:
    """Gradients that depend on nothing but results nobody used are none at all: an optimizer skips those."""
    return [
        None if sources and not sources & arrived else gradient
        for gradient, sources in zip(gradients, fed, strict=True)
    ]


# An input that is not saved: itself or a way to have it again, its version, its layout if no more of it is needed and
# it may be gone by then.
_Other = tuple[Any, int, Any]


def _track(state: _Differentiable, inputs: Sequence[Any]) -> list[_Other]:
    """What is not saved, should it be wanted again.

    Leaves that gradients accumulate in outlive the graph anyway, and data is its owner's. What another part of the
    program computed, another compiled graph say, nobody else may have: it is kept if gradients depend on it.
    """
    others: list[_Other] = []
    for index, wanted, needed in state.tracked:
        tensor = inputs[index]
        if not needed:
            layout = (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
            others.append((weakref.ref(tensor), 0, layout))
        elif tensor.is_leaf:
            others.append((tensor if wanted else weakref.ref(tensor), _version(tensor), None))
        else:
            with torch.enable_grad():
                others.append((_hold(tensor), tensor._version, None))
    return others


def _still_there(reference: Callable[[], Any]) -> torch.Tensor | None:
    """What a weak reference leads to. PyTorch keeps a tensor that only its own side holds, and is to be told if Python
    has found it again."""
    tensor: torch.Tensor | None = reference()
    if tensor is not None:
        tensor._fix_weakref()  # type: ignore[attr-defined]
    return tensor


def _leaves(ctx: Any, state: _Differentiable) -> list[_Other]:
    """Inputs that nothing was noted of: gradients accumulate in each, and the node that does so has it."""
    nodes = state.back(ctx.next_functions)
    return [(nodes[index][0].variable, 0, None) for index, _, _ in state.tracked]


def _version(tensor: torch.Tensor) -> int:
    """Tensors of inference mode have none."""
    return -1 if tensor.is_inference() else tensor._version


def _let_go(others: list[_Other]) -> None:
    """The graph is not retained: nothing that was computed is kept beyond this backward."""
    for place, (kept, version, layout) in enumerate(others):
        if isinstance(kept, torch.Tensor) and not kept.is_leaf:
            others[place] = (_gone, version, layout)


def _gone() -> torch.Tensor:
    raise RuntimeError(  # in the words in which PyTorch says it
        "Trying to backward through the graph a second time (or directly access saved tensors after they have already "
        "been freed). Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). "
        "Specify retain_graph=True if you need to backward through the graph a second time or if you need to access "
        "saved tensors after calling backward."
    )


class _Holding(torch.autograd.Function):
    """The same memory with the same past. Not the tensor itself: should that be written, its history may come to lead
    here, and what is in a circle is never freed."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient


_hold: Callable[..., Any] = super(torch.autograd.Function, _Holding).apply


def _results(values: Sequence[Any]) -> tuple[Any, ...]:
    """Values as a node may yield them: PyTorch would forbid writes to a view, as it does for those of a multi-output
    node, and a node has no two results that are one."""
    seen: set[int] = set()
    return tuple([value.detach() if value._is_view() or _again(value, seen) else value for value in values])


def _again(value: object, seen: set[int]) -> bool:
    if id(value) in seen:
        return True
    seen.add(id(value))
    return False


# Whether a tensor is one of those that `is_grads_batched` makes.
_is_batched: Callable[[Any], bool] = torch._C._functorch.is_legacy_batchedtensor

# `Function.apply` without its preparations for `torch.func`, which cost as much as the call itself.
_apply: Callable[..., Any] = super(torch.autograd.Function, _Joined).apply


def _quick_forward(state: _Forward) -> Flat:
    """How a graph without gradients is called of which the outputs are all that comes out."""
    compute, eager = state.forward, state.eager
    in_autocast, in_transform = torch._C._is_any_autocast_enabled, torch._C._are_functorch_transforms_active
    records, set_recording = torch.is_grad_enabled, torch._C._set_grad_enabled

    def call(*inputs: Any) -> tuple[Any, ...]:
        if in_transform() or forward_ad._current_level >= 0 or in_autocast():
            return state(*inputs)
        recording = records()
        if recording:
            set_recording(False)
        try:
            return tuple(own_tensors(compute(*inputs)))
        except UnexpectedResult:
            if eager is None:
                raise
        finally:
            if recording:
                set_recording(True)
        return eager(*inputs)

    return call


def _quick(state: _Differentiable) -> Flat:
    """How a graph is called of which the outputs are all that comes out, fresh and differentiable.

    Most calls are of this kind, and a few steps in Python cost as much as a small kernel: so it has a
    `torch.autograd.Function` of its own, with all that never changes bound beforehand.
    """
    compute, kept, tracked, count = state.forward, state.kept, state.tracked, state.plan.forward_outputs
    # Of leaves whose value does not matter nothing is noted: `_leaves` finds them.
    places = tuple(index for index, _, _ in tracked)
    track_always = any(needed or not wanted for _, wanted, needed in tracked)
    in_autocast, in_transform = torch._C._is_any_autocast_enabled, torch._C._are_functorch_transforms_active
    saving_hooks = torch._C._autograd._top_saved_tensors_default_hooks
    passing = state.plan.passing
    turned, out, back = bool(state.plan.handed), state.out, state.back

    def forward(ctx: Any, *inputs: Any) -> tuple[Any, ...]:
        if turned:
            inputs = back(inputs)
        values = _without_autocast(compute, inputs) if in_autocast() else compute(*inputs)
        if kept:
            ctx.save_for_backward(*[inputs[index] if is_input else values[index] for is_input, index in kept])
        for index in places:
            if track_always or not inputs[index].is_leaf:
                ctx.others = _track(state, inputs)
                break
        ctx.set_materialize_grads(False)
        if count == 1:
            value = values[0]
            return (value.detach() if value._is_view() else value,)
        return _results(values[:count])

    def backward(ctx: Any, *tangents: Any) -> tuple[Any, ...]:
        others = getattr(ctx, "others", None)
        if places and others is None and _only_replay_is_right(tangents):
            others = _leaves(ctx, state)
        return tuple(out(_gradients(ctx, tangents, state, others)))

    own = {"forward": staticmethod(forward), "backward": staticmethod(backward), "_smelt_state": state}
    function: Any = type("_Joined", (torch.autograd.Function,), own)
    apply: Flat = super(torch.autograd.Function, function).apply

    def call(*inputs: Any) -> tuple[Any, ...]:
        if in_transform() or saving_hooks(True) is not None or forward_ad._current_level >= 0:
            return state(*inputs)
        for index in passing:
            if not inputs[index].is_leaf:
                return state(*inputs)
        try:
            return apply(*out(inputs)) if turned else apply(*inputs)
        except UnexpectedResult:
            if state.eager is None:
                raise
            return state.eager(*inputs)

    return call


@dataclass(frozen=True, slots=True)
class Joined:
    """The node of a compiled graph, for whoever does the engine's work instead of it."""

    ctx: Any
    state: _Differentiable

    @property
    def key(self) -> Any:
        """What a captured backward depends on."""
        return self.state, bool(self.ctx.__dict__.get("left"))

    @property
    def number(self) -> int:
        return self.state.number

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """Of what its backward is given besides gradients."""
        return tuple(saved.spec for saved in self.state.plan.saved)

    @property
    def tangents(self) -> tuple[TensorSpec, ...]:
        return self.state.plan.tangents

    def graph(self, arrived: int) -> tuple[Traced, bool]:
        """The backward for gradients of some results, and whether it takes zeros for the others."""
        graph_for = self.state.graphs
        assert graph_for is not None
        found = graph_for(arrived)
        if found is not None:
            return found, False
        whole = graph_for((1 << len(self.tangents)) - 1)
        assert whole is not None
        return whole, True

    def saved(self, arrived: int) -> Sequence[Any]:
        """What the backward is given, still there and unchanged; else an error, as PyTorch words it."""
        left: _Left | None = self.ctx.__dict__.get("left")
        saved = _from_left(left, arrived)[0] if left else (self.ctx.saved_tensors if self.state.kept else ())
        return saved[: len(self.state.plan.saved)]

    def spend(self, arrived: int) -> None:
        """A backward has been that does not retain the graph."""
        if not arrived:
            return
        left: _Left | None = self.ctx.__dict__.get("left")
        saved, spent = _from_left(left, arrived) if left else (self.ctx.saved_tensors if self.state.kept else (), 0)
        others = self.ctx.joined[1] if "joined" in self.ctx.__dict__ else self.ctx.__dict__.get("others")
        if _spend(self.ctx, self.state, arrived, saved, left, spent) and others:
            _let_go(others)

    def placed(self, gradients: Sequence[Any], arrived: int) -> list[Any]:
        """Per argument of the forward, its gradient."""
        plan = self.state.plan
        if plan.fed:
            gradients = _without_unfed(gradients, plan.fed, arrived)
        placed: list[Any] = [None] * plan.inputs
        for index, gradient in zip(plan.gradients, gradients, strict=True):
            placed[index] = gradient
        handed = self.state.out(placed)
        return [None, *handed] if "joined" in self.ctx.__dict__ else list(handed)


def joined_of(ctx: Any) -> Joined | None:
    """The compiled graph whose node this is; None for other nodes, and where saving hooks have seen what it keeps."""
    function = type(ctx)._forward_cls
    state = getattr(function, "_smelt_state", None)
    if state is None and function is _Joined and not ctx.joined[2]:
        state = ctx.joined[0]
    return None if state is None or state.graphs is None else Joined(ctx, state)


def _differentiable_backward(
    state: _Differentiable, inputs: Sequence[torch.Tensor], random: torch.Tensor | None, tangents: Sequence[Any]
) -> Sequence[Any]:
    if isinstance(state.replay, str):
        raise SmeltError(
            "SM040",
            f"create_graph=True through a compiled graph: {state.replay}",
            hint="call this part under smelt.disable to differentiate it twice",
        )
    with torch.enable_grad(), _rewound(random):
        # Aliases: hooks on the inputs themselves must fire once, when the engine delivers these gradients.
        inputs = [tensor.view_as(tensor) if tensor.requires_grad else tensor for tensor in inputs]
        written = state.plan.written
        given = [tensor.clone() if index in written else tensor for index, tensor in enumerate(inputs)]
        results = state.replay(given)
    if not state.plan.gradients:
        return ()
    pairs = [(result, tangent) for result, tangent in zip(results, tangents, strict=True) if tangent is not None]
    return torch.autograd.grad(
        [result for result, _ in pairs],
        [inputs[index] for index in state.plan.gradients],
        [tangent for _, tangent in pairs],
        create_graph=torch.is_grad_enabled(),
        allow_unused=True,
    )


@contextlib.contextmanager
def _rewound(state: torch.Tensor | None) -> Iterator[None]:
    """Draw the random numbers that followed `state` again, without the world noticing."""
    if state is None:
        yield
        return
    now = torch.get_rng_state()
    torch.set_rng_state(state)
    try:
        yield
    finally:
        torch.set_rng_state(now)


def _without_autocast(function: Flat, inputs: Sequence[Any]) -> Any:
    """The casts autocast asks for are in the graph already."""
    if torch._C._is_any_autocast_enabled():
        with torch._C._DisableAutocast():
            return function(*inputs)
    return function(*inputs)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor's memory holds its values: not sparse, not zeros without memory, nothing left to be done."""
    lazy = tensor.is_neg() or tensor.is_conj() or tensor._is_zerotensor()
    return tensor.layout is torch.strided and not lazy


def _fit(tensor: torch.Tensor | None, spec: TensorSpec) -> torch.Tensor:
    """A gradient or saved tensor in the layout the backward was traced with; no gradient at all means zeros."""
    fitted = torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device=spec.device)
    if tensor is None:
        return fitted.zero_()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    return fitted.copy_(tensor)


def _own(values: Sequence[Any], copied: Sequence[int]) -> list[Any]:
    owned = list(values)
    for index in copied:
        owned[index] = _alike(owned[index])
    return owned


def _alike(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that lies as the tensor does, which kernels rely on: a clone of one with gaps has none."""
    made = tensor.clone()
    if made.stride() == tensor.stride():
        return made
    return torch.empty_strided(made.shape, tensor.stride(), dtype=made.dtype, device=made.device).copy_(made)


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _only_eager_is_right(plan: Plan, inputs: Sequence[torch.Tensor]) -> bool:
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return True
    if any(forbids_writing(inputs[index]) for index in plan.rebased):
        return True
    return bool(plan.written) and _share_memory(plan.written, inputs)


def _is_checkpointed() -> bool:
    """Whether `torch.utils.checkpoint` watches what is saved. It will run the caller's Python again in the backward,
    where nothing compiled is on the stack, and expects the very same tensors to be saved in the same order."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return hooks is not None and getattr(hooks[0], "__module__", None) == "torch.utils.checkpoint"


def _share_memory(written: Sequence[int], inputs: Sequence[torch.Tensor]) -> bool:
    """Whether a written input lies in the memory of another input: then the pure graph is not what eager does."""
    places = [_memory(tensor) for tensor in inputs]
    if len(set(places)) == len(places):
        return False
    return any(places.count(places[index]) > 1 for index in written if inputs[index].numel())


def forbids_writing(tensor: torch.Tensor) -> bool:
    """Whether PyTorch forbids to write this tensor differentiably: a leaf, a view of one, one of several views."""
    if not tensor._is_view():
        return tensor.requires_grad and tensor.is_leaf
    base = tensor._base
    assert base is not None
    ordinary = torch._C._autograd.CreationMeta.DEFAULT
    return (base.requires_grad and base.is_leaf) or torch._C._autograd._get_creation_meta(tensor) != ordinary


def _with_old_values(recalled: Sequence[int], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The inputs, those that are about to be written, or may be, as copies that know where they came from."""
    given = list(inputs)
    with torch.enable_grad():
        for index in recalled:
            given[index] = _alike(given[index])
    return given


def _count_writes(tensors: Iterable[torch.Tensor]) -> None:
    """Let autograd know that these were written, each once."""
    torch.autograd.graph.increment_version([tensor for tensor in tensors if not tensor.is_inference()])


def _write_back(plan: Plan, inputs: Sequence[torch.Tensor], new_values: Sequence[torch.Tensor | None]) -> None:
    """Give written inputs their new values; None is one that is there already. A new value that is some input's own
    memory is copied out first."""
    places = {_memory(inputs[index]) for index in plan.written}
    safe = [value.clone() if value is not None and _memory(value) in places else value for value in new_values]
    tensors = [inputs[index] for index in plan.written]
    counted = [
        (tensor, tensor._version + times)  # tensors of inference mode have no version
        for tensor, times in zip(tensors, plan.writes, strict=True)
        if times != 1 and not tensor.is_inference()
    ]
    with torch.no_grad():
        for index, tensor, value in zip(plan.written, tensors, safe, strict=True):
            if index not in plan.rebased and value is not None:
                tensor.copy_(value)
    if plan.rebased:
        with torch.enable_grad():
            for index, tensor, value in zip(plan.written, tensors, safe, strict=True):
                if index in plan.rebased and value is not None:
                    tensor.copy_(value)
    _count_writes([tensor for tensor, value in zip(tensors, safe, strict=True) if value is None])
    if counted:
        counters, versions = zip(*counted, strict=True)
        torch._C._autograd._unsafe_set_version_counter(counters, versions)
