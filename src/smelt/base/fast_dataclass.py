"""`dataclass` at a tenth of what defining a standard one costs.

    from smelt.base.fast_dataclass import dataclass     as the standard one; `field`, `fields`, `replace` are

The standard decorator compiles up to seven functions for each class: 0.9 ms, which was most of what importing smelt
took, and a third of a first compilation. Here fields and slots are found without it, which takes it 0.1 ms. What is the
same for all classes (`__repr__`, refusing to assign) is written out below. The rest is made at its first call, and is
the same for all classes of a shape: one text is compiled for all that have three fields, say, and given the names of
the fields after that.

    def __init__(self, f0, f1): self.f0 = f0; self.f1 = f1     →     def __init__(self, x, y): self.x = x; self.y = y

Frozen objects are made in two thirds of the time, too. Not known here: `InitVar`, `KW_ONLY`, `order`, `unsafe_hash`.
"""

import dataclasses
import functools
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, FrozenInstanceError, fields
from types import CodeType, FunctionType, MemberDescriptorType
from typing import TYPE_CHECKING, Any, ClassVar, get_origin

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(
        *, frozen: bool = False, slots: bool = False, eq: bool = True, repr: bool = True
    ) -> Callable[[type], type]:
        """As `dataclasses.dataclass`, with those of its arguments that are in use here."""
        return lambda plain: _made(plain, frozen, slots, eq, repr)


def _made(plain: type, frozen: bool, slots: bool, eq: bool, repr: bool) -> type:
    own = frozenset(vars(plain))
    has_hash = vars(plain).get("__hash__") is not None  # a class that has `__eq__` of its own has None there
    plain.__doc__ = plain.__doc__ or plain.__name__  # the standard one makes one of the signature
    cls = _with_fields(plain, frozen, slots, eq, repr)
    methods: dict[str, Callable[..., Any]] = {"__init__": _at_first_call(cls, "__init__", lambda: _init(cls, frozen))}
    if repr:
        methods["__repr__"] = _repr
    if eq:
        methods["__eq__"] = _at_first_call(cls, "__eq__", lambda: _eq(cls))
    if frozen:
        methods |= {"__setattr__": _refuse_to_set, "__delattr__": _refuse_to_delete}
        methods |= {"__getstate__": _state, "__setstate__": _set_state}
    for name in methods.keys() - own:
        setattr(cls, name, methods[name])
    if eq and not has_hash:
        hashing = _at_first_call(cls, "__hash__", lambda: _hash(cls)) if frozen else None
        cls.__hash__ = hashing  # type: ignore[method-assign, assignment]
    return cls


def _at_first_call(cls: type, name: str, make: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    """A method that puts the one that `make` returns in its own place: most classes are defined and not used."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        replacement = make()
        if vars(cls).get(name) is method:
            setattr(cls, name, replacement)
        return replacement(self, *args, **kwargs)

    method.__name__, method.__qualname__, method.__module__ = name, f"{cls.__qualname__}.{name}", cls.__module__
    method.make = make  # type: ignore[attr-defined]
    return method


class _LazySignature:
    """The signature of a class whose `__init__` has not been called yet; None where `inspect` finds it by itself."""

    def __get__(self, instance: object, owner: type) -> Any:
        make = getattr(getattr(owner, "__init__", None), "make", None)
        if make is None or instance is not None:
            return None
        import inspect  # slow to load, and few ask

        whole = inspect.signature(make())
        return whole.replace(parameters=list(whole.parameters.values())[1:])


def _with_fields(plain: type, frozen: bool, slots: bool, eq: bool, repr: bool) -> type:
    """The class with its fields where the functions of `dataclasses` look for them, and with slots."""
    known: dict[str, Any] = {}
    for base in plain.__mro__[-2:0:-1]:
        known |= vars(base).get("__dataclass_fields__", {})
    own = {name: kind for name, kind in plain.__annotations__.items() if not _is_class_variable(kind)}
    for name, kind in own.items():
        default = getattr(plain, name, MISSING)
        each: Any = default if isinstance(default, Field) else _field(default)
        each.name, each.type, each._field_type = name, kind, _OF_INSTANCES
        if each.kw_only is MISSING:
            each.kw_only = False
        if isinstance(default, Field) and default.default is MISSING:
            delattr(plain, name)
        elif isinstance(default, Field):
            setattr(plain, name, default.default)
        known[name] = each
    attributes: dict[str, Any] = {
        "__dataclass_fields__": known,
        "__dataclass_params__": _params(frozen, eq, repr),
        "__signature__": _SIGNATURE,
        "__match_args__": tuple(each.name for each in known.values() if each.init and not each.kw_only),
    }
    if "__match_args__" in vars(plain):
        del attributes["__match_args__"]
    if not slots:
        for name, value in attributes.items():
            setattr(plain, name, value)
        return plain
    left = {"__dict__", "__weakref__", *known}
    inherited = {name for base in plain.__mro__[1:-1] for name in vars(base).get("__slots__", ())}
    body = {name: value for name, value in vars(plain).items() if name not in left}
    cls: type = type(plain)(
        plain.__name__,
        plain.__bases__,
        {**body, **attributes, "__slots__": tuple(name for name in known if name not in inherited)},
    )
    cls.__qualname__ = plain.__qualname__
    return cls


def _is_class_variable(kind: object) -> bool:
    if isinstance(kind, str):
        return kind.startswith(("ClassVar", "typing.ClassVar"))
    return not isinstance(kind, type) and (kind is ClassVar or get_origin(kind) is ClassVar)


def _field(default: Any) -> Any:
    if isinstance(default, MemberDescriptorType):  # the slot of a base's field
        default = MISSING
    if default.__class__.__hash__ is None:
        raise ValueError(f"mutable default {default!r}: use default_factory")
    return dataclasses.field(default=default)


_SIGNATURE = _LazySignature()


@functools.cache
def _params(frozen: bool, eq: bool, repr: bool) -> Any:
    """What a standard class with these arguments says of itself."""
    standard: Any = dataclasses.make_dataclass("Standard", (), init=False, frozen=frozen, eq=eq, repr=repr)
    return standard.__dataclass_params__


_STANDARD: Any = dataclasses.make_dataclass("Standard", ["field"], init=False)
_OF_INSTANCES: Any = vars(_STANDARD)["__dataclass_fields__"]["field"]._field_type


def _function(cls: type, code_of: Callable[[int], CodeType], names: Sequence[str]) -> Callable[..., Any]:
    return _named(cls, code_of(len(names)), dict(zip(map("f{}".format, range(len(names))), names, strict=True)), {})


def _named(cls: type, code: CodeType, names: Mapping[str, str], known: dict[str, Any]) -> FunctionType:
    """Code of a shape as a method of a class: `names` has the fields for f0, f1, …"""
    known["__name__"] = cls.__module__
    renamed = code.replace(
        co_varnames=tuple(names.get(each, each) for each in code.co_varnames),
        co_names=tuple(names.get(each, each) for each in code.co_names),
        co_qualname=f"{cls.__qualname__}.{code.co_name}",
    )
    return FunctionType(renamed, known)


class _Factory:
    """Stands in a signature for a value that is made for each object."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()
_BY_FACTORY, _BY_NAME, _NO_ARGUMENT = 1, 2, 4  # of a field, in what its shape is


def _init(cls: type, frozen: bool) -> Callable[..., Any]:
    names: dict[str, str] = {}
    known: dict[str, Any] = {"_factory": _FACTORY}
    shape: list[int] = []
    defaults: list[Any] = []
    defaults_by_name: dict[str, Any] = {}
    for each in fields(cls):
        if not each.init and each.default is MISSING and each.default_factory is MISSING:
            continue  # the class sets it later
        number, default = len(shape), each.default
        names[f"f{number}"] = each.name
        shape.append((0 if each.init else _NO_ARGUMENT) | (_BY_NAME if each.kw_only else 0))
        if each.default_factory is not MISSING:
            shape[-1] |= _BY_FACTORY
            known[f"_make{number}"], default = each.default_factory, _FACTORY
        if not each.init:
            known[f"_value{number}"] = default
        elif default is not MISSING and each.kw_only:
            defaults_by_name[each.name] = default
        elif default is not MISSING:
            defaults.append(default)
        if frozen:
            known[f"_set{number}"] = _setter(cls, each.name)
    init = _named(cls, _init_code(tuple(shape), frozen, hasattr(cls, "__post_init__")), names, known)
    init.__defaults__, init.__kwdefaults__ = tuple(defaults) or None, defaults_by_name or None
    return init


def _setter(cls: type, name: str) -> Callable[[Any, Any], None]:
    """What sets a field of a frozen object: its slot does at once what `object.__setattr__` looks up each time."""
    slot = getattr(cls, name, None)
    if isinstance(slot, MemberDescriptorType):
        return slot.__set__
    return lambda self, value: object.__setattr__(self, name, value)


@functools.cache
def _init_code(shape: tuple[int, ...], frozen: bool, more: bool) -> CodeType:
    parameters: dict[int, list[str]] = {0: ["self"], _BY_NAME: []}
    lines = []
    for number, kind in enumerate(shape):
        value = f"f{number}"
        if not kind & _NO_ARGUMENT:
            parameters[kind & _BY_NAME].append(value)
            if kind & _BY_FACTORY:
                value = f"_make{number}() if {value} is _factory else {value}"
        else:
            value = f"_make{number}()" if kind & _BY_FACTORY else f"_value{number}"
        lines.append(f"_set{number}(self, {value})" if frozen else f"self.f{number} = {value}")
    if more:
        lines.append("self.__post_init__()")
    by_name = ["*", *parameters[_BY_NAME]] if parameters[_BY_NAME] else []
    return _compiled("__init__", ", ".join(parameters[0] + by_name), "\n ".join(lines or ["pass"]))


def _eq(cls: type) -> Callable[..., Any]:
    return _function(cls, _eq_code, [each.name for each in fields(cls) if each.compare])


def _hash(cls: type) -> Callable[..., Any]:
    hashed = [each.name for each in fields(cls) if (each.compare if each.hash is None else each.hash)]
    return _function(cls, _hash_code, hashed)


@functools.cache
def _eq_code(count: int) -> CodeType:
    test = f"{_tuple('self', count)} == {_tuple('other', count)}"
    return _compiled("__eq__", "self, other", f"return {test} if other.__class__ is self.__class__ else NotImplemented")


@functools.cache
def _hash_code(count: int) -> CodeType:
    return _compiled("__hash__", "self", f"return hash({_tuple('self', count)})")


def _tuple(whose: str, count: int) -> str:
    return "(" + "".join(f"{whose}.f{number}, " for number in range(count)) + ")"


def _compiled(name: str, parameters: str, body: str) -> CodeType:
    known: dict[str, Any] = {}
    exec(f"def {name}({parameters}):\n {body}\n", known)
    code: CodeType = known[name].__code__
    return code


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
