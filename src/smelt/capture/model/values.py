"""What capture knows of each Python value while it interprets: few kinds, each one idea.

`source` is where the value came from, or None if the captured code made it. Containers hold values, and for outside
containers `LazyItem` items that become values (and guards) when they are first touched.

    x + self.scale * 2      Tensor(add) ← Tensor(x, source), Tensor(mul) ← Tensor(self.scale, source), Constant(2)
"""

import enum
import functools
import operator
import sys
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import field
from typing import Any, ClassVar

import torch
from torch import fx

from smelt import _native
from smelt.base.fast_dataclass import dataclass
from smelt.capture.model.breaks import Unsupported
from smelt.capture.model.bytecode import CodeInfo, Instruction
from smelt.capture.model.set_order import NOTHING, Call, remade
from smelt.capture.model.source import Source
from smelt.capture.model.static import class_dict_of, is_a, mro_of, own_dict, static_lookup
from smelt.meta.fake_tensor import FakeTensor
from smelt.symbolic.expressions import DataDependent
from smelt.symbolic.symnode import example_of, is_symbolic

CONSTANT_TYPES: tuple[type, ...] = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(Ellipsis),
    type(NotImplemented),
    range,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    types.CodeType,
)


@dataclass(slots=True, eq=False)
class Value:
    """Anything a slot, a stack or a container can hold."""

    source: Source | None = field(default=None, kw_only=True)


@dataclass(slots=True, eq=False)
class Constant(Value):
    """A Python value known at capture; immutable, so identity does not matter."""

    value: Any


class Number(Constant):
    """An int or float from outside, or a sum, difference or product with one, of which only the type is relied on yet.

    A string from outside is one too: a name that is only passed on may be another at each call.

    Whoever looks at `value` relies on it from then on, and it is guarded; a counter that is only read, counted up and
    written back stays free, and is recomputed when the graph has run (`origin_call`: function and operands).

    A number that is known to differ from call to call has a `symbolic` form, which graphs compute with.
    """

    __slots__ = ("known", "origin_call", "specialized", "symbolic")

    def __init__(
        self,
        known: Any,
        origin_call: tuple[Any, ...] | None = None,
        *,
        source: Source | None = None,
        symbolic: Any = None,
    ) -> None:
        self.known, self.origin_call, self.source = known, origin_call, source
        self.specialized, self.symbolic = False, symbolic
        if source is not None:
            source.check(("type", type(known)))

    @property
    def value(self) -> Any:
        if self.symbolic is not None:
            try:
                return type(self.known)(self.symbolic)  # asks the symbols, which remember that they were asked
            except DataDependent as unknowable:
                raise Unsupported("B004", str(unknowable)) from None
        pending = [self]
        while pending:  # a sum may be long
            number = pending.pop()
            if number.specialized:
                continue
            number.specialized = True
            if number.source is not None:
                number.source.checks.clear()
                number.source.check(("equals", number.known))
            for operand in (number.origin_call or ())[1:]:
                if isinstance(operand, Number) and operand.symbolic is None:
                    pending.append(operand)
                else:
                    operand.value  # noqa: B018
        return self.known


@dataclass(slots=True, eq=False)
class Tensor(Value):
    """A tensor: the graph node that yields it and a fake tensor with its metadata.

    `kind` is Tensor or Parameter; `real` is the tensor itself if it came from outside.
    """

    node: fx.Node
    fake: FakeTensor
    kind: type = torch.Tensor
    real: torch.Tensor | None = None
    state: "Slots | None" = None  # of a leaf from outside of which the program has changed more than its gradient


@dataclass(slots=True, eq=False)
class Distributed(Tensor):
    """A `DTensor`: its fake tensor is one over that of its local tensor, which is what the graph has."""

    local: Any = None  # a `Tensor`
    layout: Any = None  # a `Layout` of `smelt.ir.nodes.distributed`
    masks: tuple[Tensor, ...] = ()  # of its placements
    memory: "DistributedMemory" = field(default_factory=lambda: DistributedMemory())


@dataclass(slots=True, eq=False)
class DistributedMemory:
    """What the captured code did with the memory of a `DTensor`, by whatever name that is known."""

    is_written: bool = False
    is_shared: bool = False  # a view of it, or the history of what was computed from it, shows it


@dataclass(slots=True, eq=False)
class LazyItem:
    """An item of an outside container that nobody has looked at yet."""

    value: Any
    source: Source


@dataclass(slots=True, eq=False)
class Sequence(Value):
    """A tuple, list, torch.Size, namedtuple or torch.return_types tuple, by `kind`.

    A list from outside remembers its `original` items. Nothing is assumed of their number until somebody looks at
    `items`: who only appends works on `raw_items`, and the list may be longer every time.
    """

    kind: type
    raw_items: list[Any]
    original: tuple[Any, ...] | None = None
    length_guarded: bool = False
    owner: "Instance | Object | None" = None  # the object whose contents it is

    @property
    def items(self) -> list[Any]:
        _guard_length(self)
        return self.raw_items

    @items.setter
    def items(self, items: list[Any]) -> None:
        self.raw_items = items


@dataclass(slots=True, eq=False)
class Deque(Value):
    """A `collections.deque`; as of a list, nothing is assumed of the length of one from outside until it is looked at.

    `changes` counts how often it grew, shrank or was rotated, which invalidates its iterators.
    """

    kind: ClassVar[type] = deque
    raw_items: list[Any]
    maxlen: int | None = None
    original: tuple[Any, ...] | None = None
    length_guarded: bool = False
    changes: int = 0

    @property
    def items(self) -> list[Any]:
        _guard_length(self)
        if self.maxlen is not None and len(self.raw_items) > self.maxlen:
            del self.raw_items[: len(self.raw_items) - self.maxlen]
        return self.raw_items


def _guard_length(value: Sequence | Deque) -> None:
    if value.original is not None and not value.length_guarded and value.source is not None:
        value.length_guarded = True
        value.source.check(("length", len(value.original)))


@dataclass(slots=True, eq=False)
class Mapping(Value):
    """A dict; keys are the real keys.

    One from outside remembers its `original` items; one that is the `__dict__` or the contents of a new object knows
    its `owner`.
    """

    items: dict[Any, Any]
    kind: type = dict
    original: dict[Any, Any] | None = None
    owner: "Instance | Function | None" = None
    inside: bool = False  # it is what an object of a class of dicts from outside holds
    factory: Value | None = None  # of a defaultdict
    proxy: Any = None  # the mappingproxy that it is, which nobody can write
    taken: set[Any] = field(default_factory=set)  # keys of the original that were taken out on the way
    removals: int = 0  # how often keys were taken out of it, or moved to another place


@dataclass(slots=True, eq=False)
class Slots(Mapping):
    """What the `__slots__` of an object from outside hold: no dict that the program could see."""

    holder: Any = None
    """The `Object` whose they are."""
    cleared: bool = False
    """Whether they were emptied before the captured code computed anything."""

    @property
    def is_reassigned(self) -> bool:
        """Of a leaf: whether it is another tensor by now, by its data or by whether it requires grad."""
        return len(self.items) > 1


class ByIdentity:
    """An item of a set, or a key of a dict, that is known by identity: a module, a parameter, an object that the
    captured code made. `real` is the object or stands for it."""

    __slots__ = ("real", "value")

    def __init__(self, value: Value, real: Any) -> None:
        self.value, self.real = value, real

    def __hash__(self) -> int:
        return hash(self.real)  # the object's own, so that the set yields its items in Python's order

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByIdentity) and other.real is self.real

    @property
    def is_new(self) -> bool:
        """Whether nothing from outside can be its equal."""
        return self.real is self.value


class ByParts(ByIdentity):
    """A bound method as a key: its function and its receiver are what it is known by."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByParts) and all(map(operator.is_, self.real, other.real))

    def __hash__(self) -> int:
        return hash(tuple(map(id, self.real)))

    @property
    def is_new(self) -> bool:
        return isinstance(self.real[1], Value)


class ByRule(ByIdentity):
    """A key of a class with a hash of its own: `real` is that, and `is_equal` asks the class of two keys."""

    __slots__ = ("is_equal",)

    def __init__(self, value: Value, real: int, is_equal: Callable[[Value, Any], bool]) -> None:
        super().__init__(value, real)
        self.is_equal = is_equal

    def __hash__(self) -> int:
        return int(self.real)

    def __eq__(self, other: object) -> bool:
        return self is other or self.is_equal(self.value, other)

    @property
    def is_new(self) -> bool:
        return False


def stands_for_key(key: Any) -> bool:
    """Whether a key of a dict stands for an object that is not there yet, or is made of such."""
    if isinstance(key, tuple):
        return any(map(stands_for_key, key))
    return isinstance(key, ByIdentity)


def is_new_key(key: Any) -> bool:
    """Whether no key that was there at first can be the equal of this one: it is made of a new object."""
    if isinstance(key, tuple):
        return any(map(is_new_key, key))
    return isinstance(key, ByIdentity) and key.is_new


@dataclass(slots=True, eq=False)
class Set(Value):
    """A set or frozenset of plain Python values and `ByIdentity` objects; one from outside has its `original` items.

    `ordered`: made as Python makes it, so that it yields them in the same order.
    """

    items: set[Any]
    kind: type
    calls: Call
    original: frozenset[Any] | None = None
    ordered: bool = False
    was_read: bool = False  # it is from outside, and other sets are made of it
    order: tuple[Any, ...] = ()  # in which one from outside yields its items
    real: Any = None  # the set itself, of one from outside
    owner: "Instance | None" = None  # the new object whose contents it is

    @classmethod
    def given(cls, kind: type, real: Any, source: Any, items: frozenset[Any]) -> "Set":
        """A set from outside: equal ones may yield their items in another order."""
        order = tuple((set if kind is set else frozenset).__iter__(real))
        new = cls(set(items), kind, NOTHING, items, source=source, order=order, real=real)
        new.calls = Call("given", (new,))
        return new

    @classmethod
    def constant(cls, real: frozenset[Any]) -> "Set":
        """One of the constants of the code."""
        return cls(real, frozenset, Call("constant", (real,)), ordered=True)  # type: ignore[arg-type]

    def restore(self, calls: Call, ordered: bool) -> None:
        """Make it what it was after some calls."""
        self.items, self.calls, self.ordered = remade(calls), calls, ordered


@dataclass(slots=True, eq=False)
class DictView(Value):
    """`keys`, `values` or `items` of a dict."""

    mapping: Mapping
    part: str


@dataclass(slots=True, eq=False)
class Proxy(Value):
    """A `types.MappingProxyType`: a dict that cannot be written through it. `real`: the one from outside that it is."""

    mapping: Mapping
    real: Any = None


def behind(value: Any) -> Any:
    """What reading a value reads: of a proxy the dict behind it."""
    return value.mapping if type(value) is Proxy else value


@dataclass(slots=True, eq=False)
class Slice(Value):
    start: Value
    stop: Value
    step: Value


@dataclass(slots=True, eq=False)
class Iterator(Value):
    """An iterator over a known container (`over`): `part` says which way, `position` how far it has come."""

    over: Value
    part: str
    position: int = 0
    size: int | None = None  # of a dict, or the changes of a deque, when the loop began: it may not change
    looped: bool = False  # whether a loop takes its items
    keys: list[Any] = field(default_factory=list)  # of a dict, as they were listed last; of a set, in its order
    calls: Call | None = None  # that had made the set when the loop began
    done: bool = False  # it has come to its end, where it stays even if what it goes over grows
    removals: int = 0  # of a dict, when the loop began
    watched: "Mapping | None" = None  # the dict whose items, listed backwards, it goes over


@dataclass(slots=True, eq=False)
class ZippedIterator(Value):
    """`zip`, `enumerate` or `map` over other iterators; `function` is map's, `position` enumerate's counter."""

    kind: type
    parts: list[Value]
    position: int = 0
    function: Value | None = None
    strict: bool = False
    looped: bool = False


@dataclass(slots=True, eq=False)
class Generator(Value):
    """A generator made by the captured code: its suspended `interpret.Frame`, and what it returned once `done`.

    Of another `kind` is one that stands for an iterator written in C.
    """

    frame: Any
    kind: type = types.GeneratorType
    done: bool = False
    result: Value | None = None


@dataclass(slots=True, eq=False)
class Object(Value):
    """A Python object from outside, known by its type (and attributes read), or by identity once `identity_guarded`."""

    value: Any
    identity_guarded: bool = False


@dataclass(slots=True, eq=False)
class Method(Value):
    """A function bound to a receiver."""

    function: Value
    receiver: Value


@dataclass(slots=True, eq=False)
class Cell(Value):
    """A closure cell; `contents` is None while empty. An outside cell is read through its source on demand."""

    contents: Any = None
    real: Any = None
    frozen: bool = False  # code that runs later relies on what it holds


@dataclass(slots=True, eq=False)
class Globals:
    """A module's namespace, as a function sees it."""

    names: dict[str, Any]
    source: Source


@dataclass(slots=True, eq=False)
class Function(Value):
    """A function made by the captured code."""

    info: CodeInfo
    globals: Globals
    qualname: str
    defaults: Sequence | None
    keyword_defaults: Mapping | None
    closure: tuple[Cell, ...]
    annotations: Value | None = None
    members: Mapping | None = None
    """Its `__dict__`, once somebody asked for it."""
    overrides: dict[str, Value] = field(default_factory=dict)
    """What the program set `__name__`, `__doc__` and the like to."""


@dataclass(slots=True, eq=False)
class Instance(Value):
    """An object of a Python class made by the captured code: its `__dict__`, and `contents` if it is a dict, a list, a
    tuple, a set, a number or a string, too."""

    kind: type
    members: Mapping = field(default_factory=lambda: Mapping({}))
    contents: "Mapping | Sequence | Set | Constant | None" = None

    def __post_init__(self) -> None:
        self.members.owner = self

    @property
    def attributes(self) -> dict[str, Any]:
        return self.members.items


def contents_kind(value: Value | None) -> type | None:
    """The builtin type whose layout the contents of an object have."""
    return value.kind if isinstance(value, Mapping | Sequence | Set) else None if value is None else python_type(value)


@dataclass(slots=True, eq=False)
class Array(Instance):
    """An array of NumPy's, or a scalar by `kind`: what it holds is a tensor of the graph."""

    tensor: Any = None


@dataclass(slots=True, eq=False)
class Wrapper(Instance):
    """A tensor of a class with `__torch_dispatch__`, made by the captured code; `outer` is what it shows of itself."""

    outer: Any = None


def has_any(kind: type[Value], values: Any) -> bool:
    """Whether there is a value of this class among values, or in sequences among them."""
    return any(
        isinstance(each, kind) or (isinstance(each, Sequence) and has_any(kind, each.raw_items)) for each in values
    )


Place = tuple[Value, CodeInfo, Instruction]
"""A line of a traceback: the function, its code, and the instruction it was at."""


@dataclass(slots=True, eq=False)
class ExceptionValue(Instance):
    """An exception made by the captured code: its `args`, what it is chained to, and where it has been.

    `places` are its traceback, outermost first; `context` may be `HANDLED_OUTSIDE`; `details` are attributes that C
    code gave it (`AttributeError.name`).
    """

    args: Any = None
    cause: Value | None = None
    context: Value | None = None
    suppresses: bool = False
    places: tuple[Place, ...] = ()
    details: dict[str, Value] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class TracebackValue(Value):
    """The traceback that a `ExceptionValue` had at some moment. Two are one if they begin with the same place."""

    places: tuple[Place, ...]


@dataclass(slots=True, eq=False)
class FrameValue(Value):
    """The frame of a place in a traceback: its code can be asked for."""

    info: CodeInfo


@dataclass(slots=True, eq=False)
class Handled(Value):
    """The exception that the program was handling before the captured code began, if any."""


HANDLED_OUTSIDE = Handled()


@dataclass(slots=True, eq=False)
class Super(Value):
    """`super()` seen from `kind` with `receiver`."""

    kind: type
    receiver: Value


@dataclass(slots=True, eq=False)
class Partial(Value):
    """`functools.partial` made by the captured code."""

    function: Value
    args: list[Value]
    keywords: dict[str, Value]


@dataclass(slots=True, eq=False)
class Hooked:
    """A tensor of the graph with hooks, as it was `before` them, and the node that it is since."""

    tensor: Tensor
    before: Tensor
    hooks: "list[HookHandle]"
    tied: fx.Node


@dataclass(slots=True, eq=False)
class HookHandle(Value):
    """What `register_hook` returned. It cannot be rebuilt: no object of PyTorch's has this hook."""

    hooked: Hooked
    hook: Value


@dataclass(slots=True, eq=False)
class WeakReference(Value):
    """A `weakref.ref` made by the captured code, without a callback."""

    target: Value


@dataclass(slots=True, eq=False)
class Descriptor(Value):
    """A `property`, `staticmethod` or `classmethod` made by the captured code."""

    kind: type
    parts: list[Value]


@dataclass(slots=True, eq=False)
class DeferredString(Value):
    """A string that tensors are worded in: `make` of the real `parts`, once the graph has run."""

    make: Callable[..., str]
    parts: list[Value]


@dataclass(slots=True, eq=False)
class DeferredScalar(Value):
    """A number that a tensor holds, or that Python computes of one: `make` of the real `parts`, once the graph has
    run."""

    kind: type
    make: Callable[..., Any]
    parts: list[Value]


@dataclass(slots=True, eq=False)
class OpenScalar(DeferredScalar):
    """A number that export keeps open: `parts` is the tensor that holds it, and the graph computes with that.

    `example` and `negative`: see `OpenNumber`. `origin_call`: the function and operands that an integer was made of.
    """

    example: int = 3
    origin_call: tuple[Any, ...] | None = None
    negative: bool = False

    @property
    def tensor(self) -> Tensor:
        tensor = self.parts[0]
        assert isinstance(tensor, Tensor)
        return tensor


@dataclass(slots=True, eq=False)
class Null(Value):
    """The empty stack slot that PUSH_NULL leaves."""


NULL = Null()


def of_number(number: Any) -> Constant:
    """A number that came out of an operator: a size, or something computed from sizes."""
    return Number(example_of(number), symbolic=number) if is_symbolic(number) else Constant(number)


# What Python's operators call; what has nothing to do with operators; and what yields text.
OPERATORS = frozenset(name for kind in (int, str, set, dict) for name in vars(kind) if name.startswith("__"))
OPERATORS -= {"__new__", "__init__", "__doc__", "__getattribute__", "__class_getitem__", "__sizeof__", "__reduce__"}
STRING_METHODS = frozenset({"__str__", "__repr__", "__format__"})


def own_operators(kind: type) -> frozenset[str]:
    """Those special methods for operators that a class of the program has from code of the program."""
    version = _native.class_version(kind)
    if version not in _FOUND_OPERATORS:
        if len(_FOUND_OPERATORS) > _MANY_CLASSES:
            _FOUND_OPERATORS.clear()
        _FOUND_OPERATORS[version] = frozenset(
            name
            for base in mro_of(kind)
            for name, member in class_dict_of(base).items()
            if name in OPERATORS and not _is_pythons(member)
        )
    return _FOUND_OPERATORS[version] if version else _FOUND_OPERATORS.pop(0)


_FOUND_OPERATORS: dict[int, frozenset[str]] = {}  # by versions of classes, which are never given twice
_MANY_CLASSES = 512
_OF_C = (types.WrapperDescriptorType, types.MethodDescriptorType, types.BuiltinFunctionType, type(None))


def _is_pythons(member: Any) -> bool:
    """Whether an entry of a class is no code of the program's."""
    if isinstance(member, types.FunctionType):
        return (member.__module__ or "").partition(".")[0] in sys.stdlib_module_names
    return isinstance(member, _OF_C)


def is_constant(value: object) -> bool:
    """Whether a real value is one that capture treats as a constant."""
    if type(value) in CONSTANT_TYPES or is_native_member(value) or type(value).__module__ == PLACEMENTS:
        return True
    return is_a(value, enum.Enum) and own_operators(type(value)) <= STRING_METHODS and _is_whole(value)


PLACEMENTS = "torch.distributed.tensor.placement_types"  # whose objects are equal if they say the same

NATIVE_CLASS: type = type(torch._C.DispatchKey)
"""The class of classes that are written in C++: it finds attributes as `type` does."""


def is_native_member(value: object) -> bool:
    """Whether a value is a member of an enum of PyTorch's that is written in C++, as `SDPBackend` is: a number by
    name."""
    kind = type(value)
    return type(kind) is NATIVE_CLASS and "__entries" in class_dict_of(kind) and "__int__" in class_dict_of(kind)


def _is_whole(member: object) -> bool:
    """Whether a member of an enum has what Python's operators look at, and its class lets them look at it."""
    held = own_dict(member) or {}
    asks = isinstance(static_lookup(type(member), "__getattribute__"), types.FunctionType)
    return "_name_" in held and "_value_" in held and not asks


_NAMED = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)


def describe(value: Any) -> str:
    """A value in a few words, for messages."""
    if isinstance(value, Constant) and is_a(value.value, enum.Enum):
        return f"{type(value.value).__qualname__}.{own_dict(value.value).get('_name_')}"
    if isinstance(value, Constant):
        return repr(value.value)
    if isinstance(value, Tensor):
        return "a tensor"
    if isinstance(value, DeferredScalar):
        return "a number from Tensor.item"
    if isinstance(value, Object):
        return str(value.value.__qualname__) if is_a(value.value, _NAMED) else f"a {type(value.value).__qualname__}"
    if isinstance(value, Method):
        return describe(value.function)
    if isinstance(value, Function):
        return value.qualname
    if isinstance(value, Sequence | Deque | Mapping | Set | Instance | ZippedIterator):
        return f"a {value.kind.__qualname__}"
    return "a mappingproxy" if isinstance(value, Proxy) else f"a {type(value).__name__.lower()}"


_BOUND: dict[type, type] = {  # what binding a function of C makes of it
    types.MethodDescriptorType: types.BuiltinMethodType,
    types.ClassMethodDescriptorType: types.BuiltinMethodType,
    types.WrapperDescriptorType: types.MethodWrapperType,
}


def python_type(value: Value) -> type | None:
    """The exact Python type of the value, or None where it is not known."""
    if isinstance(value, Number):
        return type(value.known)
    if isinstance(value, Constant | Object):
        return type(value.value)
    if isinstance(
        value,
        Tensor | DeferredScalar | Sequence | Deque | Mapping | Set | Instance | ZippedIterator | Generator | Descriptor,
    ):
        return value.kind
    if isinstance(value, Iterator):
        return _iterator_type(value)
    if isinstance(value, DictView) and value.mapping.kind is types.MappingProxyType:
        return None
    if isinstance(value, DictView):
        return type(getattr(value.mapping.kind(), value.part)())
    if isinstance(value, Method):
        function = value.function.value if isinstance(value.function, Constant | Object) else None
        return _BOUND.get(type(function), types.MethodType)
    fixed: dict[type, type] = {
        Function: types.FunctionType,
        Proxy: types.MappingProxyType,
        **{Slice: slice, Cell: types.CellType},
        TracebackValue: types.TracebackType,
        Partial: functools.partial,
        WeakReference: weakref.ReferenceType,
    }
    return fixed.get(type(value))


def _iterator_type(value: Iterator) -> type | None:
    over = value.over
    if isinstance(over, Mapping) and over.kind in (dict, OrderedDict, defaultdict):
        return type(iter(getattr(over.kind(), value.part)()))
    if isinstance(over, Constant | Deque) or (isinstance(over, Sequence) and over.kind is list):
        like: Any = over.value if isinstance(over, Constant) else over.kind()
        return type(iter(like) if value.part == "forward" else reversed(like))
    return type(iter(set())) if isinstance(over, Set) else None
