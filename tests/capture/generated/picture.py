"""Everything that can be seen of some objects, as a flat list of atoms: types, values, tensors, and who is who.

    picture([box, box])   →   ["list 2", "Box #1", "n", 1, …, "#1 again"]

Two pictures are compared atom by atom. Classes are named, not identified: plain Python and smelt each have a world.
"""

import enum
import functools
import inspect
import re
import types
from collections import deque
from typing import Any

import torch

_PLAIN = (int, float, complex, str, bytes, bool, type(None), range, torch.dtype, torch.device, type(Ellipsis))
_ITERABLES: tuple[Any, ...] = ((), [], {}, set(), "", range(1), reversed([]), {}.values(), {}.items())
_LAZY = (*(type(iter(each)) for each in _ITERABLES), zip, map, filter, enumerate)


class Picture:
    """Collects atoms; keeps what it has seen alive, so that no identity is given twice."""

    def __init__(self) -> None:
        self.atoms: list[Any] = []
        self._seen: dict[int, int] = {}
        self._memory: dict[int, int] = {}
        self._kept: list[Any] = []

    def see(self, value: Any) -> None:
        if type(value) in _PLAIN:
            self.atoms.append(value)
        elif isinstance(value, enum.Enum):
            self.atoms.append(f"enum {value!r}")
        elif isinstance(value, torch.Size | slice | inspect.Signature) or _is_constant(value):
            self.atoms.append(repr(value))  # which of equal constants it is, the compiler of Python decides
        elif id(value) in self._seen:
            self.atoms.append(f"#{self._seen[id(value)]} again")
        else:
            self._seen[id(value)] = len(self._seen)
            self._kept.append(value)
            self._describe(value)

    def _describe(self, value: Any) -> None:
        kind = type(value)
        if isinstance(value, torch.Tensor):
            self._tensor(value)
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, types.MethodType):
            self._parts("method", [value.__func__.__qualname__, value.__self__])
        elif isinstance(value, functools.partial):
            self._parts("partial", [value.func, value.args, value.keywords])
        elif isinstance(value, types.GeneratorType):
            frame = value.gi_frame
            place = None if frame is None else frame.f_lineno
            names = {} if frame is None else {name: frame.f_locals[name] for name in sorted(frame.f_locals)}
            self._parts(f"generator {value.__qualname__}", [place, names])
        elif isinstance(value, _LAZY):
            self._parts(kind.__name__, list(value.__reduce__()[1:]))
        elif isinstance(value, set | frozenset):
            self._parts(kind.__qualname__, sorted(value, key=repr))
        elif isinstance(value, types.BuiltinFunctionType | types.ModuleType | types.CodeType):
            self.atoms.append(f"{kind.__name__} {getattr(value, '__name__', '')}")
        elif isinstance(value, BaseException):
            self._parts(kind.__qualname__, [value.args, vars(value), value.__cause__, value.__suppress_context__])
        else:
            self._object(value)

    def _object(self, value: Any) -> None:
        """Contents, attributes, slots."""
        kind = type(value)
        if isinstance(value, dict):
            self._parts(f"{kind.__qualname__} of", [part for pair in value.items() for part in pair])
        elif isinstance(value, list | tuple | deque):
            self._parts(f"{kind.__qualname__} of", list(value))
        else:
            self.atoms.append(kind.__qualname__)
        attributes = getattr(value, "__dict__", None)
        if attributes is not None and not isinstance(value, torch.nn.Module):
            self._parts("with", [part for pair in attributes.items() for part in pair])
        elif attributes is not None:
            kept = ("training", "_parameters", "_buffers", "_modules", "calls")
            self._parts("with", [attributes[name] for name in kept if name in attributes])
        for name in getattr(kind, "__slots__", ()):
            if isinstance(name, str) and hasattr(value, name):
                self._parts(name, [getattr(value, name)])

    def _parts(self, label: str, parts: list[Any]) -> None:
        self.atoms.append(f"{label} {len(parts)}")
        for part in parts:
            self.see(part)

    def _tensor(self, tensor: torch.Tensor) -> None:
        place = tensor.untyped_storage()._cdata
        memory = self._memory.setdefault(place, len(self._memory))
        try:
            leaf = tensor.is_leaf
        except RuntimeError as error:  # a view that autograd disowns, for how it was made and what came after
            self.atoms += [str(error), tensor.detach().clone()]
            return
        flags = f"grad={tensor.requires_grad} leaf={leaf} {type(tensor).__name__}"
        layout = f"{tensor.dtype} {tuple(tensor.shape)} {tensor.stride()} {tensor.storage_offset()}"
        self.atoms += [f"tensor {flags} {layout} memory {memory}", tensor.detach().clone()]
        self.see(tensor.grad if leaf else None)

    def _class(self, kind: type) -> None:
        if kind.__module__ != "world":
            self.atoms.append(f"class {kind.__qualname__}")
            return
        members = {name: member for name, member in vars(kind).items() if not name.startswith("__")}
        self._parts(f"class {kind.__qualname__}", [part for pair in members.items() for part in pair])

    def _function(self, function: types.FunctionType) -> None:
        cells = [_contents(cell) for cell in function.__closure__ or ()]
        own = [function.__defaults__, function.__kwdefaults__, function.__dict__, cells]
        self._parts(f"function {function.__qualname__}", own)


def _is_constant(value: Any) -> bool:
    return type(value) is tuple and all(type(item) in _PLAIN or _is_constant(item) for item in value)


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return "empty cell"


def without_addresses(text: str) -> str:
    return re.sub(r"0x[0-9a-f]+", "0x", text)


def difference(mine: list[Any], plain: list[Any], *, exact: bool) -> str | None:
    """The first place where two lists of atoms differ, in words."""
    for place, (one, other) in enumerate(zip(mine, plain, strict=False)):
        if not _same(one, other, exact):
            near = [atom for atom in plain[max(0, place - 6) : place] if not isinstance(atom, torch.Tensor)]
            return f"{one!r} where Python has {other!r}, after {near}"
    return None if len(mine) == len(plain) else f"{len(mine)} atoms where Python has {len(plain)}"


def _same(one: Any, other: Any, exact: bool) -> bool:
    if type(one) is not type(other):
        return False
    if not isinstance(one, torch.Tensor):
        if isinstance(one, float) and not exact:
            return abs(one - other) <= 1e-5 * abs(other) + 1e-6 or (one != one and other != other)
        if isinstance(one, str):
            return without_addresses(one) == without_addresses(other)
        return bool(one == other) or (one != one and other != other)
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if exact:
        return torch.equal(one.nan_to_num(), other.nan_to_num()) if one.is_floating_point() else torch.equal(one, other)
    return torch.allclose(one, other, rtol=1e-5, atol=1e-5, equal_nan=True)
