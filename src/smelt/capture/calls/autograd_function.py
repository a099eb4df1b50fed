"""`torch.autograd.Function`: forward followed where it is called, backward captured into a graph of its own.

    Square.apply(x)    →    forward(ctx, x) under no_grad; backward(ctx, grad) on a `LaterTape`; one node ties the two

Backward runs when the engine calls it, so what it reads must be in `ctx`: data from elsewhere may have changed by then.
If either part cannot be captured whole, the call breaks, and Python runs it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.autograd.function import Function, FunctionCtx, once_differentiable

from smelt.base.fast_dataclass import dataclass
from smelt.capture.interpreter.interpreter import Interpreter
from smelt.capture.model.breaks import Raised, Unsupported
from smelt.capture.model.static import is_a, static_lookup
from smelt.capture.model.values import Constant, Instance, Number, Object, Sequence, Tensor, Value, describe
from smelt.capture.tape.subtape import LaterTape
from smelt.ir.graph import GraphLevel, Traced
from smelt.ir.nodes.custom_backward import Derivative, SavedForBackward
from smelt.ir.tensorspec import TensorSpec

ONCE = once_differentiable(lambda context: None).__code__
"""The code of every function that the decorator yields: no_grad, and an error for second derivatives."""


@dataclass(slots=True, eq=False)
class FunctionContext(Instance):
    """`ctx`. No object stands for it: it lives while the call is captured, and a program that keeps it is not."""


def _apply(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not isinstance(args[0], Object) or not is_a(args[0].value, type) or kwargs:
        raise Unsupported("B022", "keyword arguments")
    kind, given = interp.externals.guard_identity(args[0]), args[1:]
    for value in given:
        if isinstance(value, Object) and is_a(value.value, torch.Tensor):
            raise Unsupported("B006", type(value.value).__qualname__)
    needs = [isinstance(value, Tensor) and value.ghost.requires_grad for value in given]
    context = FunctionContext(FunctionCtx)
    context.attributes["needs_input_grad"] = Sequence(tuple, [Constant(each) for each in needs])
    records = interp.tape.ambient.records
    try:
        output = _forward(interp, kind, context, given)
    except Raised:
        raise
    except Unsupported as stop:
        raise Unsupported("B022", f"{kind.__qualname__}.forward: {stop.reason}") from stop
    outputs = list(output.items) if isinstance(output, Sequence) and output.kind is tuple else [output]
    _check_outputs(kind, given, outputs)
    if not (records and any(needs)) and not any(_shows_another(value, given) for value in outputs):
        return output
    outputs = _tie(interp, kind, context, given, outputs)
    return Sequence(tuple, outputs) if isinstance(output, Sequence) and output.kind is tuple else outputs[0]


def _method(interp: Interpreter, kind: type, name: str) -> Value:
    found = interp.tree.class_attribute(kind, name)
    if not isinstance(found, staticmethod):
        raise Unsupported("B022", f"{kind.__qualname__}.{name} is not a static method")
    return interp.externals.fixed(found.__func__)


def _forward(interp: Interpreter, kind: type, context: FunctionContext, given: list[Value]) -> Value:
    """Run `forward` as it is declared, without gradients."""
    before = interp.tape.ambient
    interp.tape.set_ambient(replace(before, grad=False))
    try:
        own = interp.tree.class_attribute(kind, "setup_context")
        if own is static_lookup(Function, "setup_context"):
            return interp.now(interp.call(_method(interp, kind, "forward"), [context, *given]))
        output = interp.now(interp.call(_method(interp, kind, "forward"), list(given)))
        setup = _method(interp, kind, "setup_context")
        interp.now(interp.call(setup, [context, Sequence(tuple, list(given)), output]))
        return output
    finally:
        interp.tape.set_ambient(replace(interp.tape.ambient, grad=before.grad))


def _check_outputs(kind: type, given: list[Value], outputs: list[Value]) -> None:
    """What autograd refuses falls back to eager, which raises."""
    tensors = [value for value in outputs if isinstance(value, Tensor)]
    if len({id(each) for each in tensors}) < len(tensors):
        raise Unsupported("B022", f"{kind.__qualname__} returns one tensor twice")
    if any(value.source is not None and not _is_among(value, given) for value in tensors):
        raise Unsupported("B022", f"{kind.__qualname__} returns a tensor that was not made in it")
    if not all(isinstance(value, Tensor | Constant) for value in outputs):
        raise Unsupported("B022", f"{kind.__qualname__} returns something else than tensors")
    if len(tensors) > 1 and any(_shows_another(value, given) for value in tensors):
        raise Unsupported("B022", f"{kind.__qualname__} returns a view, or an argument, and other tensors")


def _shows_another(value: Value, given: list[Value]) -> bool:
    """Whether an output is a view, or an argument, of which autograd makes a view: it notes how these were made."""
    return isinstance(value, Tensor) and (value.ghost._base is not None or _is_among(value, given))


def _is_among(value: Value, values: list[Value]) -> bool:
    return any(value is each for each in values)


def _tie(
    interp: Interpreter, kind: type, context: FunctionContext, given: list[Value], outputs: list[Value]
) -> list[Value]:
    """The outputs as autograd knows them."""
    marks = context.attributes
    if _tensors(marks.get("dirty_tensors")):
        raise Unsupported("B022", f"{kind.__qualname__} marks an argument as written")
    materializes = marks.get("materialize_grads", Constant(True))
    if not isinstance(materializes, Constant) or materializes.value is not True:
        raise Unsupported("B022", f"{kind.__qualname__} sets set_materialize_grads(False)")
    constant = tuple(outputs.index(value) for value in _tensors(marks.get("non_differentiable")) if value in outputs)
    if "to_save" in marks:
        marks["saved_tensors"] = marks["to_save"]
    tape, wanted = LaterTape(_at_backward(interp)), len(given)
    tape.methods, tape.current_devices = interp.tape.methods, interp.tape.current_devices
    gradients: list[Value] = [
        tape.argument(f"grad_{number}", TensorSpec.of(value.ghost)) if isinstance(value, Tensor) else Constant(None)
        for number, value in enumerate(outputs)
    ]
    returned = _backward(interp, kind, tape, context, gradients, wanted)
    inputs = [value for value in given if isinstance(value, Tensor)]
    yielded = [
        tape.inner(made) if isinstance(made, Tensor) else None
        for made, value in zip(returned, given, strict=True)
        if isinstance(value, Tensor)
    ]
    tape.graph.output(tuple(yielded))
    kept: list[tuple[SavedForBackward, int]] = []
    others: list[Tensor | Number] = []
    for value in tape.lifted.values():
        kept.append(_place(value, inputs, outputs, others))
    traced = Traced(tape.graph, GraphLevel.TORCH, {})
    return interp.tape.tie(Derivative(kind.__name__, traced, tuple(kept), constant, tape.once), outputs, others, inputs)


def _tensors(value: Value | None) -> list[Value]:
    return [each for each in value.items if isinstance(each, Tensor)] if isinstance(value, Sequence) else []


def _at_backward(interp: Interpreter) -> Any:
    """The state the engine runs a backward in: a training loop has left autocast by then."""
    ambient = interp.tape.ambient
    casts = tuple((device, False, dtype) for device, _, dtype in ambient.casts)
    return replace(ambient, grad=False, inference=False, casts=casts)


def _backward(
    interp: Interpreter, kind: type, tape: LaterTape, context: FunctionContext, gradients: list[Value], wanted: int
) -> list[Value]:
    """What `backward` yields per argument of the function, as values of `tape`."""
    outer, held = interp.tape, context.attributes.copy()
    interp.tape = interp.externals.tape = tape
    interp.externals.runs_later = True
    tape.ambient.impose()
    try:
        returned = interp.now(interp.call(_method(interp, kind, "backward"), [context, *gradients]))
        if tape.written_outside() or context.attributes != held:
            raise Unsupported("B005", "ctx, or a tensor in it")
    except Unsupported as stop:
        tape.written_outside()
        raise Unsupported("B022", f"{kind.__qualname__}.backward: {stop.reason}") from stop
    finally:
        interp.tape = interp.externals.tape = outer
        interp.externals.runs_later = False
        replace(outer.ambient, grad=outer.ambient.records).impose()
    items = list(returned.items) if isinstance(returned, Sequence) and returned.kind is tuple else [returned]
    none = [isinstance(value, Constant) and value.value is None for value in items]
    if len(items) < wanted or not all(none[wanted:]):
        raise Unsupported("B022", f"{kind.__qualname__}.backward returns {len(items)} gradients for {wanted} arguments")
    for value, nothing in zip(items, none, strict=True):
        if not nothing and not isinstance(value, Tensor):
            raise Unsupported("B022", f"{kind.__qualname__}.backward returns {describe(value)}")
    return items[:wanted]


def _place(
    value: Tensor | Number, inputs: list[Tensor], outputs: list[Value], others: list[Tensor | Number]
) -> tuple[SavedForBackward, int]:
    for place, values in ((SavedForBackward.INPUT, inputs), (SavedForBackward.OUTPUT, outputs)):
        for number, each in enumerate(values):
            if each is value:
                return place, number
    others.append(value)
    return SavedForBackward.OTHER if isinstance(value, Tensor) else SavedForBackward.NUMBER, len(others) - 1


def _noting(name: str) -> Callable[[Interpreter, list[Value], dict[str, Value]], Value]:
    """A method of `ctx` that keeps what it is given under a name, as PyTorch's own does."""

    def note(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
        context = args[0]
        if not isinstance(context, FunctionContext) or kwargs:
            raise Unsupported("B022", name)
        interp.before_mutation(context)
        context.attributes[name] = args[1] if name == "materialize_grads" else Sequence(tuple, args[1:])
        return Constant(None)

    return note


FUNCTION_CALLS: dict[Any, Callable[[Interpreter, list[Value], dict[str, Value]], Value]] = {
    Function.apply.__func__: _apply,  # type: ignore[attr-defined]
    FunctionCtx.save_for_backward: _noting("to_save"),
    FunctionCtx.save_for_forward: _noting("saved_for_forward"),
    FunctionCtx.mark_dirty: _noting("dirty_tensors"),
    FunctionCtx.mark_non_differentiable: _noting("non_differentiable"),
    FunctionCtx.set_materialize_grads: _noting("materialize_grads"),
}
