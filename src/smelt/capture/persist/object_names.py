"""Objects of the program as another process can tell them: by a name under which they are found, or by what they are.

    torch.nn.Linear                       ["class", "torch.nn.modules.linear", "Linear", …]     found under its name
    the code of a function                ["code", digest]                                      whatever has that digest
    torch.ops.aten.add.Tensor             ["operator", "aten", "add", "Tensor"]                 found under its name
    a dict that a class holds             ["container", dict]                                   whatever stands there

An object that is found under its name is that very one in the other process. One that is not is taken from the place
where the guards say that it was met, if it is like the one that was there; what is in it, guards ask for on their own.
Objects whose contents no guard asks for (those of C types, as they cannot change while a process lives) have no form
unless this module knows all that is in them: `NotPersistable` says so, and what depends on one is captured in each
process.
"""

import enum
import functools
import hashlib
import inspect
import os
import sys
import types
from collections import OrderedDict, defaultdict, deque
from typing import Any

import torch

from smelt.base.paths import PACKAGE
from smelt.capture.model.static import ABSENT, is_heap_type
from smelt.ir.json_values import encode

Form = list[Any]

_IMMUTABLE_TYPE = 1 << 8
_TOLD_BY_FLAGS = 1 << 20 | 1 << 5 | 1 << 6  # abstract, a sequence or a mapping to patterns
_SINGLE = (type(None), bool, type(Ellipsis), type(NotImplemented), torch.dtype, torch.layout, torch.memory_format)
_PLAIN = (int, float, complex, str, bytes, tuple, frozenset, range, slice, torch.Size, torch.device)
_CONTAINERS: tuple[type, ...] = (dict, OrderedDict, defaultdict, list, set, deque)
_DESCRIPTORS = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.ClassMethodDescriptorType,
)
_OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
# Of these, an equal one is as good: the two cannot be distinguished.
EQUAL = (*_PLAIN, list, dict, set, torch.finfo, torch.iinfo, types.UnionType)
# Made in Python, but capture takes one that it knows by identity for what it is, and asks for nothing in it.
_ON_TRUST = (inspect.Signature, inspect.Parameter)
# Types of Python's own that have a name where they are not found.
_NAMELESS = {
    each.__qualname__: each for each in vars(types).values() if isinstance(each, type) and each.__module__ == "builtins"
}
_WRAPPERS: dict[type, tuple[str, ...]] = {
    property: ("fget", "fset", "fdel"),
    classmethod: ("__func__",),
    staticmethod: ("__func__",),
    functools.cached_property: ("func", "attrname"),
}


class NotPersistable(Exception):
    """Why something cannot be named for another process, or has changed there."""


class Names:
    """The objects of one record, each with its form. `number(real)` enters one."""

    def __init__(self) -> None:
        forget_classes()
        self.forms: list[Form] = []
        self.reals: list[Any] = []
        self._numbers: dict[int, int] = {}

    def number(self, real: Any) -> int:
        """Where an object stands in the table."""
        known = self._numbers.get(id(real))
        if known is None:
            form = _form(real, self)
            known = self._numbers[id(real)] = len(self.forms)
            self.forms.append(form)
            self.reals.append(real)
        return known

    def other(self, real: Any) -> Any:
        """For `ir.json_values.encode`."""
        return ["#", self.number(real)]

    def itself(self, real: Any) -> Any:
        """An object that is meant itself. Of a plain one another may be equal, here or there, so each stands alone."""
        if type(real) in _SINGLE:
            return encode(real, self.other)
        if type(real) not in _PLAIN or id(real) in self._numbers:
            return self.other(real)
        self.forms.append(["plain", encode(real, self.other)])
        self.reals.append(real)
        return ["#", len(self.forms) - 1]

    def answer(self, real: Any) -> Any:
        """An object that a call has yielded: it is met there."""
        form = self.itself(real)
        if type(real) in _PLAIN:
            self._numbers.setdefault(id(real), form[1])
        return form


def _form(real: Any, names: Names) -> Form:
    kind = type(real)
    if isinstance(real, type):
        return ["class", real.__module__, real.__qualname__, fingerprint(real), _is_there(real)]
    if isinstance(real, types.ModuleType):
        if sys.modules.get(real.__name__) is not real:
            raise NotPersistable(f"module {real.__name__} is not found under its name")
        own = [names.number(kind)] if kind is not types.ModuleType else []  # as `torch._VF` has, found nowhere else
        return ["module", real.__name__, *own]
    if kind is types.FunctionType:
        class_dict_of = names.number(real.__globals__)
        return ["function", real.__module__, real.__qualname__, *_of_function(real), class_dict_of, _is_there(real)]
    if kind is types.CodeType:
        return ["code", digest(real)]
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        return ["tensor", kind.__name__]
    if kind in _DESCRIPTORS:
        if real.__objclass__.__dict__.get(real.__name__) is not real:
            raise NotPersistable(f"{real.__qualname__} is not found under its name")
        return ["descriptor", names.number(real.__objclass__), real.__name__, *_title(real)]
    if kind is types.BuiltinFunctionType:
        return _builtin(real, names)
    if kind is dict and (owner := _module_of(real)) is not None:
        return ["names", owner]
    if kind in _CONTAINERS:
        return ["container", kind.__name__]
    if kind in _WRAPPERS:
        return ["wrapper", kind.__name__, *[encode(getattr(real, name), names.other) for name in _WRAPPERS[kind]]]
    if isinstance(real, enum.Enum):
        return ["member", names.number(kind), real.name, encode(real.value, names.other)]
    if kind is torch.finfo or kind is torch.iinfo:
        return ["info", kind.__name__, str(real.dtype).removeprefix("torch.")]
    if kind is types.UnionType:
        return ["union", *map(names.number, real.__args__)]
    if kind in _OPERATORS:
        return _operator(real)
    if kind is functools._lru_cache_wrapper:
        return ["cached"]  # whatever it caches: what is relied on is its answers
    if kind is object or (_is_made_in_python(kind) and kind not in _ON_TRUST):
        return ["object", names.number(kind)]
    raise NotPersistable(f"a {kind.__module__}.{kind.__qualname__} has no name to be found by")


def _builtin(real: Any, names: Names) -> Form:
    name: str = real.__name__
    for owner in (real.__self__, sys.modules.get(real.__module__ or "")):
        if isinstance(owner, types.ModuleType | type) and vars(owner).get(name) is real:
            return ["builtin", names.number(owner), name, *_title(real)]
    raise NotPersistable(f"{real.__qualname__} is not found under its name")


def _title(real: Any) -> list[Any]:
    """What a function or descriptor of C's says of itself: the program may have put another in its place."""
    return [type(real).__name__, real.__qualname__, getattr(real, "__module__", None)]


def _operator(real: Any) -> Form:
    """What capture knows by identity alone, being an operator of the graph."""
    namespace, _, name = str(getattr(real, "_qualified_op_name", None) or real._schema.name).partition("::")
    path = [namespace, name, *([real._overloadname] if type(real) is torch._ops.OpOverload else [])]
    if _operator_at(path) is not real:
        raise NotPersistable(f"torch.ops.{'.'.join(path)} is not found under its name")
    return ["operator", *path]


def _operator_at(path: list[str]) -> Any:
    member: Any = torch.ops
    for name in path:
        member = getattr(member, name, None)
    return member


def _is_made_in_python(kind: type) -> bool:
    """Whether what is in an object of the class can change, so that guards ask for it: no class of C's but dicts and
    lists among its bases, nor one that pybind11 made, which looks like one of Python's."""
    if any(type(base).__module__ == "pybind11_builtins" for base in kind.__mro__):
        return False
    heap_types = [base for base in kind.__mro__ if is_heap_type(base) and not base.__flags__ & _IMMUTABLE_TYPE]
    rest = [base for base in kind.__mro__ if base not in heap_types]
    python = all(issubclass(type(base), type) and isinstance(vars(base).get("__module__"), str) for base in heap_types)
    return python and bool(heap_types) and all(base is object or base in _CONTAINERS for base in rest)


def _module_of(names: dict[Any, Any]) -> str | None:
    """The module whose global names these are, `sys.modules` standing for `sys`."""
    if names is sys.modules:
        return "sys.modules"
    name = names.get("__name__")
    module = sys.modules.get(name) if isinstance(name, str) else None
    return name if isinstance(module, types.ModuleType) and vars(module) is names else None


def _under(module: Any, path: Any) -> Any:
    """What is found in a module, going through classes alone and running nothing."""
    if module == "builtins" and path in _NAMELESS:
        return _NAMELESS[path]
    member: Any = sys.modules.get(module) if isinstance(module, str) else None
    for part in path.split("."):
        if not isinstance(member, types.ModuleType | type):
            return ABSENT
        member = vars(member).get(part, ABSENT)
    return member


def _is_there(real: Any) -> bool:
    return _under(real.__module__, real.__qualname__) is real


def _of_function(real: types.FunctionType) -> tuple[str, list[str]]:
    return digest(real.__code__), sorted(map(str, real.__dict__))


@functools.cache
def own_folders() -> tuple[str, ...]:
    """Whose files the key tells: PyTorch's, Python's, smelt's."""
    return *(os.path.join(folder, "") for folder in torch.__path__), PACKAGE


def file_of(module: Any) -> str:
    """Where a module's code is, without asking it: some load more when asked for a name they lack."""
    names = getattr(module, "__dict__", None)
    file = names.get("__file__") if type(names) is dict else None
    return file if type(file) is str else ""


def is_library(file: str) -> bool:
    """Whether the key tells all that is in a file."""
    stdlib = os.path.join(os.path.dirname(os.__file__), "")
    return file.startswith(own_folders()) or (file.startswith(stdlib) and "site-packages" not in file)


_prints: dict[int, tuple[type, str]] = {}  # of the record at hand: classes change


def forget_classes() -> None:
    """A record begins: what was found out about classes for the last may be otherwise by now."""
    _prints.clear()


def fingerprint(kind: type) -> str:
    """What may be relied on in a class without a guard, as no class changes so while a process lives: the names in it
    and its bases and what made it, what its functions do, the fields of a named tuple, the members of an enum."""
    makers: type = type(kind)
    bases = [_print_of(base) for base in (*kind.__mro__, *makers.__mro__)]
    text = "; ".join([kind.__name__, *bases, str(kind.__flags__ & _TOLD_BY_FLAGS), str(kind.__dictoffset__ != 0)])
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def _print_of(kind: type) -> str:
    known = _prints.get(id(kind))
    if known is None:
        text = f"{kind.__module__}.{kind.__qualname__}"
        file = file_of(sys.modules.get(str(kind.__module__)))
        if is_heap_type(kind) and not kind.__flags__ & _IMMUTABLE_TYPE:
            if is_library(file):  # but for what the program adds to it
                text += " ".join(sorted(vars(kind)))
            else:
                text += " ".join(f"{name}={_entry_text(name, member)}" for name, member in sorted(vars(kind).items()))
        known = _prints[id(kind)] = kind, text
    return known[1]


def _entry_text(name: str, entry: Any) -> str:
    if type(entry) is types.FunctionType:
        return digest(entry.__code__)
    if type(entry) in _WRAPPERS:
        return f"{type(entry).__name__}({' '.join(_entry_text('', getattr(entry, p)) for p in _WRAPPERS[type(entry)])})"
    if name == "_member_map_":
        return " ".join(f"{each}={_plainly(member.value)} {_plainly(vars(member))}" for each, member in entry.items())
    if name in ("_fields", "_field_defaults", "__match_args__"):
        return _plainly(entry)
    return f"{type(entry).__module__}.{type(entry).__qualname__}"


def _plainly(value: Any) -> str:
    return str(encode(value, lambda other: ["#", _kind_text(other)]))


def _kind_text(real: Any) -> str:
    """Classes, and what is written with them, by name, as they can be read; else only of which kind it is."""
    if isinstance(real, types.GenericAlias | types.UnionType):
        return repr(real)
    if isinstance(real, type) and not _is_there(real):
        raise NotPersistable(f"{real.__qualname__} is not found under its name")
    return f"class {real.__module__}.{real.__qualname__}" if isinstance(real, type) else type(real).__qualname__


@functools.lru_cache(maxsize=4096)
def digest(code: types.CodeType) -> str:
    """What a piece of code does, whatever file and line it stands in."""
    return hashlib.blake2b(_code_text(code).encode(errors="surrogatepass"), digest_size=16).hexdigest()


def _code_text(code: types.CodeType) -> str:
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags, code.co_stacksize)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_qualname)
    constants = ", ".join(map(_constant_text, code.co_consts))
    return f"{code.co_code.hex()} {code.co_exceptiontable.hex()} {counts} {names} [{constants}]"


def _constant_text(value: Any) -> str:
    if isinstance(value, types.CodeType):
        return f"({_code_text(value)})"
    if isinstance(value, tuple):
        return f"t[{', '.join(map(_constant_text, value))}]"
    if isinstance(value, frozenset):
        return f"f[{', '.join(sorted(map(_constant_text, value)))}]"  # in no order of its own
    return f"{type(value).__name__} {value!r}"


def find(form: Form, reals: list[Any]) -> Any:
    """The object with this form in the running process; `ABSENT` if only its place identifies it. `reals`: the objects
    before it in the table."""
    kind = form[0]
    if kind == "class" or kind == "function":
        if not form[-1]:
            return ABSENT
        real = _under(form[1], form[2])
        if not is_like(form, real, reals):
            raise NotPersistable(f"{form[1]}.{form[2]} has changed")
        return real
    if kind == "module":
        return _there(sys.modules.get(form[1]), form[1])
    if kind == "names":
        return sys.modules if form[1] == "sys.modules" else vars(_there(sys.modules.get(form[1]), form[1]))
    if kind == "descriptor" or kind == "builtin":
        return ABSENT if reals[form[1]] is ABSENT else _in_place(form, vars(reals[form[1]]).get(form[2]))
    if kind == "member":
        return ABSENT if reals[form[1]] is ABSENT else _there(reals[form[1]].__members__.get(form[2]), form[2])
    if kind == "operator":
        real = _there(_operator_at(form[1:]), form[-1])
        return real if type(real) in _OPERATORS and _operator(real) == form else _there(None, form[-1])
    if kind == "info":
        return getattr(torch, form[1])(getattr(torch, form[2]))
    if kind == "union":
        parts = [reals[number] for number in form[1:]]
        return ABSENT if ABSENT in parts else functools.reduce(lambda one, two: one | two, parts)
    return ABSENT


def _in_place(form: Form, real: Any) -> Any:
    """A function or descriptor of C's, unless the program has put another in its place."""
    if type(real) not in (types.BuiltinFunctionType, *_DESCRIPTORS) or _title(real) != form[3:]:
        raise NotPersistable(f"{form[2]} has changed")
    return real


def _there(real: Any, name: str) -> Any:
    if real is None:
        raise NotPersistable(f"{name} is not here")
    return real


def _may_be(known: Any, real: Any) -> bool:
    return known is ABSENT or known is real


def is_like(form: Form, real: Any, reals: list[Any]) -> bool:
    """Whether an object found at the place of one with this form may stand for it. `reals` is the table so far; those
    in it that are not known yet are asked in turn."""
    kind = form[0]
    if kind == "class":
        named = isinstance(real, type) and (real.__module__, real.__qualname__) == (form[1], form[2])
        return named and fingerprint(real) == form[3]
    if kind == "function":
        named = type(real) is types.FunctionType and (real.__module__, real.__qualname__) == (form[1], form[2])
        return named and [*_of_function(real)] == form[3:5] and _may_be(reals[form[5]], real.__globals__)
    if kind == "code":
        return type(real) is types.CodeType and digest(real) == form[1]
    if kind == "tensor":
        return type(real) in (torch.Tensor, torch.nn.Parameter) and type(real).__name__ == form[1]
    if kind == "container":
        return type(real) in _CONTAINERS and type(real).__name__ == form[1]
    if kind == "cached":
        return type(real) is functools._lru_cache_wrapper
    return kind == "object" and type(real) is reals[form[1]]


WRAPPERS: dict[str, tuple[type, tuple[str, ...]]] = {kind.__name__: (kind, names) for kind, names in _WRAPPERS.items()}
