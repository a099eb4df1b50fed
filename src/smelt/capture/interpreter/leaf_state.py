"""What a program changes of its own leaves: `p.data = …`, `p.requires_grad_(False)`; done after the graph.

    p.data = p.data - 0.1 * p.grad     →     p as it is in the graph; when that has run, p.data = sub

Nothing of the graph knows the leaf as it is then. So the first use of it as a tensor ends the graph, and the next one
is given it as it is by then; a loop over all parameters of a model is no break.
"""

from typing import Any

from smelt.capture.interpreter.backward import require_grad, slots_of
from smelt.capture.interpreter.externals import may_guard_identity
from smelt.capture.interpreter.interpreter import Interpreter
from smelt.capture.model.breaks import Unsupported
from smelt.capture.model.values import Constant, Tensor, Value


def changed(value: Tensor, name: str) -> Value | None:
    """What the program made of an attribute of a leaf; None if it is as it was."""
    item: Value | None = None if value.state is None else value.state.items.get(name)
    return item


def store_data(interp: Interpreter, leaf: Tensor, value: Value) -> None:
    """`leaf.data = value`, of the same size and kind."""
    if interp.tape.memory.is_data(value, leaf) and changed(leaf, "data") is None:
        return  # `x.data += 1` puts back what it has read
    own, real = leaf.fake, leaf.real
    if real is None and leaf.source is None and isinstance(value, Tensor):
        _become(interp, leaf, value)
        return
    if real is None or not real.is_leaf or not may_guard_identity(leaf) or not isinstance(value, Tensor):
        raise Unsupported("B015", "Tensor.data = …")
    new = value.fake
    alike = (new.shape, new.stride(), new.dtype, new.device) == (own.shape, own.stride(), own.dtype, own.device)
    if not alike or value.real is not None or interp.tape.ambient.inference:
        raise Unsupported("B015", "Tensor.data = … of another kind, or of a tensor from outside")
    if own.requires_grad and interp.tape.leads_to(own):
        raise Unsupported("B015", "Tensor.data = …, of a tensor that a later backward may reach,")
    _store(interp, leaf, "data", value)


def _become(interp: Interpreter, tensor: Tensor, other: Tensor) -> None:
    """`tensor.data = other` of what the graph computed: from now on it shares the other's memory."""
    own, new = tensor.fake, other.fake
    alike = (new.dtype, new.device) == (own.dtype, own.device)
    recorded = own.requires_grad or new.requires_grad or tensor.node.graph is not interp.tape.graph
    if not alike or recorded or interp.tape.leaves.gradient_slots(tensor) is not None or interp.tape.ambient.inference:
        raise Unsupported("B015", "Tensor.data = … of another kind, or with a history")
    shared = interp.tensor_call("call_method", "detach", [other])
    assert isinstance(shared, Tensor)
    interp.replace_tensor(tensor, shared)


def store_requires_grad(interp: Interpreter, leaf: Tensor, args: list[Value], kwargs: dict[str, Value]) -> None:
    """`leaf.requires_grad_(…)`, `leaf.requires_grad = …`."""
    asked = [*args, *kwargs.values()] or [Constant(True)]
    flag = asked[0].value if len(asked) == 1 and isinstance(asked[0], Constant) else None
    if leaf.real is None or type(flag) is not bool or not leaf.real.is_leaf:
        require_grad(interp, leaf, args, kwargs)
        return
    if flag is leaf.fake.requires_grad and changed(leaf, "requires_grad") is None:
        return
    if not leaf.fake.dtype.is_floating_point or not may_guard_identity(leaf):
        raise Unsupported("B015", "Tensor.requires_grad_ of an argument, or of integers,")
    _store(interp, leaf, "requires_grad", Constant(flag))


def _store(interp: Interpreter, leaf: Tensor, name: str, value: Value) -> None:
    slots = slots_of(interp, leaf)
    interp.tape.change(leaf, slots)
    interp.before_mutation(slots)
    slots.items[name] = value


def read(interp: Interpreter, leaf: Tensor, name: str) -> Value | None:
    """`leaf.data` or `leaf.requires_grad` where the program has set it; None where it has not."""
    item = changed(leaf, name)
    if item is None or name == "requires_grad":
        return item
    data: Any = interp.tensor_call("call_function", getattr, [item, Constant("data")])
    return data if isinstance(data, Value) else None


def _is_leaf(tensor: Any) -> bool:
    return bool(tensor.is_leaf)


def _retains_grad(tensor: Any) -> bool:
    return bool(tensor.retains_grad)


def _is_no_leaf(tensor: Any) -> bool:
    return not tensor.is_leaf


def _retains_no_grad(tensor: Any) -> bool:
    return not tensor.retains_grad


_IS_LEAF = (_is_no_leaf, _is_leaf)
_RETAINS_GRAD = (_retains_no_grad, _retains_grad)


def leaf_attribute(value: Tensor, name: str) -> Value | None:
    """`is_leaf` or `retains_grad` where it follows from how the tensor was made; None where it does not."""
    if value.real is not None and value.source is not None:
        if changed(value, "requires_grad") is not None:
            return None
        if name == "is_leaf" and not value.fake.requires_grad:
            return Constant(True)
        answer = bool(getattr(value.real, name))
        value.source.check(("predicate", _IS_LEAF[answer] if name == "is_leaf" else _RETAINS_GRAD[answer]))
        return Constant(answer)
    if value.real is not None or value.source is not None:
        return None
    return Constant(bool(value.fake.is_leaf) if name == "is_leaf" else False)
