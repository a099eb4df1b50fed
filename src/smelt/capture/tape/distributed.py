"""`DTensor`s in a graph: only their local tensors are part of it, and their placements are known.

    x: DTensor f32[8, 8], Shard(0), on 2 processes     →     Distributed(x_local: f32[4, 8], Layout(mesh, [Shard(0)]))

An operator on them is a node of local tensors (`ir/nodes/distributed.py`). Temporary fake tensors tell
first how its results are placed, and whether it writes or draws anything, which is left to Python.
"""

import importlib
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any

import torch

from smelt.base.coexist import leave_alone
from smelt.capture.model.breaks import Unsupported
from smelt.capture.model.source import Check, Source, predicate
from smelt.capture.model.values import (
    Constant,
    Distributed,
    Mapping,
    Number,
    Object,
    Sequence,
    Slice,
    Tensor,
    Value,
    is_constant,
    of_number,
)
from smelt.capture.tape.tape import Tape
from smelt.ir.graph import placeholders
from smelt.ir.nodes.distributed import DistributedCall, Given, Layout, SameAs, local_of
from smelt.ir.tensorspec import TensorSpec
from smelt.meta.fake_tensor import FakeTensor
from smelt.symbolic.symnode import is_symbolic


def is_distributed(real: Any) -> bool:
    """Whether a tensor is a `DTensor`, and nothing made from that class."""
    kind = type(real)
    return kind.__name__ == "DTensor" and kind.__module__.startswith("torch.distributed.")


def distributed_input(tape: Tape, real: Any, source: Source) -> Distributed:
    """A `DTensor` from outside: the graph is given its local tensor."""
    with torch.no_grad():
        local = local_of(real)
    layout = Layout.of(real)
    if layout.masks:
        raise Unsupported("B006", f"{source.text} (a DTensor whose placement has a mask)")
    source.check(_laid_out_as(layout, TensorSpec.of(local), real.requires_grad))
    part = tape.input(real, source, tuple(local.shape), tuple(local.stride()))
    part.kind = torch.Tensor
    value = of_local(part, layout, source, real)
    value.memory = next((each.memory for each in tape.distributed.values() if each.real is real), value.memory)
    tape.distributed[part.node] = value
    fake: Any = value.fake
    if fake._spec != real._spec:
        raise Unsupported("B006", f"{source.text} (a DTensor sharded in another order)")
    return value


def _laid_out_as(layout: Layout, spec: TensorSpec, requires_grad: bool) -> Check:
    def is_laid_out(real: Any) -> bool:
        local = real._local_tensor
        if Layout.of(real) != layout or real.requires_grad != requires_grad or real.is_inference():
            return False
        there = (tuple(local.shape), tuple(local.stride()), local.dtype, local.device)
        return there == (spec.shape, spec.stride, spec.dtype, spec.device)

    return predicate(is_laid_out, f"a DTensor of shape {layout.shape}, placed as {layout.placements}")


def of_local(
    local: Tensor, layout: Layout, source: Source | None = None, real: Any = None, masks: tuple[Tensor, ...] = ()
) -> Distributed:
    whole: Any = layout.whole(local.fake, *[mask.fake for mask in masks])
    return Distributed(local.node, whole, layout.kind, real, source=source, local=local, layout=layout, masks=masks)


def with_locals(run: Callable[..., Any], tape: Tape) -> Callable[..., Any]:
    """Run a graph that is given `DTensor`s where it takes their local tensors."""
    known = tape.distributed
    places = {place: known[node] for place, node in enumerate(placeholders(tape.graph)) if node in known}
    taken, counted = frozenset(places), [place for place, value in places.items() if value.memory.is_written]

    def with_local_tensors(*inputs: Any) -> Any:
        with torch.enable_grad():  # a part of the graph may record where its beginning does not
            local_inputs = [_local_input(each) if place in taken else each for place, each in enumerate(inputs)]
        results = run(*local_inputs)
        for place in counted:
            torch.autograd.graph.increment_version(inputs[place])
        return results

    return with_local_tensors


def _local_input(whole: Any) -> Any:
    """The local tensor of a `DTensor`; its gradient is a `DTensor` laid out alike."""
    is_plain = type(whole._local_tensor) is torch.Tensor  # no result of a collective that may still run
    return _run_local_input(whole) if whole.requires_grad and is_plain else local_of(whole)


@leave_alone
class _LocalInput(torch.autograd.Function):
    """As `to_local`, at a tenth of its time in backward: the layout of most gradients is known."""

    @staticmethod
    def forward(ctx: Any, whole: Any) -> torch.Tensor:
        local: torch.Tensor = whole._local_tensor
        ctx.dtensor_spec, ctx.grad_placements, ctx.layout = whole._spec, None, (local.shape, local.stride())
        ctx.kind = type(whole)
        ctx.set_materialize_grads(False)
        return local.view_as(local)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        spec = ctx.dtensor_spec
        is_known = gradient is None or (gradient.shape, gradient.stride()) == ctx.layout
        if not is_known or torch.is_grad_enabled() or any(each.is_partial() for each in spec.placements):
            api = importlib.import_module("torch.distributed.tensor._api")
            return api._ToTorchTensor.backward(ctx, gradient)[0]
        return None if gradient is None else ctx.kind(gradient, copy(spec), requires_grad=False)


_run_local_input: Callable[..., Any] = super(torch.autograd.Function, _LocalInput).apply


def call_distributed(
    tape: Tape,
    function: Any,
    args: tuple[Value, ...],
    kwargs: dict[str, Value],
    real: Callable[[Value], Any] | None = None,
) -> Value:
    """A call with `DTensor`s, or one that makes them. `real`: the object behind an argument that is no tensor."""
    operands: list[Tensor | Number] = []
    values: list[Any] = []
    layouts: list[Layout | None] = []

    def given(value: Any) -> Any:
        if isinstance(value, Tensor) or (isinstance(value, Number) and value.symbolic is not None):
            values.append(value)
            operands.append(value.local if isinstance(value, Distributed) else value)
            layouts.append(value.layout if isinstance(value, Distributed) else None)
            place = len(operands) - 1
            for mask in value.masks if isinstance(value, Distributed) else ():
                given(mask)
            return Given(place)
        if isinstance(value, Sequence) and value.kind in (tuple, list, torch.Size):
            return (list if value.kind is list else tuple)(map(given, value.items))
        if isinstance(value, Slice):
            return slice(given(value.start), given(value.stop), given(value.step))
        if isinstance(value, Mapping):
            return {key: given(item) for key, item in value.items.items()}
        if isinstance(value, Constant):
            return value.value
        if real is not None:
            return real(value)
        raise Unsupported("B017", f"{type(value).__name__.lower()} as an argument beside a DTensor")

    if function is getattr and isinstance(args[1], Constant) and args[1].value == "requires_grad":
        assert isinstance(args[0], Tensor)
        return Constant(bool(args[0].fake.requires_grad))
    call = DistributedCall(function, given(Sequence(tuple, list(args))), given(Mapping(dict(kwargs))), ())
    call.layouts = tuple(layouts)
    if not _tried(tape, call, values, operands) and not call.writes:
        return _wrapped(call.result, values, iter(()))
    results = tape.call("call_function", call, tuple(operands), {})
    assert isinstance(results, Sequence)
    returned = iter(results.items)
    result = _wrapped(call.result, values, returned)
    for place in call.writes or ():
        tape.call("call_method", "copy_", (operands[place], next(returned)), {})
        values[place].memory.is_written = True
    recorded = any(isinstance(item, Tensor) and item.fake.requires_grad for item in results.items)
    if call.shares or recorded or not any(layouts):
        for value in (*values, *(result.items if isinstance(result, Sequence) else [result])):
            if isinstance(value, Distributed):
                value.memory.is_shared = True
    return result


def _is_recorded(tape: Tape, operands: list[Tensor | Number]) -> bool:
    """Whether autograd records what is computed from these."""
    return tape.ambient.records and any(isinstance(each, Tensor) and each.fake.requires_grad for each in operands)


def _tried(tape: Tape, call: DistributedCall, values: list[Any], operands: list[Tensor | Number]) -> list[Any]:
    """The tensors that a call yields, of operands that are like those given."""
    copies = [_copy(each.fake) if isinstance(each, Tensor) else each.symbolic for each in operands]
    drawn, name = set(tape.effects.draws_on), call.__name__
    if any(is_symbolic(size) for each in copies if isinstance(each, FakeTensor) for size in each.shape):
        raise Unsupported("B006", f"DTensor, of which {name} would be asked in symbols,")  # PyTorch hashes its sizes
    try:
        results = tape.run("call_function", call, copies, {})
    except BaseException:
        _forget_placements()
        raise
    if call.changes_layout:
        raise Unsupported("B006", f"DTensor, whose layout {name} changes in place,")
    written = [values[place] for place in call.writes or ()]
    before = [value for value in values if isinstance(value, Distributed) and value.memory.is_written]
    if (written or before) and _is_recorded(tape, operands):
        raise Unsupported("B006", f"DTensor, written before or by {name}, which autograd records,")
    if not all(isinstance(value, Distributed) and not value.memory.is_shared for value in written):
        raise Unsupported("B006", f"DTensor, written by {name} while other tensors show its memory,")
    if tape.effects.draws_on - drawn:
        tape.effects.draws_on = drawn
        raise Unsupported("B006", f"DTensor, for which {name} draws random numbers,")
    return list(results)


def _forget_placements() -> None:
    """Empty PyTorch's caches of placements: an entry may hold a fake tensor, and be used later."""
    debug = importlib.import_module("torch.distributed.tensor.debug")
    getattr(debug, "_clear_sharding_prop_cache", lambda: None)()


def _copy(fake: Any) -> FakeTensor:
    return FakeTensor(replace(TensorSpec.of(fake), requires_grad=False))


def _plain(result: Any) -> Value:
    if isinstance(result, torch.Size):
        return Sequence(torch.Size, [of_number(size) for size in result])
    if is_constant(result):
        return Constant(result)
    if type(result) in (tuple, list):
        return Sequence(type(result), [_plain(item) for item in result])
    return Object(result, identity_guarded=True)


def _wrapped(result: Any, values: list[Any], tensors: Any) -> Value:
    if isinstance(result, SameAs):
        same: Value = values[result.place]
        return same
    if isinstance(result, Layout):
        local, *masks = [next(tensors) for _ in range(1 + result.masks)]
        return of_local(local, result, masks=tuple(masks))
    if isinstance(result, Given):
        value: Value = next(tensors)
        return value
    if type(result) in (tuple, list):
        return Sequence(type(result), [_wrapped(item, values, tensors) for item in result])
    return _plain(result)
