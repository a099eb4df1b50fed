"""Functions, classes and generators that the captured code made, rebuilt after the graph has run.

`build` is the `Rebuilder` of `reconstruct.py`, which knows where everything else is found.
"""

import functools
import types
import weakref
from typing import Any

from smelt import _native
from smelt.capture.interpreter.iterators import is_delegating
from smelt.capture.model.breaks import SkipFrame
from smelt.capture.model.made_classes import MadeClass, make_namedtuple
from smelt.capture.model.values import Descriptor, Function, Generator, WeakReference
from smelt.capture.polyfills.library import CACHED


def rebuild_class(build: Any, blueprint: MadeClass) -> Any:
    """A class of a class statement that was followed, made once more of what its names hold by now."""
    if blueprint.of_namedtuple is not None:
        return build.step(functools.partial(make_namedtuple, *blueprint.of_namedtuple))
    name, names, count = blueprint.kind.__name__, tuple(blueprint.names.items), len(blueprint.bases)

    def make(*operands: Any) -> type:
        return type(name, operands[:count], dict(zip(names, operands[count:], strict=True)))

    cell, contents = blueprint.cell, None
    if cell is not None:  # which leads back here
        contents, cell.contents = cell.contents, None
    bases = [build.operand(base) for base in blueprint.bases]
    members = [build.operand(item) for item in blueprint.names.items.values()]
    real = build.step(make, *bases, *members)
    if cell is not None:
        cell.contents = contents
        build.step(fill_cell, build.operand(cell), real)
    return real


def rebuild_descriptor(build: Any, value: Descriptor) -> Any:
    return build.step(value.kind, *map(build.operand, value.parts))


def rebuild_weak_reference(build: Any, value: WeakReference) -> Any:
    return build.step(weakref.ref, build.operand(value.target))


def rebuild_generator(build: Any, value: Generator) -> Any:
    """A generator that the captured code made and the program keeps, as far as it has come."""
    frame, code = value.frame, value.frame.info.code
    plain = value.kind is types.GeneratorType and not frame.handled and frame.names is None
    if not build.is_whole or not plain or build.is_replaying:
        raise SkipFrame("a generator cannot be rebuilt")
    if value.done:
        raise SkipFrame("a generator at its end cannot be rebuilt")
    function = build.operand(frame.function)
    if frame.index == 0:
        count = code.co_argcount + code.co_kwonlyargcount
        extras = bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)
        slots = [build.operand(item) for item in frame.slots[: count + extras]]
        return build.step(functools.partial(_begin_generator, code), function, *slots)
    if frame.info.instructions[frame.index - 1].name != "YIELD_VALUE" or is_delegating(value):
        raise SkipFrame("a generator inside yield from cannot be rebuilt")
    unbound = build.constant(_native.NULL)
    slots = [unbound if item is None else build.operand(item) for item in frame.slots]
    stack = [build.operand(item) for item in frame.stack]
    resume = functools.partial(_resume_generator, frame.info.instructions[frame.index].offset, len(slots))
    return build.step(resume, function, *slots, *stack)


def _begin_generator(code: types.CodeType, function: Any, *slots: Any) -> Any:
    positional, named = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    rest = list(slots[named:])
    more = rest.pop(0) if code.co_flags & 0x04 else ()
    keywords = dict(zip(code.co_varnames[positional:named], slots[positional:named], strict=True))
    return function(*slots[:positional], *more, **keywords, **(rest.pop() if code.co_flags & 0x08 else {}))


def _resume_generator(offset: int, count: int, function: Any, *values: Any) -> Any:
    return _native.suspended_generator(function, offset, values[:count], values[count:])


def rebuild_function(build: Any, value: Function) -> Any:
    code, names, qualname = value.info.code, value.globals.names, value.qualname
    if code is CACHED:
        raise SkipFrame("a function under functools.cache that was made inside cannot be rebuilt")
    parts = [build.operand_or_none(each) for each in (value.defaults, value.keyword_defaults, value.annotations)]
    closure = build.tuple_of(value.closure)

    def make(defaults: Any, keyword_defaults: Any, annotations: Any, closure: Any) -> Any:
        function = types.FunctionType(code, names, code.co_name, defaults, closure or None)
        function.__kwdefaults__ = keyword_defaults
        function.__qualname__ = qualname
        if isinstance(annotations, tuple):
            function.__annotations__ = dict(zip(annotations[::2], annotations[1::2], strict=True))
        elif annotations is not None:
            function.__annotations__ = annotations
        return function

    known = build.known(value)  # its cells may have led back to it
    if known is not None:
        return known
    function = build.early(value, build.step(make, *parts, closure))
    for name, item in value.overrides.items():
        build.step(functools.partial(set_attribute, name), function, build.operand(item))
    if value.members is not None:
        fill = functools.partial(fill_dict, tuple(value.members.items))
        build.step(fill, function, *map(build.operand, value.members.items.values()))
    return function


def set_attribute(name: str, real: Any, value: Any) -> None:
    setattr(real, name, value)


def fill_cell(real: Any, contents: Any) -> None:
    """Set what a cell holds."""
    real.cell_contents = contents


def fill_dict(names: tuple[str, ...], real: Any, *items: Any) -> None:
    """Put attributes into the `__dict__` of an object without asking its class."""
    object.__getattribute__(real, "__dict__").update(zip(names, items, strict=True))
