"""Recipes that turn values back into objects after a graph has run.

    Sequence(list, [Tensor(node add), Tensor(x, source)])   →   steps: make list; fill with output 0, input "x"

A recipe is straight-line: registers start with constants, collected inputs and graph outputs; each step appends one.
Mutable containers are made empty first and filled afterwards, so sharing and cycles come out as they were.
"""

import contextlib
import functools
import itertools
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Iterator as IteratorABC
from collections.abc import Mapping as MappingABC
from collections.abc import Sequence as SequenceABC
from typing import Any

import torch
from torch import fx

from smelt import _native
from smelt.base.fast_dataclass import dataclass
from smelt.capture.guards.dynamic_sizes import computed_from, read_size
from smelt.capture.interpreter.exceptions import GROUPS, builtin_base
from smelt.capture.interpreter.interpreter import make_sequence
from smelt.capture.model.breaks import SkipFrame
from smelt.capture.model.open_numbers import OpenNumber
from smelt.capture.model.paused_iterators import CHANGED, PausedIterator, PausedZip
from smelt.capture.model.set_order import ITSELF, Call, Items, construction_of, formed
from smelt.capture.model.set_order import changed as set_changed
from smelt.capture.model.set_order import made as set_made
from smelt.capture.model.source import Source
from smelt.capture.model.static import static_lookup
from smelt.capture.model.values import (
    Array,
    ByIdentity,
    Cell,
    Constant,
    DeferredScalar,
    DeferredString,
    Deque,
    Descriptor,
    DictView,
    Distributed,
    ExceptionValue,
    Function,
    Generator,
    Handled,
    Instance,
    Iterator,
    LazyItem,
    Mapping,
    Method,
    Null,
    Number,
    Object,
    OpenScalar,
    Partial,
    Place,
    Proxy,
    Sequence,
    Set,
    Slice,
    Slots,
    Super,
    Tensor,
    TracebackValue,
    Value,
    WeakReference,
    Wrapper,
    ZippedIterator,
    contents_kind,
    describe,
    stands_for_key,
)
from smelt.capture.replay.rebuild_functions import (
    fill_cell,
    fill_dict,
    rebuild_class,
    rebuild_descriptor,
    rebuild_function,
    rebuild_generator,
    rebuild_weak_reference,
    set_attribute,
)
from smelt.runtime.autograd.freed_graph import as_freed
from smelt.symbolic.symnode import Formula, meaning

_DEEP = 50
_LOOKING = (Iterator, ZippedIterator, DeferredString, ExceptionValue)  # what is made with a look at what others hold

Operand = tuple[str, Any]
"""("constant" | "preallocated" | "output" | "step", number) or ("input", source), until the recipe is finalized."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Sealed: operands are register numbers."""

    constants: tuple[Any, ...]
    steps: tuple[tuple[Callable[..., Any], tuple[int, ...]], ...]
    writes: bool = False
    """Whether a step changes an object from outside."""

    def registers(self, collected: SequenceABC[Any], outputs: SequenceABC[Any]) -> list[Any]:
        """Run the recipe."""
        registers = [*self.constants, *collected, *outputs]
        for function, operands in self.steps:
            registers.append(function(*[registers[number] for number in operands]))
        return registers


class Rebuilder:
    """Collects what must be rebuilt; `operand(value)` says where it will be found."""

    def __init__(
        self,
        node_of: Callable[[Tensor], fx.Node],
        detached_if_freed: Callable[[Tensor], fx.Node | None],
        slots: Callable[[Tensor], Slots | None],
        preallocated: Callable[[Tensor], int | None] = lambda value: None,
        number: Callable[[Number], Value | None] | None = None,
    ) -> None:
        self.node_of = node_of
        self.detached_if_freed = detached_if_freed
        self.slots = slots
        self.preallocated = preallocated
        self.number = number  # a number in symbols as another value, where inputs do not tell it
        self.made_classes: dict[int, Any] = {}  # see `GuardTree`
        self.rebuilt_keys: set[int] = set()  # the ids of the values that are keys of dicts, or items of sets
        self.is_whole = False  # whether the graph ends with the function: a suspended generator would only come back
        self.outputs: list[fx.Node] = []
        self._constants: list[Any] = []
        self._steps: list[tuple[Callable[..., Any], list[Operand]]] = []
        self._known: dict[int, Operand] = {}
        self._kept: list[Any] = []  # values whose ids are keys of _known
        self._output_number: dict[fx.Node, int] = {}
        self._tensors: dict[int, Operand] = {}  # of tensors, by the ids of their values, what they are made of
        self._moved: dict[int, int] = {}  # outputs by their numbers → where they come
        self.is_replaying = False
        self._writes = False
        self._depth = 0
        self._unfilled: list[Callable[[], object]] = []

    def operand(self, value: Value | LazyItem) -> Operand:
        """Where the object for `value` will be."""
        known = self._known.get(id(value))
        if known is None:
            self._kept.append(value)
            self._depth += 1
            try:
                known = self._make(value)
                while self._depth == 1 and self._unfilled:
                    self._unfilled.pop()()
            except RecursionError:
                raise SkipFrame("a structure nested too deeply to be rebuilt") from None
            finally:
                self._depth -= 1
            # What a value holds may lead back to it, as the cell of a function that names itself: then it is made.
            known = self._known.setdefault(id(value), known)
        return known

    def fill(self, steps: Callable[[], object]) -> None:
        """Add the steps that fill an object which is made; of deeply nested ones, when their container is known: a
        linked list is as deep as it is long."""
        if self._depth < _DEEP:
            steps()
        else:
            self._unfilled.append(steps)

    @contextlib.contextmanager
    def replaying(self) -> IteratorABC[None]:
        """Steps added inside the block write to objects from outside."""
        before = len(self._steps)
        self.is_replaying = True
        yield
        self.is_replaying = False
        self._writes = len(self._steps) > before

    def frame_operand(self, value: Value) -> Operand:
        """The operand for a value of the interpreter's own: the iterator of a loop says where it stands.

        Not so one that the program holds, or is about to take: that is made before, by `operand`.
        """
        return (
            self.loop_operand(value)
            if isinstance(value, Iterator | ZippedIterator) and value.looped
            else self.operand(value)
        )

    def loop_operand(self, value: Value) -> Operand:
        """The operand for the iterator of a loop, or for one that it goes through."""
        if id(value) not in self._known and value.source is None:
            if isinstance(value, Iterator) and _can_pause(value.over):
                return self.early(value, self._keep(value, _paused))
            if isinstance(value, ZippedIterator):
                return self.early(value, self._keep(value, _paused_joined))
        return self.operand(value)

    def _keep(self, value: Value, make: "Callable[[Rebuilder, Any], Operand]") -> Operand:
        self._kept.append(value)
        return make(self, value)

    def once(self, key: Any, make: Callable[[], Operand]) -> Operand:
        """The operand that was made for `key`, which is no value; `make()` the first time."""
        known = self._known.get(id(key))
        if known is None:
            self._kept.append(key)
            known = self._known[id(key)] = make()
        return known

    def items(self, items: Iterable[Any]) -> list[Operand]:
        """The items of a set."""
        return [self.key(item) for item in items]

    def key(self, key: Any) -> Operand:
        """A key of a dict."""
        if isinstance(key, ByIdentity):
            self.rebuilt_keys.add(id(key.value))
            return self.operand(key.value)
        if not stands_for_key(key):
            return self.constant(key)
        return self.step(functools.partial(_make_sequence, type(key)), *map(self.key, key))

    def by_keys(self, write: Callable[..., None], real: Operand, items: dict[Any, Any]) -> None:
        """`write(keys, real, *items)`, where some keys may have to be made first."""
        keys, operands = tuple(items), [self.operand(item) for item in items.values()]
        if any(map(stands_for_key, keys)):
            key_tuple = self.step(_tuple, *map(self.key, keys))
            self.step(functools.partial(_in_turn, write), key_tuple, real, *operands)
        else:
            self.step(functools.partial(write, keys), real, *operands)

    def operand_or_none(self, value: Value | None) -> Operand:
        """Where the object for a value that may be missing will be."""
        return self.constant(None) if value is None else self.operand(value)

    def tuple_of(self, items: Iterable[Any]) -> Operand:
        """A tuple of objects."""
        return self.step(_tuple, *map(self.operand, items))

    def class_of(self, kind: type) -> Operand:
        """A class: the real one, or the one that is made in the place of a stand-in."""
        blueprint = self.made_classes.get(id(kind))
        return (
            self.constant(kind)
            if blueprint is None
            else self.once(kind, functools.partial(rebuild_class, self, blueprint))
        )

    def constant(self, real: Any) -> Operand:
        self._constants.append(real)
        return ("constant", len(self._constants) - 1)

    def step(self, function: Callable[..., Any], *operands: Operand) -> Operand:
        self._steps.append((function, list(operands)))
        return ("step", len(self._steps) - 1)

    def _input(self, source: Source) -> Operand:
        if source.accessor[0] == "value":
            return self.constant(source.accessor[1])
        return ("input", source.collect())

    def _output(self, node: fx.Node) -> Operand:
        if node not in self._output_number:
            self._output_number[node] = len(self.outputs)
            self.outputs.append(node)
        return ("output", self._output_number[node])

    def _make(self, value: Any) -> Operand:
        if isinstance(value, Null):
            return self.constant(_native.NULL)
        if isinstance(value, Number) and value.symbolic is not None:
            return self._symbolic(value)
        if isinstance(value, Number) and not value.specialized:
            return self._number(value)
        if isinstance(value, Constant):
            return self.constant(value.value)
        if isinstance(value, Object) and id(value.value) in self.made_classes:
            return self.class_of(value.value)
        if isinstance(value, Object) and value.identity_guarded:
            return self.constant(value.value)
        if value.source is not None:
            return self._input(value.source)
        maker = _MAKERS.get(type(value))
        if self._unfilled and isinstance(value, _LOOKING):
            raise SkipFrame(f"{describe(value)} nested too deeply to be rebuilt")
        if maker is None or (self.is_replaying and isinstance(value, Iterator | ZippedIterator)):
            raise SkipFrame(f"{describe(value)} cannot be rebuilt")
        return maker(self, value)

    def _symbolic(self, value: Number) -> Operand:
        """A number computed from sizes is recomputed from the sizes of the inputs."""
        if value.source is not None:
            return self._input(value.source)
        other = None if self.number is None else self.number(value)
        if other is not None:
            return self.operand(other)
        what = meaning(value.symbolic)
        if isinstance(what, Formula) and what.is_computed:
            raise SkipFrame("a number that the graph computes cannot be rebuilt")
        compute, origins = computed_from(what)
        return self.step(compute, *[self.step(read_size(origin), self._input(origin[0])) for origin in origins])

    def _number(self, value: Number) -> Operand:
        if value.source is not None:
            return self._input(value.source)
        assert value.origin_call is not None
        function, *operands = value.origin_call
        return self.step(function, *map(self.operand, operands))

    def early(self, value: Value, operand: Operand) -> Operand:
        """Make a container known before its contents are built, for contents that refer back to it."""
        self._known[id(value)] = operand
        return operand

    def known(self, value: Value) -> Operand | None:
        """Where the object for `value` will be, if that is known by now."""
        return self._known.get(id(value))

    def tensor(self, value: Tensor, operand: Operand) -> Operand:
        """Remember what a tensor is made of."""
        self._tensors[id(value)] = operand
        return operand

    def place_of(self, value: Tensor) -> tuple[str, int]:
        """Where a tensor that the captured code made is found: which output of the graph, or which of what is made
        before it runs."""
        kind, number = self._tensors[id(value)]
        moved = self._moved if kind == "output" else {}
        return kind, moved.get(int(number), int(number))

    def sort_outputs(self, places: MappingABC[fx.Node, int]) -> None:
        """Let the graph hand out its outputs in another order than they were asked for."""
        asked = self.outputs
        self.outputs = sorted(asked, key=places.__getitem__)
        self._moved = {number: self.outputs.index(node) for number, node in enumerate(asked)}

    def finalize(self, collected: int, preallocated: int = 0) -> "tuple[Recipe, Callable[[Operand], int]]":
        """Fix the register numbers, now that every source knows its place among the collected."""
        first_output = len(self._constants) + collected + preallocated
        bases = {
            "constant": 0,
            "input": len(self._constants),
            "preallocated": len(self._constants) + collected,
            "output": first_output,
            "step": first_output + len(self.outputs),
        }

        def number(operand: Operand) -> int:
            kind, which = operand
            if kind == "output":
                which = self._moved.get(which, which)
            return bases[kind] + (which.index if isinstance(which, Source) else which)

        steps = tuple((function, tuple(map(number, operands))) for function, operands in self._steps)
        return Recipe(tuple(self._constants), steps, self._writes), number


def _tensor(build: Rebuilder, value: Tensor) -> Operand:
    preallocated = build.preallocated(value) if build.is_replaying else None
    if preallocated is not None:
        return build.tensor(value, ("preallocated", preallocated))
    detached = build.detached_if_freed(value)
    if detached is not None:
        return build.step(as_freed, build.tensor(value, build._output(detached)))
    tensor = build.tensor(value, build._output(build.node_of(value)))
    slots = build.slots(value)
    gradient = Constant(None) if slots is None else slots.items["grad"]
    return build.step(_with_gradient, tensor, build.operand(gradient)) if isinstance(gradient, Tensor) else tensor


def _with_gradient(leaf: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    leaf.grad = gradient
    return leaf


def _sequence(build: Rebuilder, value: Sequence) -> Operand:
    if value.owner is not None:
        return build.operand(value.owner)
    if value.kind is list:
        new = build.early(value, build.step(list))
        build.fill(lambda: build.step(list.extend, new, build.tuple_of(value.items)))
        return new
    if id(value.kind) in build.made_classes:
        return build.step(_make_sequence, build.class_of(value.kind), *map(build.operand, value.items))
    make = _tuple if value.kind is tuple else functools.partial(_make_sequence, value.kind)
    return build.step(make, *map(build.operand, value.items))


def _make_sequence(kind: Any, *items: Any) -> Any:
    if kind is torch.Size and any(type(item) is OpenNumber for item in items):
        return items  # where export explores
    return make_sequence(kind, list(items))


def _deque(build: Rebuilder, value: Deque) -> Operand:
    new = build.early(value, build.step(functools.partial(deque, (), value.maxlen)))
    build.step(deque.extend, new, build.tuple_of(value.items))
    return new


def _tuple(*items: Any) -> tuple[Any, ...]:
    return items


def _mapping(build: Rebuilder, value: Mapping) -> Operand:
    if value.owner is not None:
        new = build.operand(value.owner)
        return new if getattr(value.owner, "contents", None) is value else build.step(vars, new)
    if value.kind is types.MappingProxyType:
        return build.constant(value.proxy)
    new = build.early(value, build.step(value.kind))
    if value.factory is not None:
        build.step(functools.partial(set_attribute, "default_factory"), new, build.operand(value.factory))
    build.by_keys(_update, new, value.items)
    return new


def _in_turn(write: Callable[..., None], *operands: Any) -> None:
    write(*operands)


def _update(keys: tuple[Any, ...], real: Any, *items: Any) -> None:
    real.update(zip(keys, items, strict=True))


def _set(build: Rebuilder, value: Set) -> Operand:
    if value.owner is not None:
        return build.operand(value.owner)
    return set_operand(build, value.calls)


def set_operand(build: Rebuilder, call: Call) -> Operand:
    """A set made by the calls that made the captured one, so that its items come in the same order."""
    first, changes = construction_of(call)
    if first.name == "constant":
        new = build.constant(first.args[0])
    elif first.name == "given":
        if first.args[0].calls is not call or (changes and build.is_replaying):
            raise SkipFrame("a set that was made of another, which was changed since, cannot be rebuilt")
        return build.operand(first.args[0])
    elif first.name in _SETS and all(isinstance(arg, Items) and arg.form == "tuple" for arg in first.args):
        keys = first.args[0].keys if first.args else ()
        new = build.step(functools.partial(_of_items, _SETS[first.name]), *build.items(keys))
    else:
        new = build.step(functools.partial(set_made, first.name), *_set_arguments(build, first))
    return changed_set(build, new, changes)


_SETS: dict[str, type] = {"set": set, "frozenset": frozenset}


def changed_set(build: Rebuilder, real: Operand, changes: list[Call]) -> Operand:
    """The set at `real` after calls that change it; items that are added one after the other are one step."""
    for name, calls in itertools.groupby(changes, key=lambda call: call.name):
        if name == "add":
            items = build.step(functools.partial(_formed, "tuple"), *build.items(call.args[0] for call in calls))
            real = build.step(functools.partial(set_changed, "update"), real, items)
            continue
        for call in calls:
            real = build.step(functools.partial(set_changed, name), real, *_set_arguments(build, call, real))
    return real


def _set_arguments(build: Rebuilder, call: Call, real: Operand | None = None) -> list[Operand]:
    operands = []
    for arg in call.args:
        if arg is ITSELF and real is not None:
            operands.append(real)
        elif isinstance(arg, Call):
            operands.append(build.once(arg, functools.partial(set_operand, build, arg)))
        elif isinstance(arg, Items):
            operands.append(build.step(functools.partial(_formed, arg.form), *build.items(arg.keys)))
        else:
            operands.extend(build.items((arg,)))
    return operands


def _formed(form: str, *keys: Any) -> Any:
    return formed(form, keys)


def _of_items(kind: Any, *items: Any) -> Any:
    return kind(items)


def _proxy(build: Rebuilder, value: Proxy) -> Operand:
    if value.real is not None:
        return build.constant(value.real)
    return build.step(types.MappingProxyType, build.operand(value.mapping))


def _view(build: Rebuilder, value: DictView) -> Operand:
    return build.step(functools.partial(_view_of, value.part), build.operand(value.mapping))


def _view_of(part: str, real: Any) -> Any:
    return getattr(real, part)()


def _iterator(build: Rebuilder, value: Iterator) -> Operand:
    if isinstance(value.over, Set) and value.over.calls is not value.calls:
        raise SkipFrame("an iterator over a set that has changed cannot be rebuilt")
    if isinstance(value.over, Deque) and value.over.changes != value.size:
        raise SkipFrame("an iterator over a deque that has changed cannot be rebuilt")
    _refuse_changed(value)
    part, position, done = value.part, value.position, value.done

    def make(over: Any) -> Any:
        if part in ("keys", "values", "items"):
            iterator = iter(getattr(over, part)())
        else:
            iterator = iter(over) if part in ("forward", "set") else reversed(over)
        for _ in iterator if done else range(position):
            next(iterator, None)
        return iterator

    return build.step(make, build.operand(value.over))


def _joined(build: Rebuilder, value: ZippedIterator) -> Operand:
    kind, position, strict = value.kind, value.position, value.strict
    parts = [build.operand(part) for part in value.parts]
    if kind is enumerate:
        return build.step(lambda part: enumerate(part, position), *parts)
    if kind is zip:
        return build.step(lambda *real: zip(*real, strict=strict), *parts)
    assert value.function is not None
    return build.step(map, build.operand(value.function), *parts)


def _refuse_changed(value: Iterator) -> None:
    over = value.watched or value.over
    if value.size == -1 or (isinstance(over, Mapping) and over.removals != value.removals):
        raise SkipFrame("an iterator over what changed under it cannot be rebuilt")


def _can_pause(over: Value) -> bool:
    """Whether the items of a container can be counted off: no order of its own, no class of its own."""
    if isinstance(over, Mapping):
        return over.kind in CHANGED
    return isinstance(over, Constant) or (isinstance(over, Sequence) and over.kind in (list, tuple, torch.Size))


def _paused(build: Rebuilder, value: Iterator) -> Operand:
    _refuse_changed(value)
    part, position = value.part, value.position
    size = value.size
    return build.step(lambda over: PausedIterator(over, part, position, size), build.operand(value.over))


def _paused_joined(build: Rebuilder, value: ZippedIterator) -> Operand:
    kind, position, strict = value.kind, value.position, value.strict
    parts = build.step(_tuple, *map(build.loop_operand, value.parts))
    function = build.operand_or_none(value.function)
    return build.step(lambda parts, real: PausedZip(kind, parts, position, real, strict), parts, function)


def _bind(function: Any, receiver: Any) -> Any:
    if isinstance(function, types.MethodDescriptorType | types.WrapperDescriptorType):
        return function.__get__(receiver, type(receiver))
    if isinstance(function, types.ClassMethodDescriptorType):
        return function.__get__(None, receiver)
    return types.MethodType(function, receiver)


def _cell(build: Rebuilder, value: Cell) -> Operand:
    new = build.early(value, build.step(types.CellType))
    if value.contents is not None:
        build.step(fill_cell, new, build.operand(value.contents))
    return new


def _instance(build: Rebuilder, value: Instance) -> Operand:
    base: Any = contents_kind(value.contents) or object
    arguments = _given_at_once(build, value.contents)
    if id(value.kind) in build.made_classes:
        new = build.early(value, build.step(base.__new__, build.class_of(value.kind), *arguments))
    else:
        new = build.early(value, build.step(functools.partial(base.__new__, value.kind), *arguments))
    build.fill(lambda: _fill_instance(build, value, base, new))
    return new


def _array(build: Rebuilder, value: Array) -> Operand:
    array = build.step(torch.Tensor.numpy, build.operand(value.tensor))
    return array if value.kind.__name__ == "ndarray" else build.step(_first, array)


def _wrapper(build: Rebuilder, value: Wrapper) -> Operand:
    new = build.early(value, build.step(functools.partial(_rewrapped, value.kind, _layout_of(value.outer))))
    fill = functools.partial(_fill_parts, tuple(value.attributes))
    build.fill(lambda: build.step(fill, new, *map(build.operand, value.attributes.values())))
    return new


def _fill_parts(names: tuple[str, ...], real: Any, *items: Any) -> None:
    """Fill the slots of a wrapper, and its dict."""
    for name, item in zip(names, items, strict=True):
        if isinstance(static_lookup(type(real), name), types.MemberDescriptorType):
            object.__setattr__(real, name, item)
        else:
            real.__dict__[name] = item


def _rewrapped(kind: type, layout: tuple[Any, ...]) -> Any:
    shape, stride, offset, dtype, device = layout
    return torch.Tensor._make_wrapper_subclass(
        kind, shape, strides=stride, storage_offset=offset, dtype=dtype, device=device
    )


def _layout_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.device


def _first(array: Any) -> Any:
    return array[()]


def _given_at_once(build: Rebuilder, contents: Value | None) -> list[Operand]:
    """What an object of a class of tuples, frozensets, numbers is made of."""
    if isinstance(contents, Sequence) and contents.kind is tuple:
        return [build.tuple_of(contents.items)]
    if isinstance(contents, Set) and contents.kind is frozenset:
        return _set_arguments(build, contents.calls)
    return [build.operand(contents)] if isinstance(contents, Constant) else []


def _fill_instance(build: Rebuilder, value: Instance, base: Any, new: Operand) -> None:
    operands = map(build.operand, value.attributes.values())
    fill = fill_dict if value.kind.__dictoffset__ else _fill_slots
    build.step(functools.partial(fill, tuple(value.attributes)), new, *operands)
    contents = value.contents
    if isinstance(contents, Mapping):
        build.by_keys(functools.partial(_fill_contents, base), new, contents.items)
    elif isinstance(contents, Sequence) and base is list:
        build.step(list.extend, new, build.tuple_of(contents.items))
    elif isinstance(contents, Set) and base is set:
        first, changes = construction_of(contents.calls)
        build.step(set.__init__, new, *_set_arguments(build, first))
        changed_set(build, new, changes)


def _fill_slots(names: tuple[str, ...], real: Any, *items: Any) -> None:
    for name, item in zip(names, items, strict=True):
        object.__setattr__(real, name, item)


def _fill_contents(base: Any, keys: tuple[Any, ...], real: Any, *items: Any) -> None:
    """Fill a dict of a class of its own without asking that class."""
    for key, item in zip(keys, items, strict=True):
        base.__setitem__(real, key, item)


def _failure(build: Rebuilder, value: ExceptionValue) -> Operand:
    kind, base, suppresses = value.kind, builtin_base(value.kind), value.suppresses
    held = {} if kind in GROUPS else value.details
    if kind in GROUPS:  # which cannot be made without its exceptions
        new = build.early(value, build.step(kind, *map(build.operand, value.details.values())))
    else:
        new = build.early(value, build.step(base.__new__, build.class_of(kind)))

    def initialise(real: Any, args: Any) -> None:
        if kind not in GROUPS:
            base.__init__(real, *args)
        real.args = args  # that very tuple, which the program may have taken

    build.step(initialise, new, build.operand(value.args))
    names, details = tuple(value.attributes), tuple(held)
    operands = map(build.operand, (*value.attributes.values(), *held.values()))

    def fill(real: Any, trace: Any, cause: Any, context: Any, *items: Any) -> None:
        object.__getattribute__(real, "__dict__").update(zip(names, items[: len(names)], strict=True))
        for name, item in zip(details, items[len(names) :], strict=True):
            setattr(real, name, item)
        real.__traceback__, real.__cause__, real.__context__ = trace, cause, context
        real.__suppress_context__ = suppresses

    links = map(build.operand_or_none, (value.cause, value.context))
    build.step(fill, new, _traceback(build, value.places), *links, *operands)
    return new


def _traceback(build: Rebuilder, places: tuple[Place, ...]) -> Operand:
    if not places:
        return build.constant(None)
    instructions = [instruction for _, _, instruction in places]

    def make(*functions: Any) -> Any:
        trace = None
        for function, at in zip(reversed(functions), reversed(instructions), strict=True):
            trace = types.TracebackType(trace, _native.new_frame(function, at.offset), at.offset, at.line)
        return trace

    return build.step(make, *[build.operand(function) for function, _, _ in places])


def _handled(build: Rebuilder, value: Handled) -> Operand:
    return build.step(lambda: sys.exc_info()[1])


def _super(build: Rebuilder, value: Super) -> Operand:
    kind = value.kind
    return build.step(lambda receiver: super(kind, receiver), build.operand(value.receiver))


def _partial(build: Rebuilder, value: Partial) -> Operand:
    names = tuple(value.keywords)

    def make(function: Any, args: Any, *keywords: Any) -> Any:
        return functools.partial(function, *args, **dict(zip(names, keywords, strict=True)))

    args = build.tuple_of(value.args)
    return build.step(make, build.operand(value.function), args, *map(build.operand, value.keywords.values()))


def _made_of(build: Rebuilder, value: DeferredString | DeferredScalar) -> Operand:
    return build.step(value.make, *map(build.operand, value.parts))


_MAKERS: dict[type, Callable[[Rebuilder, Any], Operand]] = {
    Tensor: _tensor,
    Distributed: lambda build, value: build.step(value.layout.whole, *map(build.operand, (value.local, *value.masks))),
    Sequence: _sequence,
    Deque: _deque,
    Mapping: _mapping,
    Set: _set,
    Slice: lambda build, value: build.step(slice, *map(build.operand, (value.start, value.stop, value.step))),
    DictView: _view,
    Proxy: _proxy,
    Iterator: _iterator,
    ZippedIterator: _joined,
    Method: lambda build, value: build.step(_bind, build.operand(value.function), build.operand(value.receiver)),
    Cell: _cell,
    Function: rebuild_function,
    Generator: rebuild_generator,
    Instance: _instance,
    Array: _array,
    Wrapper: _wrapper,
    Super: _super,
    Partial: _partial,
    Descriptor: rebuild_descriptor,
    WeakReference: rebuild_weak_reference,
    Object: lambda build, value: build.constant(value.value),
    DeferredString: _made_of,
    DeferredScalar: _made_of,
    OpenScalar: _made_of,
    ExceptionValue: _failure,
    TracebackValue: lambda build, value: _traceback(build, value.places),
    Handled: _handled,
}
