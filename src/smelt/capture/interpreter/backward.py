"""A backward inside captured code, and `.grad`: what `loss.backward()` and `torch.autograd.grad` mean for values.

loss.backward()    →    one node for the gradients of all leaves that `loss` leads to; each leaf's `.grad` becomes its
                        gradient, or has it added in place; after the graph has run the real leaves' are set so

A leaf whose `.grad` is touched is relied on to be that very tensor: gradients belong to objects, not to values. Hooks
that cannot be captured break the graph.
"""

import inspect
import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from smelt.capture.interpreter.externals import may_guard_identity
from smelt.capture.interpreter.interpreter import Interpreter
from smelt.capture.model.breaks import Unsupported
from smelt.capture.model.values import Constant, Sequence, Slots, Tensor, Value, describe
from smelt.capture.polyfills.optimizers import accumulate_grads
from smelt.capture.tape.autograd_history import leaves_of, yields_sparse
from smelt.ir.nodes.backward_node import accumulable, accumulable_create_graph, gradients, unhooked
from smelt.meta.autograd_graph import behind
from smelt.symbolic.shapes import is_dense

_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def gradient_of(interp: Interpreter, value: Tensor) -> Value:
    """`value.grad`."""
    return interp.externals.force(slots_of(interp, value).items["grad"])


def store_gradient(interp: Interpreter, value: Tensor, gradient: Value) -> None:
    """`value.grad = gradient`."""
    slots = slots_of(interp, value)
    if isinstance(gradient, Tensor):
        new, own = gradient.fake, value.fake
        if (new.shape, new.dtype, new.device) != (own.shape, own.dtype, own.device):
            raise Unsupported("B011", "assigning a gradient of another shape or type")
    elif not isinstance(gradient, Constant) or gradient.value is not None:
        raise Unsupported("B011", f"assigning {describe(gradient)} as a gradient")
    interp.before_mutation(slots)
    slots.items["grad"] = gradient
    if not isinstance(gradient, Tensor) and not interp.tape.computes:
        slots.cleared = True


def require_grad(interp: Interpreter, value: Tensor, args: list[Value], kwargs: dict[str, Value]) -> None:
    """`value.requires_grad_(…)`."""
    asked = [*args, *kwargs.values()] or [Constant(True)]
    if len(asked) != 1 or not isinstance(asked[0], Constant) or type(asked[0].value) is not bool:
        raise Unsupported("B015", "Tensor.requires_grad_")
    if asked[0].value is value.fake.requires_grad:
        return
    if value.real is not None or not value.fake.is_leaf or value.node.graph is not interp.tape.graph:
        raise Unsupported("B015", "Tensor.requires_grad_ of a tensor from outside, or of one with a history")
    interp.tape.require_grad(value, asked[0].value)


def slots_of(interp: Interpreter, value: Tensor) -> Slots:
    """Where the `.grad` of a leaf is kept, and what else the program changes of it."""
    slots = interp.tape.leaves.gradient_slots(value)
    if slots is not None:
        return slots
    if value.real is None and value.source is None and not value.fake.requires_grad and value.fake.is_leaf:
        return interp.tape.leaves.add(value.fake)
    if value.real is None or not value.real.is_leaf:
        raise Unsupported("B015", "Tensor.grad of a tensor that is no leaf, or not from outside")
    if value.source is None or not may_guard_identity(value):
        raise Unsupported("B015", "Tensor.grad of an argument that is no parameter")
    interp.externals.mark_grad_target(value)
    return interp.externals.gradient_slots(value)


def _of_tensor(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    arguments = _bound(torch.Tensor.backward, args, kwargs)
    return _backward(interp, arguments["self"], arguments.get("gradient"), arguments)


def _of_tensors(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    arguments = _bound(torch.autograd.backward, args, kwargs)
    if _plain(arguments, "grad_variables") is not None:
        raise Unsupported("B015", "torch.autograd.backward(grad_variables=…)")
    return _backward(interp, arguments["tensors"], arguments.get("grad_tensors"), arguments)


def _backward(interp: Interpreter, tensors: Value, tangents: Value | None, arguments: dict[str, Value]) -> Value:
    create = bool(_plain(arguments, "create_graph"))
    outputs = _outputs(interp, tensors)
    only = arguments.get("inputs")
    wanted = _tensors(interp, only) if only is not None and not _is_none(only) else None
    if wanted is None:
        wanted = _leaves(interp, outputs)
    else:
        _refuse_outside_history(interp, outputs, wanted)
        first: dict[int, Tensor] = {}
        for leaf in wanted:  # one that is named twice, or by two names, gets its gradient once
            first.setdefault(_identity(leaf), leaf)
        wanted = list(first.values())
    if create:
        _refuse_aliased_inputs(interp, outputs)
    hooks = [_hooks(interp, leaf) for leaf in wanted]
    slots = [slots_of(interp, leaf) for leaf in wanted]
    retain = create if _plain(arguments, "retain_graph") is None else bool(_plain(arguments, "retain_graph"))
    given_tangents = _tangents(interp, outputs, tangents)
    if create and any(hooks):
        raise Unsupported("B026", "with create_graph=True to a tensor with hooks")
    if any(hooks):
        return _with_hooks(interp, outputs, given_tangents, wanted, hooks, retain)
    before = interp.tape.ambient
    interp.tape.set_ambient(replace(before, grad=create))
    function = accumulable_create_graph if create else accumulable
    gradients = _engine_call(interp, function, outputs, given_tangents, wanted, retain)
    for slot, gradient in zip(slots, gradients.items, strict=True):
        _accumulate(interp, slot, gradient, create)
    interp.tape.set_ambient(before)
    return Constant(None)


def _engine_call(
    interp: Interpreter,
    function: Callable[..., Any],
    outputs: list[Tensor],
    tangents: Sequence,
    inputs: list[Tensor],
    retain: bool,
    *more: Value,
) -> Sequence:
    """A node that runs the engine. What that frees is gone only if it ran: where it fails Python asks for it again."""
    operands = [Sequence(tuple, list(outputs)), tangents, Sequence(tuple, list(inputs)), Constant(retain), *more]
    gradients = interp.tensor_call("call_function", function, operands)
    assert isinstance(gradients, Sequence)
    if not retain:
        interp.tape.histories.note([each.fake for each in outputs], [each.fake for each in inputs])
    return gradients


def _with_hooks(
    interp: Interpreter,
    outputs: list[Tensor],
    tangents: Sequence,
    leaves: list[Tensor],
    hooks: list[tuple[Value, ...]],
    retain: bool,
) -> Value:
    """A backward whose leaves have hooks: they are called leaf by leaf, in the order in which the engine does so."""
    order = _order(interp, outputs, leaves)
    gradients = _engine_call(interp, unhooked, outputs, tangents, leaves, retain)
    items: list[Value] = []
    for place in order:
        if not is_dense(leaves[place].fake.shape, leaves[place].fake.stride()):
            raise Unsupported("B026", "to a tensor with hooks whose memory is not dense")
        before, after = hooks[place] or (Constant(None), Constant(None))
        items.append(Sequence(tuple, [leaves[place], gradients.items[place], before, after]))
    return interp.call(interp.externals.fixed(accumulate_grads), [Sequence(tuple, items)])


def _order(interp: Interpreter, outputs: list[Tensor], leaves: list[Tensor]) -> list[int]:
    """The leaves that gradients reach, in the engine's order. One with several names has a fake tensor for each, and is
    complete with the last of them."""
    places = {_identity(leaf): place for place, leaf in enumerate(leaves)}
    fakes: list[Any] = []
    order: list[int] = []
    handles = []
    reached: list[Any] = leaves_of([each.fake for each in outputs])
    for fake in reached:
        leaf = interp.tape.value_of(fake)
        place = None if leaf is None else places.get(_identity(leaf))
        if place is not None:
            fakes.append(fake)
            handles.append(fake.register_hook(_noting(order, place)))
    if not fakes:
        return []
    try:
        gradients([each.fake for each in outputs], [None] * len(outputs), fakes, True, False)
    finally:
        for handle in handles:
            handle.remove()
    return list(dict.fromkeys(reversed(order)))[::-1]


def _identity(leaf: Tensor) -> int:
    return id(leaf.fake if leaf.real is None else leaf.real)


def _noting(order: list[int], place: int) -> Callable[[torch.Tensor], None]:
    return lambda gradient: order.append(place)


def _accumulate(interp: Interpreter, slots: Slots, gradient: Value, create: bool) -> None:
    if not isinstance(gradient, Tensor):
        return
    old = interp.externals.force(slots.items["grad"])
    if isinstance(old, Tensor) and create:
        gradient = interp.tensor_call("call_function", operator.add, [old, gradient])
    elif isinstance(old, Tensor):
        if old.fake.requires_grad:
            raise Unsupported("B015", "backward into a gradient that requires grad itself")
        interp.tape.requires_no_overlap = True
        interp.tensor_call("call_method", "add_", [old, gradient])
        return
    interp.before_mutation(slots)
    slots.items["grad"] = gradient


def _grad(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    arguments = _bound(torch.autograd.grad, args, kwargs)
    if _plain(arguments, "is_grads_batched"):
        raise Unsupported("B026", "for many gradients at once (is_grads_batched=True)")
    materialized, unused = _plain(arguments, "materialize_grads"), _plain(arguments, "allow_unused")
    if materialized and unused is False:
        raise Unsupported("B011", "torch.autograd.grad(allow_unused=False, materialize_grads=True)")
    create, retain = bool(_plain(arguments, "create_graph")), _plain(arguments, "retain_graph")
    retain = create if retain is None else bool(retain)
    outputs, inputs = _outputs(interp, arguments["outputs"]), _tensors(interp, arguments["inputs"])
    for each in inputs:
        if not each.fake.requires_grad:
            raise Unsupported("B011", "torch.autograd.grad of a tensor that does not require grad")
        if each.real is not None:
            _refuse_hooks(each)
            interp.externals.mark_grad_target(each)
    _refuse_aliased_inputs(interp, outputs)
    _refuse_outside_history(interp, outputs, inputs)
    tangents = _tangents(interp, outputs, arguments.get("grad_outputs"))
    results = _engine_call(interp, gradients, outputs, tangents, inputs, retain, Constant(create))
    if materialized:
        for place, own in enumerate(inputs):
            if not isinstance(results.items[place], Tensor):
                named: dict[str, Value] = {"requires_grad": Constant(create)}
                results.items[place] = interp.tensor_call("call_function", torch.zeros_like, [own], named)
        return results
    if not unused and not all(isinstance(each, Tensor) for each in results.items):
        raise Unsupported("B011", "torch.autograd.grad of a tensor that is not used")
    return results


def _bound(function: Callable[..., Any], args: list[Value], kwargs: dict[str, Value]) -> dict[str, Value]:
    try:
        return dict(inspect.signature(function).bind(*args, **kwargs).arguments)
    except TypeError as error:
        raise Unsupported("B019", f"TypeError: {error}") from None


def _is_none(value: Value) -> bool:
    return isinstance(value, Constant) and value.value is None


def _plain(arguments: dict[str, Value], name: str) -> Any:
    value = arguments.get(name, Constant(None))
    if not isinstance(value, Constant):
        raise Unsupported("B015", f"a backward with {name}={describe(value)}")
    return value.value


def _tensors(interp: Interpreter, value: Value) -> list[Tensor]:
    tensors = interp.externals.items(value) if isinstance(value, Sequence) else [value]
    for each in tensors:
        if not isinstance(each, Tensor):
            raise Unsupported("B015", f"a backward of {describe(each)}")
    return tensors  # type: ignore[return-value]


def _outputs(interp: Interpreter, value: Value) -> list[Tensor]:
    tensors = _tensors(interp, value)
    for each in tensors:
        if not each.fake.requires_grad:
            raise Unsupported("B011", "a backward of a tensor that does not require grad")
    if yields_sparse(each.fake for each in tensors):
        raise Unsupported("B026", "that returns sparse gradients")
    return tensors


def _tangents(interp: Interpreter, outputs: list[Tensor], value: Value | None) -> Sequence:
    items: list[Value] = [Constant(None)] * len(outputs)
    if value is not None and not _is_none(value):
        items = list(interp.externals.items(value)) if isinstance(value, Sequence) else [value]
    if len(items) != len(outputs):
        raise Unsupported("B011", "a backward with another number of gradients than tensors")
    for output, tangent in zip(outputs, items, strict=True):
        if isinstance(tangent, Tensor):
            fake, own = tangent.fake, output.fake
            if (fake.shape, fake.dtype) != (own.shape, own.dtype) or fake.requires_grad:
                raise Unsupported("B015", "a backward with a gradient of another shape or type, or with a history")
        elif not _is_none(tangent) or output.fake.numel() != 1 or not output.fake.dtype.is_floating_point:
            raise Unsupported("B011", "a backward of more than one number, or with something else than tensors")
    return Sequence(tuple, items)


def _leaves(interp: Interpreter, outputs: list[Tensor]) -> list[Tensor]:
    """The leaves a backward reaches, none twice; each from outside or made in the graph."""
    leaves: dict[int, Tensor] = {}
    for fake in leaves_of([each.fake for each in outputs]):
        leaf = interp.tape.value_of(fake)
        if leaf is not None and interp.tape.leaves.gradient_slots(leaf) is not None:
            leaves.setdefault(id(fake), leaf)
            continue
        if leaf is None or leaf.real is None or not leaf.real.is_leaf:
            raise Unsupported("B026", "that leads out of the compiled function")
        leaves.setdefault(id(leaf.real), leaf)
    return list(leaves.values())


def _refuse_outside_history(interp: Interpreter, outputs: list[Tensor], inputs: list[Tensor]) -> None:
    """Refuse gradients of tensors from outside which another tensor from outside may be computed from: what flows by
    way of that one is not in the graph. Leaves are computed from nothing, which is relied on."""
    external = [each for each in inputs if each.real is not None]
    if not external:
        return
    alone = external[0].fake if len(external) == 1 and not external[0].fake._version else None
    own = {id(leaf) for leaf in leaves_of([alone])} if alone is not None else set()
    for fake in leaves_of([each.fake for each in outputs]):
        if id(fake) in own:
            continue
        leaf = interp.tape.value_of(fake)
        if leaf is None:
            raise Unsupported("B026", "that leads out of the compiled function")
        if leaf.source is not None and not may_guard_identity(leaf):
            leaf.source.check(("predicate", _is_leaf))


def _is_leaf(tensor: torch.Tensor) -> bool:
    return tensor.is_leaf


def _refuse_aliased_inputs(interp: Interpreter, outputs: list[Tensor]) -> None:
    """Refuse what is computed from one tensor by two names. Each has its own fake tensor until the graph is whole, and
    gradients through only one of them show other layouts, and results as one that are two."""
    reached = set(behind(each.fake.grad_fn for each in outputs))
    leaves = {id(leaf) for leaf in leaves_of([each.fake for each in outputs])}
    for met in interp.tape.input_aliases():
        fakes = {id(value.fake): value.fake for _, value in met}.values()
        if sum(fake.grad_fn in reached or id(fake) in leaves for fake in fakes) > 1:
            raise Unsupported("B026", "through one tensor that was reached by two names")


def _hooks(interp: Interpreter, leaf: Tensor) -> tuple[Value, ...]:
    """The hooks of a leaf, before and after its gradient is added; empty if it has none, which is relied on."""
    if leaf.real is None:
        return ()
    assert leaf.source is not None
    if not _is_added_to_plainly(leaf.real):
        raise Unsupported("B026", "to a tensor with hooks on the node that adds to its gradient")
    leaf.source.check(("predicate", _is_added_to_plainly))
    if not any(getattr(leaf.real, name) for name in _HOOKS):
        _refuse_hooks(leaf)
        return ()
    for hook in (leaf.real._backward_hooks or {}).values():
        if getattr(hook, "__module__", None) == "torch.autograd.graph":
            raise Unsupported("B026", "to a tensor with a hook that waits for several gradients")
    return tuple(
        interp.externals.force(interp.externals.value(getattr(leaf.real, name), leaf.source.attribute(name)))
        for name in _HOOKS
    )


def _is_added_to_plainly(leaf: torch.Tensor) -> bool:
    """Whether nobody has put hooks on the node that adds to the gradient of a leaf. Most of the time there is none:
    whoever has it has the leaf, too. PyTorch shows such hooks to whoever puts one there."""
    if leaf._use_count() == 1 or not leaf.requires_grad:  # type: ignore[attr-defined]
        return True
    node = torch.autograd.graph.get_gradient_edge(leaf).node
    for register in (node.register_hook, node.register_prehook):
        handle = register(_nothing)
        handle.remove()
        if handle.hooks_dict_ref():
            return False
    return True


def _nothing(*gradients: Any) -> None:
    """A hook."""


def _refuse_hooks(leaf: Tensor) -> None:
    """Refuse a leaf with hooks. That there are none is relied on."""
    assert leaf.real is not None and leaf.source is not None
    for name in _HOOKS:
        if getattr(leaf.real, name):
            raise Unsupported("B026", f"to a tensor with hooks ({name})")
        none = getattr(leaf.real, name) is None
        leaf.source.attribute(name).check(("equals", None) if none else ("predicate", operator.not_))


BACKWARD_CALLS: dict[Any, Callable[[Interpreter, list[Value], dict[str, Value]], Value]] = {
    torch.Tensor.backward: _of_tensor,
    torch.autograd.backward: _of_tensors,
    torch.autograd.grad: _grad,
}
