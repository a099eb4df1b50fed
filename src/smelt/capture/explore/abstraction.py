"""A state as exploring compares it: its objects walked once, copied, and said as a key.

Two states are one if their frames stand at the same places and hold objects of the same form: tensors of equal spec and
aliasing, whatever is in them, and other values that are equal. The copy is a state of its own: its tensors are new
stand-ins, its containers new containers, so that what one way of a branch does to them is nothing to the other.

    x = Tensor f32[4]; seen = [y, 3]   →   key (tensor 0 f32[4], (list, tensor 1 f32[2], int 3)), leaves [x, y]

Numbers and sizes that a `Policy` opens are stand-ins in the copy (`OpenNumber`, `OPEN_SIZES`).
"""

import collections
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch

from smelt import _native
from smelt.base.fast_dataclass import dataclass
from smelt.capture.model.marks import DYNAMIC, OPEN_SIZES, SMALL_SIZES
from smelt.capture.model.open_numbers import DTYPES, OpenNumber, OpenRange
from smelt.capture.model.paused_iterators import PausedIterator, PausedZip
from smelt.capture.model.state import LiveFrame
from smelt.capture.model.static import is_heap_type, own_dict
from smelt.capture.model.values import is_constant
from smelt.device.host_library import HOST
from smelt.symbolic.expressions import SMALLEST

NEGATED = "negated"
Path = tuple[Any, ...]
Site = tuple[Any, ...]

STAND_IN = "_smelt_stand_in"
"""Tensors with this attribute stand for what a register will hold."""


class Policy:
    """What was learned of a function so far: which numbers and sizes differ from round to round of its loops (`open`),
    and which of them have to be known all the same (`closed`). A place is a site in the code and a path from there."""

    def __init__(self) -> None:
        self.open: set[tuple[Site, Path]] = set()
        self.closed: set[tuple[Site, Path]] = set()
        self.given: set[tuple[Site, Path]] = set()  # numbers that the caller chooses, on some way
        self.why: dict[tuple[Site, Path], str] = {}  # for what reason each of those is

    def close(self, places: set[tuple[Site, Path]], reason: str) -> None:
        self.closed |= places
        self.why |= dict.fromkeys(places, reason)

    def opens(self, site: Site, path: Path) -> bool:
        return (site, path) in self.open and (site, path) not in self.closed


@dataclass(frozen=True, slots=True)
class Known:
    """What an open number is taken for: `always` that value, or in the example. Of a negative one, its negative is."""

    value: int
    always: bool


@dataclass(slots=True, eq=False)
class Leaf:
    """A tensor of a state: what the state that was walked holds (`original`), what the copy has in its place, and where
    it stands. `original` is a plain number where a number was opened."""

    original: Any
    stand_in: torch.Tensor
    path: Path


class Abstraction:
    """The walk over one state. `groups`: numbers of what shares memory, by the ids of tensors. Tensors that are no
    stand-ins are meant themselves, as parameters are. `known`: what open numbers are taken for, by where they stand."""

    def __init__(
        self,
        frames: list[LiveFrame],
        policy: Policy,
        groups: Mapping[int, int],
        known: "Mapping[Path, Known] | None" = None,
    ) -> None:
        self.site: Site = tuple((frame.info.code, frame.index) for frame in frames)
        self.leaves: list[Leaf] = []
        self.opened: dict[Path, OpenNumber] = {}  # what stands for open numbers in the copy
        self.numbers: dict[Path, Any] = {}  # plain numbers by where they stand
        self.sizes: dict[Path, int] = {}  # fixed sizes by where they stand
        self.objects: set[int] = set()  # ids of what the copy is made of
        self._policy, self._groups, self._known = policy, groups, known or {}
        self._memo: dict[int, tuple[int, Any]] = {}
        self._alive: list[Any] = []
        constants = [constant for frame in frames for constant in frame.info.code.co_consts]
        self._codes = {id(constant) for constant in constants if isinstance(constant, types.CodeType)}
        self._group_numbers: dict[int, int] = {}
        parts: list[Any] = []
        self.frames = [self._frame(frame, number, parts) for number, frame in enumerate(frames)]
        self.key = tuple(parts)
        self.form = tuple(_form(part) for part in parts)  # the key without numbers and sizes

    def _frame(self, frame: LiveFrame, number: int, parts: list[Any]) -> LiveFrame:
        copied = []
        for name, items in (("slot", frame.slots), ("stack", frame.stack), ("of", [frame.function, frame.handled])):
            copies = []
            for place, item in enumerate(items):
                key, copy = self._visit(item, (number, name, place))
                parts.append(key)
                copies.append(copy)
            copied.append(copies)
        parts.append((frame.info.code, frame.index, frame.discard))
        slots, stack, (function, handled) = copied
        return LiveFrame(function, frame.info, frame.index, slots, stack, frame.discard, handled)

    def _visit(self, real: Any, path: Path) -> tuple[Any, Any]:
        """The key of an object and its copy."""
        if real is _native.NULL:
            return "null", real
        kind = type(real)
        if kind in (int, float):
            return self._number(real, path)
        if is_constant(real):
            return ("value", kind, real if kind is not float else real.hex()), real
        known = self._memo.get(id(real))
        if known is not None:
            return ("same", known[0]), known[1]
        if isinstance(real, torch.Tensor):
            return self._tensor(real, path)
        visit = _VISITS.get(kind) or _visit_of_instance(real)
        if kind is types.FunctionType and id(real.__code__) in self._codes:
            visit = _function
        if kind is tuple or (isinstance(real, tuple) and hasattr(kind, "_make")):
            return self._tuple(real, path)
        if visit is None:
            self._alive.append(real)
            return ("object", id(real)), real
        return visit(self, real, path)

    def enter(self, real: Any, copy: Any) -> None:
        """Note a copy before what the object holds is walked, which may lead back to it."""
        self._memo[id(real)] = (len(self._memo), copy)
        self._alive.append(real)
        self.objects.add(id(copy))

    def _number(self, real: Any, path: Path) -> tuple[Any, Any]:
        if self._policy.opens(self.site, path):
            return self._opened(type(real), real, path)
        self.numbers[path] = real
        return ("number", type(real), real if type(real) is int else real.hex(), path), real

    def _opened(self, kind: type, number: Any, path: Path, example: int = 3) -> tuple[Any, OpenNumber]:
        stand_in = standing_in((), DTYPES[kind], HOST)
        self.leaves.append(Leaf(number, stand_in, path))
        self.opened[path] = OpenNumber(kind, stand_in, example)
        return ("open", kind), self.opened[path]

    def open_number(self, real: OpenNumber, path: Path) -> tuple[Any, Any]:
        """A number that is open already."""
        known = self._known.get(path if real.negated is None else (*path, NEGATED))
        if known is not None and known.always:
            number = known.value if real.negated is None else -known.value
            self.enter(real, number)
            return ("number", int, number, path), number
        example = real.example if known is None else known.value
        key, copy = self._opened(real.kind, real.tensor, path, example)
        if real.negated is not None:
            copy.negated = standing_in((), torch.int64, HOST)
            self.leaves.append(Leaf(real.negated, copy.negated, (*path, NEGATED)))
            key = (*key, NEGATED)
        self.enter(real, copy)
        return key, copy

    def _tuple(self, real: Any, path: Path) -> tuple[Any, Any]:
        keys, copies = [], []
        for place, item in enumerate(real):
            key, copy = self._visit(item, (*path, place))
            keys.append(key)
            copies.append(copy)
        make = getattr(type(real), "_make", None)
        copied: Any = type(real)(copies) if make is None else make(copies)
        self.enter(real, copied)
        return ("tuple", type(real), *keys), copied

    def items(self, real: Any, path: Path) -> tuple[list[Any], list[Any]]:
        """Keys and copies of the items of a sequence."""
        pairs = [self._visit(item, (*path, place)) for place, item in enumerate(real)]
        return [key for key, _ in pairs], [copy for _, copy in pairs]

    def named(self, real: dict[Any, Any], path: Path) -> tuple[list[Any], dict[Any, Any]]:
        """The same of a dict."""
        keys, copies = [], {}
        for name, item in real.items():
            key, copies[name] = self._visit(item, (*path, _name(name)))
            keys.append((_name(name), key))
        return keys, copies

    def _tensor(self, real: torch.Tensor, path: Path) -> tuple[Any, Any]:
        if STAND_IN not in real.__dict__:
            self._alive.append(real)
            return ("object", id(real)), real
        taken = {dim: self._known.get((*path, "size", dim)) for dim in range(real.dim())}
        known = {dim: each for dim, each in taken.items() if each is not None}
        shape = tuple(known[dim].value if dim in known else size for dim, size in enumerate(real.shape))
        fixed = frozenset(dim for dim, each in known.items() if each.always)
        marked: frozenset[int] = real.__dict__.get(DYNAMIC, frozenset()) - fixed
        opened = frozenset(
            dim
            for dim, size in enumerate(shape)
            if size >= SMALLEST and self._policy.opens(self.site, (*path, "size", dim))
        ) | (real.__dict__.get(OPEN_SIZES, frozenset()) - fixed)
        small: frozenset[int] = real.__dict__.get(SMALL_SIZES, frozenset()) - fixed
        shape = tuple(max(size, SMALLEST) if dim in marked | opened else size for dim, size in enumerate(shape))
        stand_in = standing_in(shape, real.dtype, real.device, marked | opened, opened, real.requires_grad, small)
        for dim, size in enumerate(shape):
            if dim not in marked | opened:
                self.sizes[(*path, "size", dim)] = size
        self.enter(real, stand_in)
        self.leaves.append(Leaf(real, stand_in, path))
        group = self._groups.get(id(real))
        if group is not None:
            group = self._group_numbers.setdefault(group, len(self._group_numbers))
        sizes = tuple(
            ("open", dim in opened, dim in small) if dim in marked | opened else size for dim, size in enumerate(shape)
        )
        return ("tensor", type(real), real.dtype, real.device, sizes, real.requires_grad, group), stand_in


def standing_in(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    dynamic: frozenset[int] = frozenset(),
    opened: frozenset[int] = frozenset(),
    requires_grad: bool = False,
    small: frozenset[int] = frozenset(),
) -> torch.Tensor:
    """A tensor for capture to look at, of which nobody reads an element: its memory is never touched."""
    stand_in = torch.empty(shape, dtype=dtype, device=device)
    stand_in.__dict__[STAND_IN] = True
    if requires_grad:
        stand_in.requires_grad_()
    if dynamic:
        stand_in.__dict__[DYNAMIC] = dynamic
    if opened:
        stand_in.__dict__[OPEN_SIZES] = opened
    if small:
        stand_in.__dict__[SMALL_SIZES] = small
    return stand_in


def _form(key: Any) -> Any:
    """A key with the values of numbers and the sizes of tensors left out."""
    if not isinstance(key, tuple):
        return key
    if key[:1] == ("number",):
        return key[:2]
    if key[:1] == ("paused range",):
        return key[:1]
    if key[:1] == ("tensor",):
        kind, cls, dtype, device, sizes, *rest = key
        return (kind, cls, dtype, device, len(sizes), *rest)
    return tuple(map(_form, key))


def _name(key: Any) -> Any:
    """A key of a dict as part of a path: by value where it has one."""
    return (type(key), key) if is_constant(key) else ("object", id(key))


Visit = Callable[[Abstraction, Any, Path], tuple[Any, Any]]


def _visit_of_instance(real: Any) -> Visit | None:
    """How an object of a class of the program is walked: one that is what its `__dict__` holds, and perhaps a dict."""
    bases = type(real).__mro__[:-1]
    if isinstance(real, torch.nn.Module | types.FunctionType | types.ModuleType | type | BaseException):
        return None
    if type(own_dict(real)) is not dict or any(vars(base).get("__slots__") for base in bases if is_heap_type(base)):
        return None
    if all(map(is_heap_type, bases)):
        return _instance
    builtin = {base for base in bases if not is_heap_type(base)}
    return _dict_instance if builtin in ({dict}, {dict, collections.OrderedDict}) else None


def _list(walk: Abstraction, real: list[Any], path: Path) -> tuple[Any, Any]:
    copy: list[Any] = []
    walk.enter(real, copy)
    keys, items = walk.items(real, path)
    copy.extend(items)
    return ("list", *keys), copy


def _dict(walk: Abstraction, real: Any, path: Path) -> tuple[Any, Any]:
    factory = real.default_factory if type(real) is collections.defaultdict else None
    copy: Any = collections.defaultdict(factory) if type(real) is collections.defaultdict else type(real)()
    walk.enter(real, copy)
    keys, items = walk.named(real, path)
    copy.update(items)
    return ("dict", type(real), id(factory), *keys), copy


def _set(walk: Abstraction, real: Any, path: Path) -> tuple[Any, Any]:
    copy = real if type(real) is frozenset else set(real)
    walk.enter(real, copy)
    return ("set", type(real), *[_name(item) for item in real]), copy


def _deque(walk: Abstraction, real: Any, path: Path) -> tuple[Any, Any]:
    copy: Any = collections.deque(maxlen=real.maxlen)
    walk.enter(real, copy)
    keys, items = walk.items(real, path)
    copy.extend(items)
    return ("deque", real.maxlen, *keys), copy


def _slice(walk: Abstraction, real: slice, path: Path) -> tuple[Any, Any]:
    keys, parts = walk.items((real.start, real.stop, real.step), path)
    return ("slice", *keys), slice(*parts)


def _cell(walk: Abstraction, real: Any, path: Path) -> tuple[Any, Any]:
    copy = types.CellType()
    walk.enter(real, copy)
    try:
        contents = real.cell_contents
    except ValueError:
        return ("cell",), copy
    key, copy.cell_contents = walk._visit(contents, (*path, "cell"))
    return ("cell", key), copy


def _paused(walk: Abstraction, real: PausedIterator, path: Path) -> tuple[Any, Any]:
    if type(real.over) is range and real.part == "forward":
        place = (*path, "position")
        start = real.over.start + real.position * real.over.step
        if walk._policy.opens(walk.site, place):
            key, number = walk._opened(int, start, place)
            copy: Any = OpenRange(number, real.over.stop, real.over.step)
            walk.enter(real, copy)
            return ("open range", key, real.over.stop, real.over.step), copy
        walk.numbers[place] = start
    copy = PausedIterator((), real.part, real.position, real.size)
    walk.enter(real, copy)
    key, copy.over = walk._visit(real.over, (*path, "over"))
    name = "paused range" if type(real.over) is range else "paused"
    return (name, real.part, real.position, real.size, key), copy


def _paused_zip(walk: Abstraction, real: PausedZip, path: Path) -> tuple[Any, Any]:
    keys, parts = walk.items(real.parts, path)
    key, function = walk._visit(real.function, (*path, "function"))
    copy = PausedZip(real.kind, tuple(parts), real.position, function, real.strict)
    walk.enter(real, copy)
    return ("paused zip", real.kind, real.position, real.strict, key, *keys), copy


def _instance(walk: Abstraction, real: Any, path: Path) -> tuple[Any, Any]:
    kind = type(real)
    copy = object.__new__(kind)
    walk.enter(real, copy)
    keys, held = walk.named(own_dict(real), path)
    own_dict(copy).update(held)
    walk.objects.add(id(own_dict(copy)))
    return ("instance", kind, *keys), copy


def _dict_instance(walk: Abstraction, real: Any, path: Path) -> tuple[Any, Any]:
    """An object of a class of dicts, without asking the class."""
    kind: Any = type(real)
    base: Any = collections.OrderedDict if isinstance(real, collections.OrderedDict) else dict
    copy = base.__new__(kind)
    walk.enter(real, copy)
    keys, held = walk.named(own_dict(real), (*path, "__dict__"))
    own_dict(copy).update(held)
    walk.objects.add(id(own_dict(copy)))
    names, contents = walk.named(dict(base.items(real)), path)
    for name, item in contents.items():
        base.__setitem__(copy, name, item)
    return ("dict instance", kind, tuple(names), *keys), copy


def _method(walk: Abstraction, real: types.MethodType, path: Path) -> tuple[Any, Any]:
    keys, (function, receiver) = walk.items((real.__func__, real.__self__), path)
    same = function is real.__func__ and receiver is real.__self__
    return ("method", *keys), real if same else types.MethodType(function, receiver)


def _function(walk: Abstraction, real: types.FunctionType, path: Path) -> tuple[Any, Any]:
    """A function that the explored code has made: its closure is part of the state."""
    keys, held = walk.items((real.__defaults__, real.__kwdefaults__, *(real.__closure__ or ())), path)
    defaults, keywords, *closure = held
    copy = types.FunctionType(real.__code__, real.__globals__, real.__name__, defaults, tuple(closure) or None)
    copy.__kwdefaults__, copy.__qualname__ = keywords, real.__qualname__
    copy.__dict__.update(real.__dict__)
    walk.enter(real, copy)
    return ("function", real.__code__, *keys), copy


_VISITS: dict[type, Visit] = {
    list: _list,
    dict: _dict,
    collections.OrderedDict: _dict,
    collections.defaultdict: _dict,
    set: _set,
    frozenset: _set,
    collections.deque: _deque,
    slice: _slice,
    types.CellType: _cell,
    types.MethodType: _method,
    PausedIterator: _paused,
    PausedZip: _paused_zip,
    OpenNumber: Abstraction.open_number,
}
