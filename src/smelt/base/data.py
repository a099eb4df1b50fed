"""`dataclass` at a tenth of what defining a standard one costs.

    from smelt.base.data import dataclass     as the standard one; `field`, `fields`, `replace` are the standard ones

The standard decorator compiles up to seven functions when a class is defined: 0.9 ms a class, which was most of what
importing smelt took, and a third of a first compilation. Here it finds the fields and makes the slots, and no more.
`__init__`, `__eq__` and `__hash__` are compiled when one is first called, and take their own place then; what can be
the same for all classes is written out below. Frozen objects are made in two thirds of the time, too. Not known here:
`InitVar`, `order`, `unsafe_hash`.
"""

import dataclasses
import reprlib
from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field, FrozenInstanceError, fields
from functools import partial
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(
        *, frozen: bool = False, slots: bool = False, eq: bool = True, repr: bool = True
    ) -> Callable[[type], type]:
        """As `dataclasses.dataclass`, with those of its arguments that are in use here."""
        return lambda given: _made(given, frozen, slots, eq, repr)


def _made(given: type, frozen: bool, slots: bool, eq: bool, repr: bool) -> type:
    own = frozenset(vars(given))
    has_hash = vars(given).get("__hash__") is not None  # a class that has `__eq__` of its own has None there
    given.__doc__ = given.__doc__ or given.__name__  # else the decorator makes one, of a signature that it asks for
    cls: type = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots)(given)
    methods: dict[str, Callable[..., Any] | None] = {"__init__": _when_called(cls, "__init__", partial(_init, frozen))}
    if repr:
        methods["__repr__"] = _repr
    if eq:
        methods["__eq__"] = _when_called(cls, "__eq__", _eq)
    if frozen:
        methods |= {"__setattr__": _refuse_to_set, "__delattr__": _refuse_to_delete}
        methods |= {"__getstate__": _state, "__setstate__": _set_state}
    for name in methods.keys() - own:
        setattr(cls, name, methods[name])
    if eq and not has_hash:
        cls.__hash__ = _when_called(cls, "__hash__", _hash) if frozen else None  # type: ignore[method-assign, assignment]
    return cls


Written = tuple[str, dict[str, Any]]  # the text of a function, and what it knows by name


def _when_called(cls: type, name: str, write: Callable[[type], Written]) -> Callable[..., Any]:
    """Stands for a method until it is first called, when it compiles the method and puts it in its place."""

    def method(*args: Any, **kwargs: Any) -> Any:
        text, known = write(cls)
        known["__name__"] = cls.__module__
        exec(text, known)  # of names of fields and numbers alone
        compiled: Callable[..., Any] = known[name]
        compiled.__qualname__ = f"{cls.__qualname__}.{name}"
        setattr(cls, name, compiled)
        return compiled(*args, **kwargs)

    return method


class _Factory:
    """Stands in a signature for a value that is made for each object."""

    def __repr__(self) -> str:
        return "<factory>"


def _init(frozen: bool, cls: type) -> Written:
    known: dict[str, Any] = {"_made_later": _Factory()}
    plain: list[str] = []
    by_name: list[str] = []
    body: list[str] = []
    for number, each in enumerate(fields(cls)):
        parameter = value = each.name
        otherwise = ""
        if each.default_factory is not MISSING:
            known[f"_make{number}"] = each.default_factory
            otherwise = f"_make{number}()"
            parameter, value = f"{value}=_made_later", f"{otherwise} if {value} is _made_later else {value}"
        elif each.default is not MISSING:
            known[f"_default{number}"] = each.default
            otherwise = f"_default{number}"
            parameter = f"{value}={otherwise}"
        if each.init:
            (by_name if each.kw_only else plain).append(parameter)
        elif otherwise:
            value = otherwise
        else:
            continue  # the class sets it later
        if frozen:
            known[f"_set{number}"] = _setter(cls, each.name)
            body.append(f"_set{number}(self, {value})")
        else:
            body.append(f"self.{each.name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    parameters = ", ".join(["self", *plain, *(["*", *by_name] if by_name else [])])
    return f"def __init__({parameters}):\n " + "\n ".join(body or ["pass"]), known


def _setter(cls: type, name: str) -> Callable[[Any, Any], None]:
    """What sets a field of a frozen object: its slot does at once what `object.__setattr__` looks up each time."""
    slot = getattr(cls, name, None)
    if isinstance(slot, MemberDescriptorType):
        return slot.__set__
    return lambda self, value: object.__setattr__(self, name, value)


def _eq(cls: type) -> Written:
    mine, others = (_tuple(whose, (each for each in fields(cls) if each.compare)) for whose in ("self", "other"))
    test = f"{mine} == {others} if other.__class__ is self.__class__ else NotImplemented"
    return f"def __eq__(self, other):\n return {test}", {}


def _hash(cls: type) -> Written:
    hashed = (each for each in fields(cls) if (each.compare if each.hash is None else each.hash))
    return f"def __hash__(self):\n return hash({_tuple('self', hashed)})", {}


def _tuple(whose: str, of: Iterable[Field[Any]]) -> str:
    return "(" + "".join(f"{whose}.{each.name}, " for each in of) + ")"


@reprlib.recursive_repr()
def _repr(self: Any) -> str:
    shown = ", ".join(f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)
    return f"{type(self).__qualname__}({shown})"


def _refuse_to_set(self: Any, name: str, value: Any) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: Any, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    """For copies and pickles, which could not set attributes of a frozen object one by one."""
    return [getattr(self, each.name) for each in fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for each, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, each.name, value)
