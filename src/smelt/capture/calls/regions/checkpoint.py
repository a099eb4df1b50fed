"""`torch.utils.checkpoint`: the function is followed into a graph of its own, which is one node of the outer graph.

    checkpoint(block, x, use_reentrant=False)    →    checkpoint = Checkpoint(x, weight), a body of block's operators

PyTorch runs the function again in the backward, effects and all. Here it is followed once, so a function that has
side effects falls back to eager: a break.
"""

import dis
import functools
import types
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts, noop_context_fn

from smelt.capture.interpreter.interpreter import Interpreter
from smelt.capture.model.breaks import Raised, Unsupported
from smelt.capture.model.reachable_values import reachable
from smelt.capture.model.values import (
    Constant,
    Object,
    Partial,
    Sequence,
    Tensor,
    Value,
    describe,
    is_constant,
)
from smelt.capture.tape.subtape import RegionTape
from smelt.ir.graph import GraphLevel, Traced
from smelt.ir.nodes.checkpoint import Checkpoint, Policy

_DEFAULTS: dict[str, Any] = {
    "use_reentrant": None,
    "preserve_rng_state": True,
    "context_fn": noop_context_fn,
    "determinism_check": "default",
    "debug": False,
    "early_stop": True,
}


def _checkpoint(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    chosen = {name: kwargs.pop(name) for name in _DEFAULTS if name in kwargs}
    # A function of contexts is looked at later.
    known = {name: value.value if isinstance(value, Constant) else value for name, value in chosen.items()}
    options = {**_DEFAULTS, **known}
    function, operands = args[0], args[1:]
    if type(options["use_reentrant"]) is not bool or options["debug"] or (options["use_reentrant"] and kwargs):
        raise Unsupported("B024", "options that cannot be captured")
    if not interp.tape.ambient.records:
        return interp.call(function, operands, kwargs)
    reentrant = options["use_reentrant"]
    if reentrant and not any(isinstance(value, Tensor) and value.fake.requires_grad for value in operands):
        raise Unsupported("B024", "use_reentrant=True without an argument that requires grad")
    policy, contexts = _policy(interp, chosen.get("context_fn"))
    tape = RegionTape(interp.tape)
    try:
        result = follow(interp, tape, function, operands, kwargs)
    except Raised:
        raise
    except Unsupported as stop:
        raise Unsupported("B024", f"{describe(function)}: {stop.reason}") from stop
    if reentrant and not all(value.fake.requires_grad for value in _tensors(result)):
        raise Unsupported("B024", "use_reentrant=True, and a result that does not require grad")
    body = Traced(tape.graph, GraphLevel.TORCH, {})
    interp.tape.region(Checkpoint(body, policy, contexts, options["preserve_rng_state"]), tape)
    return result


def _tensors(value: Value) -> list[Tensor]:
    if isinstance(value, Sequence):
        return [tensor for item in value.items for tensor in _tensors(item)]
    return [value] if isinstance(value, Tensor) else []


def follow(
    interp: Interpreter, tape: RegionTape, function: Value, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """Call the function with `tape` in place of the outer one; nothing but its result may come of it."""
    outer, entry = interp.tape, tape.ambient
    interp.tape = interp.externals.tape = tape
    no_side_effects, interp.externals.no_side_effects = interp.externals.no_side_effects, True
    mutated, interp.externals.mutated = interp.externals.mutated, []
    try:
        result = interp.now(interp.call(function, args, kwargs))
    finally:
        interp.tape = interp.externals.tape = outer
        interp.externals.no_side_effects = no_side_effects
        written = tape.written_outside()
        if tape.ambient != outer.ambient:
            replace(outer.ambient, grad=outer.ambient.records).impose()
        mutated, interp.externals.mutated = interp.externals.mutated, mutated
    if mutated:
        frames = [value for frame in interp.frames for value in (*frame.slots, *frame.stack, *frame.closure)]
        held = reachable([*frames, function, *args, *kwargs.values()])
        if any(id(value) in held for value in mutated):
            raise Unsupported("B005", "an object from outside, which the recomputation would write again")
    if written:
        raise Unsupported("B005", "a tensor from outside, which the recomputation would write again")
    if tape.ambient != entry:
        raise Unsupported("B013", "a mode that it does not leave")
    return result


def _policy(interp: Interpreter, contexts: Value | None) -> tuple[Policy | None, Callable[[], Any]]:
    """What a selective checkpoint saves, if that is a list of operators or a function of nothing that changes."""
    if contexts is None or (isinstance(contexts, Object) and contexts.value is noop_context_fn):
        return None, noop_context_fn
    if isinstance(contexts, Partial):
        maker, chosen, named = contexts.function, contexts.args, contexts.keywords
        kind = interp.externals.guard_identity(maker) if isinstance(maker, Object) else None
        first = chosen[0] if len(chosen) == 1 else None
        real = interp.externals.guard_identity(first) if isinstance(first, Object) else None
    elif isinstance(contexts, Object) and isinstance(contexts.value, functools.partial):
        partial = interp.externals.guard_identity(contexts)
        kind, named = partial.func, partial.keywords
        real = partial.args[0] if len(partial.args) == 1 else None
        if isinstance(real, list) and contexts.source is not None:
            contexts.source.check(("predicate", _same_list(real)))
            kept = tuple(real)
            return _saving(kept), functools.partial(create_selective_checkpoint_contexts, list(kept))
    else:
        kind, named, real = None, {}, None
    if kind is not create_selective_checkpoint_contexts or named or not isinstance(real, types.FunctionType):
        raise Unsupported("B024", "a context_fn of its own")
    seen = _readings(real)
    interp.tree.fixed(real, real.__qualname__).check(("predicate", lambda function: _readings(function) == seen))
    return real, functools.partial(create_selective_checkpoint_contexts, real)


def _saving(operators: tuple[Any, ...]) -> Policy:
    """The policy that a list of operators stands for."""

    def policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> bool:
        return operator in operators

    return policy


def _same_list(real: list[Any]) -> Callable[[Any], bool]:
    seen = tuple(real)
    return lambda partial: tuple(partial.args[0]) == seen


_EFFECTS = ("STORE_GLOBAL", "STORE_ATTR", "STORE_SUBSCR", "STORE_DEREF", "DELETE_")


def _readings(function: types.FunctionType) -> dict[str, Any]:
    """What a policy reads from outside, by name; it is asked once, when the graph is compiled."""
    if any(each.opname.startswith(_EFFECTS) for each in dis.get_instructions(function)):
        raise Unsupported("B024", f"the policy {function.__qualname__} writes something")
    read: dict[str, Any] = {"": function.__code__}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        read[name] = cell.cell_contents
    for name in function.__code__.co_names:
        if name in function.__globals__:
            read[name] = function.__globals__[name]
    for name, value in read.items():
        if isinstance(value, list | set | frozenset | tuple):
            value = read[name] = frozenset(value)
            if all(map(_is_fixed, value)):
                continue
        if not _is_fixed(value):
            raise Unsupported("B024", f"the policy {function.__qualname__} reads {name}")
    return read


def _is_fixed(value: Any) -> bool:
    if isinstance(value, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return True
    return is_constant(value) or isinstance(value, types.ModuleType | types.BuiltinFunctionType | type | Enum)


CHECKPOINTS: dict[Any, Callable[[Interpreter, list[Value], dict[str, Value]], Value]] = {checkpoint: _checkpoint}
