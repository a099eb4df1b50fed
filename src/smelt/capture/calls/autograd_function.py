"""`torch.autograd.Function`: forward followed where it is called, backward captured into a graph of its own.

    Square.apply(x)    →    forward(ctx, x) under no_grad; backward(ctx, grad) on a `LaterTape`; one node ties the two

`Tensor.register_hook` on what the graph computes is such a function, too: its forward changes nothing, its backward is
the hook.

Backward runs when the engine calls it, so what it reads must be in `ctx`: data from elsewhere may have changed by then.
If either part cannot be captured whole, the call breaks, and Python runs it.
"""

import contextlib
import functools
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.autograd.function import Function, FunctionCtx, once_differentiable
from torch.utils.hooks import RemovableHandle

from smelt.base.fast_dataclass import dataclass
from smelt.capture.interpreter.interpreter import Interpreter
from smelt.capture.model.breaks import Raised, Unsupported
from smelt.capture.model.static import is_a, static_lookup
from smelt.capture.model.values import (
    Constant,
    Hooked,
    HookHandle,
    Instance,
    Method,
    Number,
    Object,
    Partial,
    Sequence,
    Tensor,
    Value,
    describe,
)
from smelt.capture.model.values import Function as FunctionValue
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
    if not isinstance(args[0], Object) or not is_a(args[0].value, type):
        raise Unsupported("B022", "a class that is not known")
    kind = interp.externals.guard_identity(args[0])
    operands = _in_place(interp, kind, args[1:], kwargs)
    for value in operands:
        if isinstance(value, Object) and is_a(value.value, torch.Tensor):
            raise Unsupported("B006", type(value.value).__qualname__)
    needs = [isinstance(value, Tensor) and value.fake.requires_grad for value in operands]
    context = FunctionContext(FunctionCtx)
    context.attributes["needs_input_grad"] = Sequence(tuple, [Constant(each) for each in needs])
    records = interp.tape.ambient.records
    try:
        output = _forward(interp, kind, context, operands)
    except Raised:
        raise
    except Unsupported as stop:
        raise Unsupported("B022", f"{kind.__qualname__}.forward: {stop.reason}") from stop
    outputs = list(output.items) if isinstance(output, Sequence) and output.kind is tuple else [output]
    _check_outputs(kind, operands, outputs)
    if not (records and any(needs)) and not any(_shows_another(value, operands) for value in outputs):
        return output
    outputs = _tie(interp, kind, context, operands, outputs)
    return Sequence(tuple, outputs) if isinstance(output, Sequence) and output.kind is tuple else outputs[0]


def _in_place(interp: Interpreter, kind: type, args: list[Value], kwargs: dict[str, Value]) -> list[Value]:
    """The arguments as autograd counts them: keywords in the places that `forward` has for them, and where the class
    has a `setup_context`, defaults too."""
    sets_up = interp.tree.class_attribute(kind, "setup_context") is not static_lookup(Function, "setup_context")
    if not kwargs and not sets_up:
        return args
    forward: Any = _method(interp, kind, "forward")
    real, source = forward.value, forward.source
    if kwargs and not _takes_keywords():
        raise Unsupported("B019", "TypeError: apply() takes no keyword arguments")
    if type(real) is not types.FunctionType or source is None:
        raise Unsupported("B022", "keyword arguments")
    code = real.__code__
    source.attribute("__code__").check(("is", code))
    names, defaults = code.co_varnames[: code.co_argcount], real.__defaults__ or ()
    first = 0 if sets_up else 1  # the context comes first
    held: dict[str, Value] = {}
    if sets_up and defaults:
        known: Any = interp.externals.value(defaults, source.attribute("__defaults__"))
        held = dict(zip(names[len(names) - len(defaults) :], interp.externals.items(known), strict=True))
    by_name = {**held, **dict(zip(names[first:], args, strict=False)), **kwargs}
    wanted = [name for name in names[first:] if name in by_name]
    twice = set(kwargs) & set(names[first : first + len(args)])
    if twice or not set(kwargs) <= set(names) or wanted != list(names[first : first + len(wanted)]):
        raise Unsupported("B019", f"TypeError: arguments do not fit {kind.__qualname__}.forward()")
    return [*[by_name[name] for name in wanted], *args[len(names) - first :]]


@functools.cache
def _takes_keywords() -> bool:
    """Whether this PyTorch lets `apply` have arguments by keyword."""

    class Same(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x

    try:
        Same.apply(x=None)  # type: ignore[no-untyped-call]
    except TypeError:
        return False
    return True


def _method(interp: Interpreter, kind: type, name: str) -> Value:
    method = interp.tree.class_attribute(kind, name)
    if not isinstance(method, staticmethod):
        raise Unsupported("B022", f"{kind.__qualname__}.{name} is not a static method")
    return interp.externals.fixed(method.__func__)


def _forward(interp: Interpreter, kind: type, context: FunctionContext, operands: list[Value]) -> Value:
    """Run `forward` as it is declared, without gradients."""
    before = interp.tape.ambient
    interp.tape.set_ambient(replace(before, grad=False))
    try:
        own = interp.tree.class_attribute(kind, "setup_context")
        if own is static_lookup(Function, "setup_context"):
            return interp.now(interp.call(_method(interp, kind, "forward"), [context, *operands]))
        output = interp.now(interp.call(_method(interp, kind, "forward"), list(operands)))
        setup = _method(interp, kind, "setup_context")
        interp.now(interp.call(setup, [context, Sequence(tuple, list(operands)), output]))
        return output
    finally:
        interp.tape.set_ambient(replace(interp.tape.ambient, grad=before.grad))


def _check_outputs(kind: type, operands: list[Value], outputs: list[Value]) -> None:
    """What autograd refuses falls back to eager, which raises."""
    tensors = [value for value in outputs if isinstance(value, Tensor)]
    if len({id(each) for each in tensors}) < len(tensors):
        raise Unsupported("B022", f"{kind.__qualname__} returns one tensor twice")
    if any(value.source is not None and not _is_among(value, operands) for value in tensors):
        raise Unsupported("B022", f"{kind.__qualname__} returns a tensor that was not made in it")
    if not all(isinstance(value, Tensor | Constant) for value in outputs):
        raise Unsupported("B022", f"{kind.__qualname__} returns something else than tensors")
    if len(tensors) > 1 and any(_shows_another(value, operands) for value in tensors):
        raise Unsupported("B022", f"{kind.__qualname__} returns a view, or an argument, and other tensors")


def _shows_another(value: Value, operands: list[Value]) -> bool:
    """Whether an output is a view, or an argument, of which autograd makes a view: it notes how these were made."""
    return isinstance(value, Tensor) and (value.fake._base is not None or _is_among(value, operands))


def _is_among(value: Value, values: list[Value]) -> bool:
    return any(value is each for each in values)


def _tie(
    interp: Interpreter, kind: type, context: FunctionContext, operands: list[Value], outputs: list[Value]
) -> list[Value]:
    """The outputs as autograd knows them."""
    marks = context.attributes
    if _tensors(marks.get("dirty_tensors")):
        raise Unsupported("B022", f"{kind.__qualname__} marks an argument as written")
    constant = tuple(outputs.index(value) for value in _tensors(marks.get("non_differentiable")) if value in outputs)
    materializes = marks.get("materialize_grads", Constant(True))
    differentiable = [
        number
        for number, value in enumerate(outputs)
        if isinstance(value, Tensor) and number not in constant and _may_have_gradient(value)
    ]
    if not isinstance(materializes, Constant) or (not materializes.value and len(differentiable) > 1):
        # Which of them get a gradient, only the backward tells.
        raise Unsupported("B022", f"{kind.__qualname__} sets set_materialize_grads(False) and has several outputs")
    if "to_save" in marks:
        marks["saved_tensors"] = marks["to_save"]
    tape, count = _at_backward(interp), len(operands)
    gradients: list[Value] = [
        tape.argument(f"grad_{number}", TensorSpec.of(value.fake))
        if isinstance(value, Tensor) and (materializes.value or number in differentiable)
        else Constant(None)
        for number, value in enumerate(outputs)
    ]
    returned = _backward(interp, kind, tape, context, gradients, count)
    inputs = [value for value in operands if isinstance(value, Tensor)]
    yielded = [
        tape.inner(gradient) if isinstance(gradient, Tensor) else None
        for gradient, value in zip(returned, operands, strict=True)
        if isinstance(value, Tensor)
    ]
    tape.graph.output(tuple(yielded))
    kept: list[tuple[SavedForBackward, int]] = []
    others: list[Tensor | Number] = []
    for value in tape.lifted.values():
        kept.append(_place(value, inputs, outputs, others))
    traced = Traced(tape.graph, GraphLevel.TORCH, {})
    derivative = Derivative(kind.__name__, traced, tuple(kept), constant, tape.once, bool(materializes.value))
    return interp.tape.tie(derivative, outputs, others, inputs)


def _may_have_gradient(value: Tensor) -> bool:
    return bool(value.fake.is_floating_point() or value.fake.is_complex())


def _tensors(value: Value | None) -> list[Value]:
    return [each for each in value.items if isinstance(each, Tensor)] if isinstance(value, Sequence) else []


def _at_backward(interp: Interpreter) -> LaterTape:
    """A tape in the state the engine runs a backward in: a training loop has left autocast by then."""
    ambient = interp.tape.ambient
    casts = tuple((device, False, dtype) for device, _, dtype in ambient.casts)
    tape = LaterTape(replace(ambient, grad=False, inference=False, casts=casts))
    tape.methods, tape.current_devices = interp.tape.methods, interp.tape.current_devices
    return tape


def _backward(
    interp: Interpreter, kind: type, tape: LaterTape, context: FunctionContext, gradients: list[Value], wanted: int
) -> list[Value]:
    """What `backward` yields per argument of the function, as values of `tape`."""
    held = context.attributes.copy()
    try:
        with _following_later(interp, tape):
            returned = interp.now(interp.call(_method(interp, kind, "backward"), [context, *gradients]))
            if tape.written_outside() or context.attributes != held:
                raise Unsupported("B005", "ctx, or a tensor in it")
    except Unsupported as stop:
        tape.written_outside()
        raise Unsupported("B022", f"{kind.__qualname__}.backward: {stop.reason}") from stop
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


def _register_hook(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`tensor.register_hook(hook)` of a tensor that the graph computed and that nothing has used yet."""
    tensor, hook = args[0], args[1] if len(args) == 2 else None
    if not isinstance(tensor, Tensor) or hook is None or kwargs:
        raise Unsupported("B015", "Tensor.register_hook")
    _refuse_hooked(interp, tensor)
    _freeze(hook)
    known = interp.hooked.get(id(tensor))
    if known is None or known.tied is not tensor.node:
        known = interp.hooked[id(tensor)] = Hooked(tensor, replace(tensor), [], tensor.node)
    handle = HookHandle(known, hook)
    _tie_hooks(interp, known, [*known.hooks, handle])
    return handle


def _remove_hook(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`handle.remove()`, as long as nothing has used the tensor."""
    handle = args[0]
    if not isinstance(handle, HookHandle):
        raise Unsupported("B002", "RemovableHandle.remove")
    known: Hooked = handle.hooked
    if handle in known.hooks:
        if known.tied is not known.tensor.node or known.tied.users:
            raise Unsupported("B015", "the removal of a hook from a tensor that was used since")
        _tie_hooks(interp, known, [each for each in known.hooks if each is not handle])
    return Constant(None)


def _tie_hooks(interp: Interpreter, known: "Hooked", hooks: list[HookHandle]) -> None:
    """Let a tensor be what it was before it had hooks, tied to a derivative that is all of them, in their order."""
    interp.put_back_later(known, "hooks", "tied")
    known.hooks = hooks
    if hooks:
        tied = _tied_to_hooks(interp, known.before, [handle.hook for handle in hooks])
        interp.replace_tensor(known.tensor, tied)
    else:
        interp.replace_tensor(known.tensor, known.before)
    known.tied = known.tensor.node


def _tied_to_hooks(interp: Interpreter, tensor: Tensor, hooks: list[Value]) -> Tensor:
    ambient = interp.tape.ambient
    interp.tape.set_ambient(replace(ambient, grad=False))
    own = interp.tensor_call("call_method", "clone", [tensor])  # no view: what is done to it later is done to it alone
    interp.tape.set_ambient(ambient)
    assert isinstance(own, Tensor)
    tape = _at_backward(interp)
    gradient = tape.argument("grad_0", TensorSpec.of(own.fake))
    for hook in hooks:
        gradient = _gradient_by_hook(interp, tape, hook, gradient)
    tape.graph.output((tape.inner(gradient),))
    others: list[Tensor | Number] = []
    kept = tuple(_place(value, [], [], others) for value in tape.lifted.values())
    derivative = Derivative("register_hook", Traced(tape.graph, GraphLevel.TORCH, {}), kept, (), tape.once)
    interp.tape.tie(derivative, [own], others, [tensor])
    return own


def _refuse_hooked(interp: Interpreter, tensor: Tensor) -> None:
    fake = tensor.fake
    if not fake.requires_grad:
        raise Unsupported("B019", "RuntimeError: cannot register a hook on a tensor that doesn't require gradient")
    made_here = tensor.real is None and tensor.source is None and tensor.node.graph is interp.tape.graph
    if not made_here or fake.is_leaf or fake._base is not None or not interp.tape.ambient.records:
        raise Unsupported("B015", "Tensor.register_hook of a leaf, a view, or a tensor from outside")
    if tensor.node.users:
        raise Unsupported("B015", "Tensor.register_hook of a tensor that was used before")


def _freeze(hook: Value) -> None:
    """What the hook finds in its closure must be there when it runs: whatever sets a cell later ends the graph."""
    if isinstance(hook, Partial):
        _freeze(hook.function)
        if not all(isinstance(value, Tensor | Constant) for value in (*hook.args, *hook.keywords.values())):
            raise Unsupported("B015", "Tensor.register_hook of a partial with more than tensors and constants")
        return
    if isinstance(hook, Method) or not isinstance(hook, FunctionValue | Object):
        raise Unsupported("B015", f"Tensor.register_hook of {describe(hook)}")
    for cell in hook.closure if isinstance(hook, FunctionValue) else ():
        if not isinstance(cell.contents, Tensor | Constant | FunctionValue):
            raise Unsupported("B015", "Tensor.register_hook of a function that uses more than tensors and constants")
        cell.frozen = True


def _gradient_by_hook(interp: Interpreter, tape: LaterTape, hook: Value, gradient: Tensor) -> Tensor:
    """What the hook makes of the gradient, as a value of `tape`."""
    try:
        with _following_later(interp, tape):
            returned = interp.now(interp.call(hook, [gradient]))
            if tape.written_outside():
                raise Unsupported("B005", "a tensor")
    except Unsupported as stop:
        tape.written_outside()
        raise Unsupported("B015", f"Tensor.register_hook, whose hook cannot be captured: {stop.reason}") from stop
    if isinstance(returned, Constant) and returned.value is None:
        return gradient
    alike = isinstance(returned, Tensor) and returned.fake.shape == gradient.fake.shape
    if not isinstance(returned, Tensor) or not alike or returned.fake.dtype != gradient.fake.dtype:
        raise Unsupported("B015", "Tensor.register_hook, whose hook returns something else than a gradient,")
    return returned


@contextlib.contextmanager
def _following_later(interp: Interpreter, tape: LaterTape) -> Iterator[None]:
    """Inside, code is followed that runs when the engine calls it."""
    outer = interp.tape
    interp.tape = interp.externals.tape = tape
    interp.externals.runs_later = True
    tape.ambient.impose()
    try:
        yield
    finally:
        interp.tape = interp.externals.tape = outer
        interp.externals.runs_later = False
        replace(outer.ambient, grad=outer.ambient.records).impose()


APPLY = static_lookup(Function, "apply")
"""What reading `Square.apply` binds to the class: a class method of Python, or from PyTorch 2.15 one of C."""

FUNCTION_CALLS: dict[Any, Callable[[Interpreter, list[Value], dict[str, Value]], Value]] = {
    getattr(APPLY, "__func__", APPLY): _apply,
    torch.Tensor.register_hook: _register_hook,
    RemovableHandle.remove: _remove_hook,
    FunctionCtx.save_for_backward: _noting("to_save"),
    FunctionCtx.save_for_forward: _noting("saved_for_forward"),
    FunctionCtx.mark_dirty: _noting("dirty_tensors"),
    FunctionCtx.mark_non_differentiable: _noting("non_differentiable"),
    FunctionCtx.set_materialize_grads: _noting("materialize_grads"),
}
