"""Objects from outside become values, with the guards that make them safe to rely on.

externals.value(model, source of "self")   →   Object(model), guarded by its exact type; its attributes when read
externals.value(3, source of "n")          →   Constant(3), guarded by equality
"""

import contextlib
import enum
import functools
import gc
import sys
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Hashable
from collections.abc import Iterator as IteratorABC
from typing import Any

import torch

from smelt.capture.guards.dynamic_sizes import Sizes, guarded
from smelt.capture.guards.identity import refuse_replaced
from smelt.capture.guards.tree import GuardTree
from smelt.capture.model.breaks import Unsupported
from smelt.capture.model.container_changes import holds_gradient, is_changed, keys_check
from smelt.capture.model.marks import Entered
from smelt.capture.model.open_numbers import OpenNumber
from smelt.capture.model.paused_iterators import PLACE, PausedIterator, PausedZip
from smelt.capture.model.source import Source
from smelt.capture.model.static import is_a, is_bound_method, is_heap_type, own_dict, static_lookup
from smelt.capture.model.values import (
    STRING_METHODS,
    ByIdentity,
    Cell,
    Constant,
    Deque,
    Globals,
    Iterator,
    LazyItem,
    Mapping,
    Method,
    Number,
    Object,
    OpenScalar,
    Proxy,
    Sequence,
    Set,
    Slice,
    Slots,
    Value,
    WeakReference,
    ZippedIterator,
    describe,
    is_constant,
    is_native_member,
    is_new_key,
    own_operators,
    python_type,
    stands_for_key,
)
from smelt.capture.tape.distributed import distributed_input, is_distributed
from smelt.capture.tape.generators import GeneratorPair
from smelt.capture.tape.tape import Tape
from smelt.ir.generators import make_own

_IDENTIFIED = (
    type,
    types.ModuleType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
)


def runs_code(kind: type) -> bool:
    """Whether looking at a class runs code of its metaclass: not ours to run."""
    metaclass = type(kind)
    if metaclass is type:
        return False
    asked = ("__getattribute__", "__eq__", "__hash__")
    return any(isinstance(static_lookup(metaclass, name), types.FunctionType) for name in asked)


def is_plain_namedtuple(kind: type) -> bool:
    """Whether objects of a class are a tuple with names for its items, and no more than that."""
    if not issubclass(kind, tuple) or kind.__dictoffset__ or not hasattr(kind, "__match_args__"):
        return False
    return own_operators(kind) <= STRING_METHODS


def slot_names(kind: type) -> list[str]:
    """The names in the `__slots__` of a class and of its bases, as often as they occur."""
    return [
        name
        for base in kind.__mro__
        if is_heap_type(base)
        for name, member in vars(base).items()
        if isinstance(member, types.MemberDescriptorType)
    ]


def _filled_slots(real: Any) -> dict[str, Any]:
    """What the slots of an object hold, without asking its class for attributes."""
    filled = {}
    for name in slot_names(type(real)):
        with contextlib.suppress(AttributeError):
            filled[name] = static_lookup(type(real), name).__get__(real)
    return filled


_DICTS = (dict, OrderedDict, defaultdict)
_SHARED = (
    list,
    dict,
    OrderedDict,
    defaultdict,
    deque,
    set,
    types.CellType,
)  # what is one value however it is reached, so that writes are seen
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)
BUILTIN_BASES: tuple[type, ...] = (OrderedDict, dict, list, tuple, set, frozenset, int, float, str)
"""Types of C that classes of the program are made from, narrowest first: an object of such a class holds one."""
REGISTRIES = ("_parameters", "_buffers", "_modules")
_NAMED = (type, types.FunctionType, types.BuiltinFunctionType, *_IDENTIFIED[3:])  # which have a __qualname__


_OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket, torch._ops._OpNamespace, torch._ops._Ops)


def _of_library(source: Source) -> bool:
    """Whether what is reached through it is part of torch or of the standard library, and constant."""
    real: Any = source.accessor[1] if source.accessor[0] == "value" else getattr(source.value, "value", None)
    if is_a(real, torch.finfo | torch.iinfo):
        return True
    if not is_a(real, types.ModuleType | types.FunctionType | dict):
        return False
    names = real if is_a(real, dict) else getattr(real, "__globals__", real.__dict__)
    top = str(names.get("__name__")).partition(".")[0]
    return top == "torch" or top in sys.stdlib_module_names


class Externals:
    """Reads the program's objects for one capture, and records what the captured code writes to them."""

    def __init__(self, tree: GuardTree, tape: Tape, sizes: Sizes) -> None:
        self.tree = tree
        self.tape = tape
        self.sizes = sizes
        self.deferred_calls: list[tuple[Callable[..., None], list[Value]]] = []  # what is to be called after all writes
        self.written: dict[int, Any] = {}  # containers from outside that were written to, in order of their first write
        self._shared: dict[int, tuple[Any, Any]] = {}  # id of a container → the container and its value
        self._objects: dict[type, list[Object]] = {}
        self.no_side_effects = False  # whether code is followed that runs more than once, and so may write nothing
        self.mutated: list[Any] = []  # what it changed all the same, of what the captured code made
        self.runs_later = False  # whether code is followed that runs later, when data may be other than it is now
        self.follow_loops = True
        self.settings: Hashable = None  # of the function that is compiled
        self.fullgraph = False
        self.relied_data: dict[Source, None] = {}  # tensors whose elements decided something
        self._open_numbers: dict[int, tuple[OpenNumber, OpenScalar]] = {}  # by their ids
        self.explores = False  # whether both sides of a branch are followed, for export, and nothing is executed
        self.graph_generators: dict[int, GeneratorPair] = {}  # by the ids of generators
        self._weak_references: dict[int, WeakReference] = {}  # by the ids of what they lead to
        self._stand_ins: dict[int, tuple[Any, Value]] = {}  # by their ids
        self._argument_keys: list[Any] = []  # tensors that are keys of dicts or items of sets: arguments,
        self._lasting_keys: list[Any] = []  # and those that stay, each of which is guarded by its identity
        self.grad_targets: dict[int, Any] = {}  # tensors whose gradients are taken: objects, not values

    def release(self) -> None:
        """Let go of the program's objects now: values may hold each other, and the collector is slow."""
        for _, value in self._shared.values():
            if isinstance(value, Sequence | Deque):
                value.raw_items, value.original = [], None
            elif isinstance(value, Mapping | Set):
                value.items, value.original = type(value.items)(), None
            elif isinstance(value, Cell):
                value.contents = value.real = None
        for objects in self._objects.values():
            for each in objects:
                each.value = None
        self._shared, self._objects, self.written, self._stand_ins = {}, {}, {}, {}

    def follows(self, entered: Entered) -> bool:
        """Whether a compiled function is compiled as this one is, and may break where this one may."""
        alike = entered.settings is not None and entered.settings == self.settings
        return alike and (self.fullgraph or not entered.fullgraph)

    def value(self, real: Any, source: Source) -> Value:
        """What is known of the object `real` found at `source`; the same source gives the same value."""
        if runs_code(type(real)) or (issubclass(type(real), type) and runs_code(real)):
            raise Unsupported("B007", f"{source.text}, whose metaclass runs code when a class is looked at,")
        if self._stand_ins and id(real) in self._stand_ins:
            return self._stand_ins[id(real)][1]
        if self.runs_later:
            self._refuse_data(real, source)
        if source.value is None:
            source.value = self._shared_value(real, source) if type(real) in _SHARED else self._wrap(real, source)
        value: Value = source.value
        return value

    def _refuse_data(self, real: Any, source: Source) -> None:
        """Code that runs later may use functions, classes, modules, defaults, and constants of the libraries."""
        if is_a(real, (*_IDENTIFIED, types.FunctionType, types.CellType, *_OPERATORS)):
            return
        place: Source | None = source
        while place is not None:
            if place.accessor == ("attr", "__defaults__") or _of_library(place):
                return
            place = place.parent
        raise Unsupported("B017", f"{source.text}, which may have changed when the backward runs")

    def _shared_value(self, real: Any, source: Source) -> Value:
        value: Value | None = self.shared(real)
        if value is None:
            value = self._wrap(real, source)
            self._shared[id(real)] = (real, value)
        else:
            self._guard_same(value, source)
        return value

    def _guard_same(self, known: Value, source: Source) -> None:
        """That a container which was met before is found at this source, too, is relied on."""
        if known.source is not None and known.source is not source:
            self.tree.relations.append((known.source.collect(), source.collect(), True))

    def shared(self, real: Any) -> Any:
        """The value of a container if it was met before, by whatever way; else None."""
        known = self._shared.get(id(real))
        return known and known[1]

    def members(self, value: Object) -> Mapping:
        """The `__dict__` of an object, as the mapping that its attributes are read from and written to."""
        real = own_dict(value.value)
        if type(real) is not dict or value.source is None:
            raise Unsupported("B005", f"{describe(value)}, which has no plain __dict__")
        members = self.value(real, value.source.dict_of(value.value))
        assert isinstance(members, Mapping)
        return members

    def contents(self, value: Object) -> Any:
        """What an object of a class of dicts, lists, tuples, sets or numbers holds, whatever the class says of it; None
        if it is no such object."""
        real, source = value.value, value.source
        base: Any = next((each for each in BUILTIN_BASES if is_a(real, each)), None)
        if base is None or source is None:
            return None
        contents = self.shared(real)
        if contents is None:
            contents = self._held(real, base, source)
            if base is tuple and isinstance(contents, Sequence):
                contents.owner = value
            self._shared[id(real)] = (real, contents)
        else:
            self._guard_same(contents, source)
        return contents

    def _held(self, real: Any, base: Any, source: Source) -> Value:
        if issubclass(base, dict):
            items: dict[Any, Any] = {key: LazyItem(item, source.key(key)) for key, item in base.items(real)}
            return Mapping(dict(items), base, original=items, inside=True, source=source)
        if base is list or base is tuple:
            return self._sequence(base.__iter__(real), base, source)
        if base in (set, frozenset):
            plain = frozenset(base.__iter__(real))
            if not all(map(_is_item, plain)) or any(is_a(item, _FUNCTIONS) for item in plain):
                raise Unsupported("B017", f"the items of {source.text}")
            source.check(("predicate", functools.partial(_holds, base, plain)))
            return Set.given(base, real, source, plain)
        plain = base.__getnewargs__(real)[0]
        source.check(("predicate", functools.partial(_holds, base, plain)))
        return Constant(plain, source=source)

    def slots(self, value: Object) -> Slots:
        """What the `__slots__` of an object hold that are filled."""
        real, source = value.value, value.source
        own = isinstance(self.tree.class_attribute(type(real), "__getattribute__"), types.FunctionType)
        if source is None or is_a(real, BUILTIN_BASES) or own:
            raise Unsupported("B007", f"__slots__ of {describe(value)}")
        slots: Slots | None = self.shared(real)
        if slots is None:
            items: dict[Any, Any] = {
                name: LazyItem(item, source.attribute(name)) for name, item in _filled_slots(real).items()
            }
            slots = Slots(dict(items), original=items, holder=value, source=source)
            self._shared[id(real)] = (real, slots)
        else:
            self._guard_same(slots, source)
        return slots

    def write(self, value: Any, undo: list[Callable[[], None]]) -> None:
        """A container from outside is about to be written to."""
        if self.runs_later or self.no_side_effects:
            raise Unsupported("B005", describe(value))
        is_list = isinstance(value, Sequence) and value.kind is list
        if not isinstance(value, Cell | Deque | Mapping | Set) and not is_list:
            raise Unsupported("B005", describe(value))
        if isinstance(value, Set) and value.kind is not set:
            raise Unsupported("B005", describe(value))
        if id(value) not in self.written:
            self.written[id(value)] = value
            undo.append(lambda: self.written.pop(id(value), None))

    def has_pending_writes(self) -> bool:
        """Whether captured writes, those of gradients aside, are still to be made to the real objects."""
        return any(is_changed(value) for value in self.written.values() if not holds_gradient(value))

    @contextlib.contextmanager
    def without_writes(self) -> IteratorABC[None]:
        """Inside, names, attributes and dicts from outside are what they were before the captured code wrote to
        them."""
        written = [value for value in self.written.values() if isinstance(value, Mapping)]
        final = [value.items for value in written]
        for value in written:
            value.items = dict(value.items if value.original is None else value.original)
        try:
            yield
        finally:
            for value, items in zip(written, final, strict=True):
                value.items = items

    def stale_objects(self) -> set[int]:
        """The ids of the real objects that such writes are still to be made to, and of those whose attributes they
        are."""
        changed = [value for value in self.written.values() if not holds_gradient(value) and is_changed(value)]
        owners = [value.holder if isinstance(value, Slots) else _owner(value.source) for value in changed]
        stale = {id(real) for real, value in self._shared.values() if any(value is each for each in changed)}
        return stale | {id(owner.value) for owner in owners if owner is not None}

    def guard_distinct(self) -> None:
        """What was written must be the same object as, or another than, each thing of its kind that was read."""
        for value in self.written.values():
            owner = value.holder if isinstance(value, Slots) else _owner(value.source)
            if owner is not None:
                for each in self._objects.get(type(owner.value), ()):
                    self.guard_alias(owner.source, each.source, each.value is owner.value)
            for _, other in self._shared.values():
                if _alike(value, other):
                    self.guard_alias(value.source, other.source, False)

    def guard_alias(self, source: Source | None, other: Source | None, same: bool | None) -> None:
        """That two things from outside are one object, or are not, or (None) are no views of one, is relied on."""
        if source is None or other is None or source is other:
            return
        if source.accessor[0] != "value" or other.accessor[0] != "value":  # else two given objects
            self.tree.relations.append((source.collect(), other.collect(), same))

    def known(self, real: Any) -> Object | None:
        """The value of an object that was met before, of no special kind; else None."""
        return next((each for each in self._objects.get(type(real), ()) if each.value is real), None)

    def force(self, item: Any) -> Value:
        """An item of a container, looked at now if it was pending."""
        return self.value(item.value, item.source) if isinstance(item, LazyItem) else item

    def items(self, value: Sequence) -> list[Value]:
        """All items, none pending any more."""
        items = [self.force(item) for item in value.items]
        if any(isinstance(item, LazyItem) for item in value.items):
            value.raw_items[:] = items  # in place: somebody may be about to change it
        return items

    def guard_identity(self, value: Object) -> Any:
        """From now on this very object is meant, not one like it."""
        if not value.identity_guarded:
            if value.source is not None:
                refuse_replaced(self.sizes.history, value)
                value.source.check(("is", value.value))
            value.identity_guarded = True
        return value.value

    def graph_generator(self, value: Object) -> Value:
        """What a graph draws from in the place of a generator."""
        real, source = value.value, value.source
        if source is None or self.no_side_effects or self.runs_later:
            raise Unsupported("B017", "a torch.Generator, in code that runs later or twice")
        pair = self.graph_generators.get(id(real))
        if pair is None:
            source.attribute("device").check(("equals", real.device))
            for other in self.graph_generators.values():
                self.guard_alias(source, other.source, False)
            pair = self.graph_generators[id(real)] = GeneratorPair(source, real, make_own(real.device))
            self.tree.why_not_persist = "the state of a torch.Generator"
            source.collect()
        else:
            self.guard_alias(source, pair.source, True)
        return Object(pair.own, identity_guarded=True)

    def fixed(self, real: Any) -> Value:
        """A value for an object that capture itself brings in (a builtin, a class it found): nothing to guard."""
        if self._stand_ins and id(real) in self._stand_ins:
            return self._stand_ins[id(real)][1]
        if is_constant(real):
            self._rely_on_operators(real)
            return Constant(real)
        source = self.tree.fixed(real, real.__qualname__ if is_a(real, _NAMED) else type(real).__qualname__)
        if not isinstance(source.value, Object):
            source.value = Object(real, identity_guarded=True, source=source)
            if is_a(real, types.FunctionType):  # whose attributes may be written by another way to it
                self._objects.setdefault(types.FunctionType, []).append(source.value)
        return source.value

    def weak_reference(self, target: Value) -> Value:
        """`weakref.ref(target)`, which is one for all who ask."""
        kind = python_type(target)
        if kind is None or not kind.__weakrefoffset__ or isinstance(target, Constant | Sequence | Mapping):
            raise Unsupported("B002", f"a weak reference to {describe(target)}")
        reference = self._weak_references.get(id(target))
        if reference is None:
            reference = self._weak_references[id(target)] = WeakReference(target)
        return reference

    def stand_in(self, real: Any, value: Value) -> Any:
        """Let a real object stand for a value, in a class that the captured code defines."""
        self._stand_ins[id(real)] = real, value
        return real

    def _rely_on_operators(self, real: Any) -> None:
        """A member of an enum is a constant for as long as Python's operators on it run no code of the program."""
        if is_a(real, enum.Enum):
            kind = self.tree.rely_on_type(real)
            self.tree.of_class(kind, own_operators)
            self.tree.class_attribute(kind, "__getattribute__")

    def rely_on_contents(self, real: Any) -> None:
        """What Python's operators look at in a member of an enum, or in a class, that they are given."""
        if is_a(real, enum.Enum):
            members = self.tree.fixed(real, str(type(real).__qualname__)).instance_dict()
            for name in ("_value_", "_name_"):
                if name in real.__dict__:
                    held = real.__dict__[name]
                    members.child(("key", name), name).check(("equals" if is_constant(held) else "is", held))
                else:
                    members.check(("lacks", name))
        elif is_a(real, type) and is_heap_type(real):
            metaclass = self.tree.metaclass(real)
            if metaclass is not type:
                self.tree.of_class(metaclass, own_operators)

    def _wrap(self, real: Any, source: Source) -> Value:
        kind = type(real)
        if is_constant(real):
            if is_a(real, enum.Enum):
                source.check(("is", real))
                self._rely_on_operators(real)
            elif is_native_member(real):
                source.check(("is", real))
            elif kind is int or kind is float:
                number, symbolic = self.sizes.number(real, source)
                return Number(number, source=source, symbolic=symbolic)
            elif kind is str:
                return Number(real, source=source)
            else:
                source.check(("equals", real))
            return Constant(real, source=source)
        if is_a(real, torch.Tensor):
            return self._tensor(real, source)
        if kind is types.BuiltinFunctionType and is_bound_method(real):
            return self._builtin_method(real, source)
        if is_a(real, _IDENTIFIED):
            source.check(("is", real))
            return Object(real, identity_guarded=True, source=source)
        source.check(("type", kind))
        if kind is tuple or kind is list or (issubclass(kind, tuple) and self.tree.of_class(kind, is_plain_namedtuple)):
            return self._sequence(real, kind, source)
        if kind is torch.Size:
            source.check(("equals", real))
            return Sequence(kind, [Constant(size) for size in real], source=source)
        if kind in (dict, OrderedDict, defaultdict):
            items: dict[Any, Any] = {key: LazyItem(item, source.key(key)) for key, item in real.items()}
            wrapped = Mapping(dict(items), kind, original=items, source=source)
            if kind is defaultdict:
                factory = self.value(real.default_factory, source.attribute("default_factory"))
                wrapped.factory = None if real.default_factory is None else factory
            return wrapped
        if kind is deque:
            source.attribute("maxlen").check(("equals", real.maxlen))
            queued = [LazyItem(item, source.item(position)) for position, item in enumerate(real)]
            return Deque(list(queued), real.maxlen, tuple(queued), source=source)
        if kind in (set, frozenset) and all(map(_is_item, real)):
            source.check(("equals", kind(real)))
            known = [ByIdentity(self.fixed(item), item) if is_a(item, _FUNCTIONS) else item for item in real]
            return Set.given(kind, real, source, frozenset(known))
        if kind is OpenNumber:
            return self._open_number(real, source)
        if kind is PausedIterator and self.follow_loops:
            return self._paused(real, source)
        if kind is PausedZip and self.follow_loops:
            return self._paused_joined(real, source)
        if kind is slice:
            parts = [self.value(getattr(real, name), source.attribute(name)) for name in ("start", "stop", "step")]
            return Slice(*parts, source=source)
        if kind is types.CellType:
            return Cell(real=real, source=source)
        if kind is types.MappingProxyType and type(held := gc.get_referents(real)[0]) in _DICTS:
            source.check(("is", real))  # by which it is the proxy of this very dict
            mapping = self.value(held, self.tree.fixed(held, source.text))
            assert isinstance(mapping, Mapping)
            return Proxy(mapping, real, source=source)
        if kind is types.MethodType:
            return self._method(real, source)
        made_object = Object(real, source=source)
        self._objects.setdefault(kind, []).append(made_object)
        return made_object

    def _open_number(self, real: OpenNumber, source: Source) -> Value:
        """One value for a number, however it is reached: it is one symbol, if it becomes one."""
        if id(real) not in self._open_numbers:
            tensor = self._tensor(real.tensor, source.attribute("tensor"))
            make = functools.partial(OpenNumber, real.kind)
            negative = real.negated is not None
            scalar = OpenScalar(real.kind, make, [tensor], real.example, negative=negative, source=source)
            self._open_numbers[id(real)] = real, scalar
        return self._open_numbers[id(real)][1]

    def _sequence(self, real: Any, kind: type, source: Source) -> Value:
        items: list[Any] = [LazyItem(item, source.item(position)) for position, item in enumerate(real)]
        if kind is list:
            return Sequence(kind, items, tuple(items), source=source)
        source.check(("length", len(items)))
        return Sequence(kind, items, source=source)

    def _tensor(self, real: torch.Tensor, source: Source) -> Value:
        kind = type(real)
        if kind is not torch.Tensor and kind is not torch.nn.Parameter:
            source.check(("type", kind))
            if is_distributed(real) and not self.explores and not self.runs_later:
                self.tree.why_not_persist = "DTensors"
                return distributed_input(self.tape, real, source)
            return Object(real, source=source)
        quirks = ("is_quantized", "is_nested", "is_neg", "is_conj", "_is_zerotensor", "has_names")
        refused = [quirk for quirk in quirks if _says(real, quirk)]
        if real.requires_grad and not (real.dtype.is_floating_point or real.dtype.is_complex):
            refused.append("of integers, and written from what requires a gradient")
        if real.layout is not torch.strided or refused:
            raise Unsupported("B006", f"{source.text} ({refused[0] if refused else real.layout})")
        try:
            real.is_leaf  # noqa: B018
        except RuntimeError:  # one of several views of a tensor that was then written to: autograd disowns it
            raise Unsupported("B011", source.text) from None
        shape, stride = self.sizes.layout(real, source)
        sizes = (guarded(shape), guarded(stride))
        source.check(("tensor", kind, real.dtype, real.device, *sizes, real.requires_grad))
        return self.tape.input(real, source, shape, stride)

    def mark_grad_target(self, value: Any) -> None:
        """This very tensor is meant, wherever else it is met; of an argument, that it is another than the rest."""
        self.grad_targets[id(value.real)] = value
        guard_tensor_identity(value)

    def guard_key(self, value: Any) -> bool:
        """A tensor is a key: of an argument, whether it is each of the tensors that are keys, too, is relied on.
        Whether it is known by itself: it stays, and was not met as an argument, or is an argument that was met so."""
        lasting, met = may_guard_identity(value), None
        for other in self._argument_keys if lasting else (*self._argument_keys, *self._lasting_keys):
            self.guard_alias(value.source, other.source, other.real is value.real)
            met = other if met is None and other.real is value.real else met
        by_itself = lasting if met is None else met in self._lasting_keys
        (self._lasting_keys if by_itself else self._argument_keys).append(value)
        return by_itself

    def gradient_slots(self, value: Any) -> Slots:
        """The `.grad` of a leaf from outside, as something that is read and written."""
        slots: Slots | None = self.shared(value.real)
        if slots is None:
            source = self.tree.fixed(value.real, value.source.text)
            items: dict[Any, Any] = {"grad": LazyItem(value.real.grad, source.attribute("grad"))}
            holder = Object(value.real, identity_guarded=True, source=source)
            slots = Slots(dict(items), original=items, holder=holder, source=source)
            self._shared[id(value.real)] = (value.real, slots)
        return slots

    def _paused(self, real: PausedIterator, source: Source) -> Value:
        """An iterator that nobody but the interpreter holds: the captured code goes on with one of its own."""
        for name in ("part", "position", "size"):
            source.child(("attr", name), f"{source.text}, {PLACE}").check(("equals", getattr(real, name)))
        over = self.value(real.over, source.attribute("over"))
        if isinstance(over, Mapping):
            self.complete(over)
        size = real.size if isinstance(over, Mapping) else None
        return Iterator(over, real.part, real.position, size, looped=True)

    def _paused_joined(self, real: PausedZip, source: Source) -> Value:
        source.attribute("kind").check(("is", real.kind))
        source.attribute("strict").check(("is", real.strict))
        source.child(("attr", "position"), f"{source.text}, {PLACE}").check(("equals", real.position))
        parts: Any = self.value(real.parts, source.attribute("parts"))
        function = None if real.function is None else self.value(real.function, source.attribute("function"))
        return ZippedIterator(real.kind, self.items(parts), real.position, function, real.strict, looped=True)

    def _method(self, real: types.MethodType, source: Source) -> Value:
        function = self.value(real.__func__, source.attribute("__func__"))
        receiver = self.value(real.__self__, source.attribute("__self__"))
        return Method(function, receiver, source=source)

    def _builtin_method(self, real: Any, source: Source) -> Value:
        """`things.append` as an object: known by its name and its receiver, as Python makes a new one each time."""
        source.check(("type", type(real)))
        source.attribute("__name__").check(("equals", real.__name__))
        receiver = self.value(real.__self__, source.attribute("__self__"))
        of_class = is_a(real.__self__, type)
        method = static_lookup(real.__self__ if of_class else type(real.__self__), real.__name__)
        return Method(self.fixed(method), receiver, source=source)

    def complete(self, mapping: Mapping) -> None:
        """The whole set of keys is relied on."""
        if mapping.source is not None and "complete" not in mapping.source.checks:
            before = mapping.items if mapping.original is None else mapping.original
            check = keys_check(mapping, tuple(before))
            if check == ("length", 0):
                mapping.source.check(check)  # which others may have asked as well
            else:
                mapping.source.checks["complete"] = check

    def present(self, mapping: Mapping, key: Any) -> bool:
        """Whether the key is there, relied on either way."""
        self.refuse_unknown_key(mapping, key)
        is_present = key in mapping.items  # which asks the program's own __eq__ of no object that only stands for a key
        if (
            mapping.source is not None
            and not is_present
            and key not in (mapping.original or ())
            and not is_new_key(key)
        ):
            mapping.source.check(("lacks", key))  # else it was there and the captured code took it out
        if is_present and isinstance(mapping.items[key], LazyItem):
            self.force(mapping.items[key])
        return is_present

    def refuse_unknown_key(self, mapping: Mapping, key: Any) -> None:
        """No dict from outside is asked for a key, nor given one, that may be there already."""
        if mapping.source is not None and stands_for_key(key) and not is_new_key(key):
            raise Unsupported("B017", f"a key of {describe(mapping)} that objects from outside may be equal to")

    def removable(self, mapping: Mapping, key: Any) -> bool:
        """Whether the key is there and may be taken out. Then whether it was there at first is relied on, too: that
        decides whether there is anything to take out of the real dict."""
        if not self.present(mapping, key):
            return False
        if mapping.source is not None:
            first = (mapping.original or {}).get(key)
            if isinstance(first, LazyItem):
                first.source.collect()
                mapping.taken.add(key)
            elif first is None and isinstance(mapping, Slots):
                raise Unsupported("B005", f"del of {key}, a slot that was empty at first")
            elif first is None:
                mapping.source.check(("lacks", key))
        return True

    def cell_contents(self, cell: Cell) -> Value | None:
        """What a cell holds, or None if it is empty."""
        if self.runs_later and cell.real is not None and cell.source is not None:
            self._refuse_data(cell.real.cell_contents, cell.source)
        if cell.contents is None and cell.real is not None and cell.source is not None:
            inside = cell.source.child(("cell",), cell.source.text)
            try:
                real = cell.real.cell_contents
            except ValueError:
                inside.check(("unbound",))
                return None
            cell.contents = self.value(real, inside)
        contents: Value | None = cell.contents
        return contents

    def globals_of(self, function: Object) -> Globals:
        """The namespace of a function from outside; that it is this one is guarded, its entries when read."""
        real = function.value
        if function.source is not None and not function.identity_guarded:
            function.source.child(("globals",), f"{function.source.text}.__globals__").check(("is", real.__globals__))
        name = real.__globals__.get("__name__", "?")
        return Globals(real.__globals__, self.tree.fixed(real.__globals__, f"globals of {name}"))

    def global_name(self, names: Globals, name: str) -> Value | None:
        """A global, else a builtin, else None."""
        written = self.shared(names.names)
        if written is not None:
            if self.present(written, name):
                return self.force(written.items[name])
        elif name in names.names:
            return self.value(names.names[name], names.source.child(("key", name), name))
        else:
            names.source.check(("lacks", name))
        builtins = names.names.get("__builtins__")
        table = builtins if isinstance(builtins, dict) else vars(builtins)
        if name not in table:
            return None
        return self.value(table[name], self.tree.fixed(table, "builtins").child(("key", name), name))


def may_guard_identity(value: Any) -> bool:
    """Whether a tensor is one that stays: not an argument, which may be another at each call, unless a parameter."""
    return value.source.accessor[0] != "slot" or value.kind is not torch.Tensor


def is_gradient(value: Any) -> bool:
    """Whether a tensor is the `.grad` of another, which is a new one at each step."""
    return bool(value.source.accessor == ("attr", "grad"))


def guard_tensor_identity(value: Any) -> bool:
    """Rely on this very tensor, if it is one that stays."""
    if may_guard_identity(value):
        value.source.check(("is", value.real))
        return True
    return False


def _holds(base: Any, plain: Any, real: Any) -> bool:
    return base.__eq__(real, plain) is True


def _is_item(item: Any) -> bool:
    """Whether an item of a set from outside is known by its value, or is a class that is known by identity."""
    if is_a(item, tuple):
        return type(item) is tuple and all(map(_is_item, item))
    if is_a(item, type):
        return not runs_code(item) and not own_operators(type(item))
    return is_constant(item) or is_a(item, _FUNCTIONS)


def _owner(source: Source) -> Object | None:
    """The object whose attributes live in the dict at `source`; they are also read without looking at the dict."""
    if source.accessor[0] == "key" and source.accessor[1] in REGISTRIES and source.parent is not None:
        source = source.parent
    if source.accessor == ("dict",) and source.parent is not None and isinstance(source.parent.value, Object):
        return source.parent.value
    return None


def _alike(value: Value, other: Value) -> bool:
    """Whether `other` is another value that might turn out to be the same container."""
    if other is value or type(other) is not type(value) or other.source is None or _owner(other.source) is not None:
        return False
    return isinstance(value, Cell) or value.kind is other.kind  # type: ignore[attr-defined]


def _says(tensor: torch.Tensor, quirk: str) -> bool:
    """What an attribute, or a method without arguments, says of a tensor; one that this PyTorch lacks says no."""
    answer = getattr(tensor, quirk, False)
    return bool(answer() if callable(answer) else answer)
