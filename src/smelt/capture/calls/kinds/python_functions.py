"""Calls of Python functions: arguments bound to slots, and a frame pushed to interpret the body.

follow(Object(f), [Tensor])   →   PUSHED, with a `Frame` of f on top
"""

import types
from typing import Any

import torch

from smelt.capture.calls import nn_module
from smelt.capture.calls.arity import WrongCall, wrong_call
from smelt.capture.interpreter.interpreter import Frame, Interpreter
from smelt.capture.model.breaks import NotFollowed, Unsupported
from smelt.capture.model.bytecode import CodeInfo, decode
from smelt.capture.model.policy import (
    Treatment,
    hook_of_library,
    is_polyfill,
    is_transform,
    treatment_of_code,
    wrapped_by_torch_compile,
)
from smelt.capture.model.values import (
    Cell,
    Constant,
    Function,
    Generator,
    Globals,
    Instance,
    Mapping,
    Object,
    Sequence,
    Value,
    describe,
)
from smelt.capture.polyfills.library import KINDS, MAKERS
from smelt.capture.polyfills.transforms import MADE_OUTSIDE

_GENERATOR = 0x20
_COROUTINE = 0x80 | 0x100 | 0x200


def inline(interp: Interpreter, function: Object, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Follow a Python function from outside, where its file is one to follow."""
    real = function.value
    receiver = args[0] if args else None
    if real is torch.nn.Module._wrapped_call_impl and isinstance(receiver, Object | Instance):
        hook = hook_of_library(receiver.value) if isinstance(receiver, Object) else None
        if hook is not None:
            raise Unsupported("B002", f"{describe(receiver)} with its hook {hook}")
        forward = nn_module.forward_of(interp, receiver)
        if forward is not None:
            return interp.call(forward, args[1:], kwargs)
    if treatment_of_code(real.__code__) is not Treatment.INLINE:
        behind = wrapped_by_torch_compile(real)
        if behind is not None and function.source is not None:
            return interp.call(_in_closure(interp, function, behind), args, kwargs)
        if is_transform(real.__code__) and real.__code__.co_qualname in MADE_OUTSIDE and function.source is not None:
            return _call_transformed(interp, function, args, kwargs)
        raise Unsupported("B025" if is_transform(real.__code__) else "B002", f"{real.__module__}.{real.__qualname__}")
    return follow(interp, function, args, kwargs)


def _call_transformed(interp: Interpreter, function: Object, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A function that a transform of `torch.func` made before: transformed once more, in the captured code."""
    make, names, defaults = MADE_OUTSIDE[function.value.__code__.co_qualname]
    for name, default in defaults.items():
        if name in function.value.__code__.co_freevars and interp.plain(_in_closure(interp, function, name)) != default:
            raise Unsupported("B025", f"{function.value.__qualname__} with {name}")
    captured = [_in_closure(interp, function, name) for name in names]
    transformed = interp.now(interp.call(interp.externals.fixed(make), captured, {}))
    return interp.call(transformed, args, kwargs)


def _in_closure(interp: Interpreter, function: Object, name: str) -> Value:
    """What a function from outside, of just this code, has in its closure by a name."""
    real, source = function.value, function.source
    assert source is not None
    source.attribute("__code__").check(("is", real.__code__))
    index = real.__code__.co_freevars.index(name)
    cell = _cell(interp, real.__closure__[index], source.child(("closure", index), name))
    contents = interp.externals.cell_contents(cell)
    assert contents is not None
    return contents


def follow(interp: Interpreter, function: Object, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Enter a function from outside."""
    real = function.value
    source = function.source
    if source is None:
        raise Unsupported("B002", real.__qualname__)
    if not is_polyfill(real.__code__):
        source.attribute("__code__").check(("is", real.__code__))
    info = decode(real.__code__)
    defaults = keyword_defaults = None
    if real.__defaults__:
        defaults = interp.externals.value(real.__defaults__, source.attribute("__defaults__"))
    if real.__kwdefaults__:
        keyword_defaults = interp.externals.value(real.__kwdefaults__, source.attribute("__kwdefaults__"))
    closure = tuple(
        _cell(interp, cell, source.child(("closure", index), info.code.co_freevars[index]))
        for index, cell in enumerate(real.__closure__ or ())
    )
    slots = bind(interp, info, args, kwargs, defaults, keyword_defaults, function)
    return _enter(interp, info, function, interp.externals.globals_of(function), closure, slots)


def _cell(interp: Interpreter, real: types.CellType, source: Any) -> Cell:
    cell = interp.externals.value(real, source)
    assert isinstance(cell, Cell)
    return cell


def enter_function(interp: Interpreter, function: Function, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Enter a function that the captured code made."""
    slots = bind(interp, function.info, args, kwargs, function.defaults, function.keyword_defaults, function)
    return _enter(interp, function.info, function, function.globals, function.closure, slots)


def _enter(
    interp: Interpreter,
    info: CodeInfo,
    function: Value,
    names: Globals,
    closure: tuple[Cell, ...],
    slots: list[Value | None],
) -> Value:
    frame = Frame(info, function, names, closure, slots, [])
    too_many = len(interp.made_generators) >= interp.generators
    if info.code.co_flags & _COROUTINE or (too_many and (info.code.co_flags & _GENERATOR or info.code in MAKERS)):
        droppable = interp.leaves_droppable or any(each.name == "PUSH_EXC_INFO" for each in info.instructions)
        raise NotFollowed("B002", f"{info.code.co_qualname}, a generator or coroutine", is_droppable=droppable)
    if info.code.co_flags & _GENERATOR:
        frame.generator = Generator(frame, KINDS.get(info.code, types.GeneratorType))
        interp.made_generators.append(frame.generator)
        return frame.generator
    return interp.enter(frame)


def bind(
    interp: Interpreter,
    info: CodeInfo,
    args: list[Value],
    kwargs: dict[str, Value],
    defaults: Value | None,
    keyword_defaults: Value | None,
    function: Object | Function,
) -> list[Value | None]:
    """Arguments to slots, as Python binds them; what Python would reject is rejected in its words."""
    try:
        return _bind(interp, info, args, kwargs, defaults, keyword_defaults)
    except WrongCall:
        named = keyword_defaults.items if isinstance(keyword_defaults, Mapping) else ()
        positional = len(defaults.items) if isinstance(defaults, Sequence) else 0
        raise wrong_call(info.code, _qualname(interp, function), len(args), kwargs, positional, named) from None


def _qualname(interp: Interpreter, function: Object | Function) -> str | None:
    """By which name Python speaks of a function in errors; None of one that stands for another."""
    if isinstance(function, Function):
        return str(interp.plain(function.overrides.get("__qualname__", Constant(function.qualname))))
    if is_polyfill(function.value.__code__):
        return None
    assert function.source is not None
    function.source.attribute("__qualname__").check(("equals", function.value.__qualname__))
    return str(function.value.__qualname__)


def _bind(
    interp: Interpreter,
    info: CodeInfo,
    args: list[Value],
    kwargs: dict[str, Value],
    defaults: Value | None,
    keyword_defaults: Value | None,
) -> list[Value | None]:
    code = info.code
    positional, keyword_only = code.co_argcount, code.co_kwonlyargcount
    slots: list[Value | None] = [None] * info.slot_count
    slots[: min(len(args), positional)] = args[:positional]
    rest = args[positional:]
    named = dict(kwargs)
    for slot in range(code.co_posonlyargcount, positional + keyword_only):
        name = code.co_varnames[slot]
        if name in named:
            if slots[slot] is not None:
                raise _wrong_call(code)
            slots[slot] = named.pop(name)
    following = positional + keyword_only
    if code.co_flags & 0x04:
        slots[following] = Sequence(tuple, list(rest))
        following += 1
    elif rest:
        raise _wrong_call(code)
    if code.co_flags & 0x08:
        slots[following] = Mapping(dict(named))
    elif named:
        raise _wrong_call(code)
    _fill_defaults(interp, info, slots, defaults, keyword_defaults)
    return slots


def _fill_defaults(
    interp: Interpreter,
    info: CodeInfo,
    slots: list[Value | None],
    defaults: Value | None,
    keyword_defaults: Value | None,
) -> None:
    code = info.code
    items = defaults.items if isinstance(defaults, Sequence) else []
    first = code.co_argcount - len(items)
    for slot in range(code.co_argcount):
        if slots[slot] is None:
            if slot < first:
                raise _wrong_call(code)
            slots[slot] = interp.externals.force(items[slot - first])
    for slot in range(code.co_argcount, code.co_argcount + code.co_kwonlyargcount):
        if slots[slot] is None:
            name = code.co_varnames[slot]
            if not isinstance(keyword_defaults, Mapping) or not interp.externals.present(keyword_defaults, name):
                raise _wrong_call(code)
            slots[slot] = interp.externals.force(keyword_defaults.items[name])


def _wrong_call(code: types.CodeType) -> WrongCall:
    return WrongCall("B019", f"TypeError: arguments do not fit {code.co_qualname}()")
