"""Calling an `nn.Module`: straight to its `forward` when no hook could notice the difference.

`torch.func.functional_call` is such a call between putting tensors in and putting the old ones back. What recurrent
modules ask of their weights' memory no guard sees: it is answered now, and asked at every call.
"""

import types
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules import module as torch_module
from torch.nn.modules.lazy import LazyModuleMixin

from smelt.capture.calls.arity import alone
from smelt.capture.interpreter.attributes import attribute_now
from smelt.capture.interpreter.interpreter import Interpreter
from smelt.capture.interpreter.operators import store_subscript
from smelt.capture.model.breaks import Materialize, Unsupported
from smelt.capture.model.policy import is_library
from smelt.capture.model.static import is_a
from smelt.capture.model.values import Constant, Instance, LazyItem, Mapping, Object, Sequence, Tensor, Value
from smelt.capture.polyfills.library import functional_call, put_for_now

_INSTANCE_HOOKS = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")
_GLOBAL_HOOKS = (
    "_global_backward_pre_hooks",
    "_global_backward_hooks",
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
)


def forward_of(interp: Interpreter, value: Object | Instance) -> Value | None:
    """The bound `forward` that a call of the module amounts to, or None if hooks want the whole protocol.

    What `Module.__call__` looks at is guarded: its hook registries are empty, no global hook is set.
    """
    if isinstance(value, Instance):
        return _forward_of_new(interp, value)
    module, source = value.value, value.source
    if not isinstance(module, torch.nn.Module) or source is None:
        return None
    members = module.__dict__
    if members.get("_compiled_call_impl") is not None or any(members.get(name) for name in _INSTANCE_HOOKS):
        return None
    written = interp.externals.shared(members)
    if written is not None and not all(isinstance(written.items.get(name), LazyItem) for name in _INSTANCE_HOOKS):
        return None
    if any(getattr(torch_module, name) for name in _GLOBAL_HOOKS):
        return None
    if interp.tree.class_attribute(type(module), "_call_impl") is not torch.nn.Module._call_impl:
        return None
    if "_compiled_call_impl" in members:
        source.member("_compiled_call_impl").check(("is", None))
    else:
        source.instance_dict().check(("lacks", "_compiled_call_impl"))
    for name in _INSTANCE_HOOKS:
        source.member(name).check(("length", 0))
    _no_global_hooks(interp)
    return attribute_now(interp, value, "forward")


def _no_global_hooks(interp: Interpreter) -> None:
    names = interp.tree.fixed(vars(torch_module), "globals of torch.nn.modules.module")
    for name in _GLOBAL_HOOKS:
        names.child(("key", name), name).check(("length", 0))


def _forward_of_new(interp: Interpreter, value: Instance) -> Value | None:
    """The same for a module that the captured code has made."""
    hooks = [value.attributes.get(name) for name in _INSTANCE_HOOKS]
    if not all(isinstance(each, Mapping) and not each.items for each in hooks):
        return None
    if "_compiled_call_impl" in value.attributes or any(getattr(torch_module, name) for name in _GLOBAL_HOOKS):
        return None
    if interp.tree.class_attribute(value.kind, "_call_impl") is not torch.nn.Module._call_impl:
        return None
    _no_global_hooks(interp)
    return attribute_now(interp, value, "forward")


def _functional_call(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Followed for tensors that the module has by that name, none of which is two of its tensors."""
    module, state = args[0], args[1] if len(args) > 1 else kwargs.get("parameter_and_buffer_dicts")
    strict = kwargs.get("strict", Constant(False))
    plain = isinstance(strict, Constant) and strict.value is False and "parameter_and_buffer_dicts" not in kwargs
    if not plain or not isinstance(module, Object) or not is_a(module.value, torch.nn.Module):
        raise Unsupported("B025", "torch.func.functional_call")
    dicts = interp.externals.items(state) if isinstance(state, Sequence) else [state]
    if module.source is None or not all(isinstance(each, Mapping) for each in dicts) or not _are_apart(module.value):
        raise Unsupported("B025", "torch.func.functional_call")
    names = [name for each in dicts if isinstance(each, Mapping) for name in each.items]
    if len(set(names)) < len(names) or not set(names) <= _names(module.value).keys():
        raise Unsupported("B025", "torch.func.functional_call")
    module.source.check(("predicate", _are_apart))
    return interp.call(interp.externals.fixed(functional_call), args, kwargs)


def _put_for_now(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Also in code that may have no side effects: once it is left, all is as it was."""
    externals = interp.externals
    no_side_effects, externals.no_side_effects = externals.no_side_effects, False
    try:
        store_subscript(interp, *args)
    finally:
        externals.no_side_effects = no_side_effects
    return Constant(None)


def _names(module: Any) -> dict[str, torch.Tensor]:
    """Every tensor of a module by every name it has."""
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


def _are_apart(module: Any) -> bool:
    """Whether each tensor of a module has one name."""
    tensors = _names(module).values()
    return len({id(tensor) for tensor in tensors}) == len(tensors)


def _infer_parameters(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The first call of a lazy module: its parameters are made now, as large as what it is given asks for, and capture
    begins again. Not so where that would come before random numbers that the program draws first, or run its code."""
    module = args[0].value if isinstance(args[0], Object) else None
    arguments = args[2] if len(args) > 2 and isinstance(args[2], Sequence) else None
    kind = type(module)
    methods = [interp.tree.class_attribute(kind, name) for name in ("initialize_parameters", "reset_parameters")]
    of_torch = all(is_a(each, types.FunctionType) and is_library(each.__code__) for each in methods)
    sealed = interp.externals.no_side_effects or interp.externals.runs_later or interp.externals.explores
    if (
        arguments is None
        or not of_torch
        or sealed
        or interp.tape.effects.draws_on
        or interp.externals.has_pending_writes()
    ):
        raise Unsupported("B002", "LazyModuleMixin._infer_parameters")
    inputs = interp.externals.items(arguments)
    if not all(isinstance(value, Tensor) for value in inputs):
        raise Unsupported("B002", "LazyModuleMixin._infer_parameters")
    shapes = [tuple(map(int, value.fake.shape)) for value in inputs]  # type: ignore[attr-defined]
    raise Materialize(_initialize, module, shapes)


def _initialize(module: Any, shapes: list[tuple[int, ...]]) -> None:
    module._infer_parameters(module, tuple(torch.empty(shape, device="meta") for shape in shapes))


MODULE_CALLS: dict[Any, Callable[[Interpreter, list[Value], dict[str, Value]], Value]] = {
    torch.func.functional_call: _functional_call,
    LazyModuleMixin._infer_parameters: _infer_parameters,
    put_for_now: _put_for_now,
}


# recurrent modules


def _weights_have_changed(interp: Interpreter, module: Value) -> Value | None:
    """It follows weak references."""
    if not isinstance(module, Object) or module.source is None or interp.externals.has_pending_writes():
        raise Unsupported("B002", "torch.nn.RNNBase._weights_have_changed")
    changed = bool(module.value._weights_have_changed())
    module.source.check(("predicate", _changed_weights if changed else _unchanged_weights))
    return Constant(changed)


def _changed_weights(module: Any) -> bool:
    return bool(module._weights_have_changed())


def _unchanged_weights(module: Any) -> bool:
    return not module._weights_have_changed()


def _flatten_parameters(interp: Interpreter, module: Value) -> Value | None:
    """Copying weights that are in one piece of memory into another changes nothing that a program could tell. Where
    they are not, Python does it, and the next call finds them so."""
    if not isinstance(module, Object) or module.source is None or not are_on_gpu(module.value):
        return None
    if interp.externals.has_pending_writes():
        raise Unsupported("B002", "torch.nn.RNNBase.flatten_parameters")
    whole = are_in_one_piece(module.value)
    module.source.check(("predicate", are_in_one_piece if whole else _are_in_pieces))
    if not whole:
        raise Unsupported("B002", "torch.nn.RNNBase.flatten_parameters")
    return Constant(None)


def are_on_gpu(module: Any) -> bool:
    """Whether all weights of a module are on CUDA; elsewhere nothing is flattened."""
    weights = module._flat_weights
    return bool(weights) and all(isinstance(each, torch.Tensor) and each.is_cuda for each in weights)


def are_in_one_piece(module: Any) -> bool:
    """Whether all weights of a module share their memory."""
    weights = module._flat_weights
    if not all(isinstance(each, torch.Tensor) for each in weights):
        return False
    return len({each.untyped_storage().data_ptr() for each in weights}) == 1


def _are_in_pieces(module: Any) -> bool:
    return not are_in_one_piece(module)


RECURRENT_CALLS: dict[Any, Callable[..., Value | None]] = {
    torch.nn.RNNBase._weights_have_changed: alone(_weights_have_changed),
    torch.nn.RNNBase.flatten_parameters: alone(_flatten_parameters),
}
"""Methods of `nn.RNNBase`; None where the call is to be followed as any other."""
