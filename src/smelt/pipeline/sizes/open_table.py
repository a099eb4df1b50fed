"""The flat table of a program in symbols: binding it to sizes fills in words instead of flattening a program.

    Allocate y[s0, 4], Launch k(x, y)   ── flattened once ──►   words with holes for s0, 4*s0, …, and where they are
    at s0 = 7                           ──►                     the same words, with 7, 28, … in the holes

A cache that grows has another length at every token, so that each token binds a program. Flattening relies on sizes as
the other stages do (`symbolic.symsize`): a table is used for sizes for which its guards hold. The arena is planned for
sizes rounded up, and again when the sizes outgrow that.
"""

import itertools
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from smelt import _native
from smelt.base.fast_dataclass import dataclass
from smelt.device.host_library import HOST
from smelt.fuse.memory_plan import Lives, plan
from smelt.ir.kernel import AnyKernel
from smelt.ir.program import Place, Program, arena_bytes
from smelt.ir.table.records import Layout, Tensor
from smelt.pipeline.sizes.runner_sizes import Reading, SizesWriter, section
from smelt.runtime.program.arenas import Arenas, SharedViews
from smelt.runtime.program.flatten import BuiltKernel, FlatTable, Flattener
from smelt.runtime.program.launch import Executable
from smelt.symbolic.evaluator import evaluator
from smelt.symbolic.expressions import Expression, ShapeEnv, SizeGuard, Symbol
from smelt.symbolic.symsize import SymSize, expression_of, varies

if TYPE_CHECKING:
    from smelt.codegen.build import CompiledKernel

Values = Mapping[Symbol, int]
Evaluate = Callable[[Values], Sequence[int]]
MakeLauncher = Callable[["CompiledKernel", Callable[[], AnyKernel]], BuiltKernel]
"""Makes what launches the code of a kernel, which is asked for if code for other addresses is needed."""

_ROUNDED_BITS = 3  # of a size that the arena is planned for: at most an eighth more than a quarter of it is unused


class _Unplanned(int):
    """In the place of an arena offset: that of the buffer with this name; without a name, the size of the arena."""

    name: str

    @classmethod
    def of(cls, name: str = "") -> "_Unplanned":
        unplanned = cls()
        unplanned.name = name
        return unplanned


@dataclass(slots=True)
class _Room:
    """An arena that was planned for certain sizes."""

    sizes: tuple[int, ...]
    offsets: dict[str, int]
    bytes: int
    words: "array[int]"  # of the table, with what was planned
    shared: SharedViews  # what the arena lends, but for views whose layouts vary


@dataclass(slots=True)
class OpenTable:
    """A table with holes."""

    facts: tuple[SizeGuard, ...]
    program: Program  # in symbols
    lives: Lives
    words: "array[int]"
    strings: bytes
    objects: tuple[Any, ...]
    holes: list[tuple[int, int]]  # a word, and the size that goes there
    hole_sizes: tuple[Expression, ...]
    planned_holes: list[tuple[int, str]]  # a word, and the buffer whose offset goes there
    sizes: Evaluate
    arena_sizes: Evaluate  # bytes of buffers in the arena
    arena_bytes: tuple[Expression, ...]  # the same
    arena_views: tuple[tuple[Tensor, str], ...]  # in symbols, and their buffers
    arena_devices: frozenset[torch.device]
    layouts: Evaluate  # the numbers of the views whose layouts vary, one view after another
    launchers: dict[str, int]  # by kernel: the place among the objects
    room: _Room | None = None
    is_for_all: bool = True  # until a runner for all sizes was refused

    def holds(self, values: Values) -> bool:
        return all(fact.holds(values.__getitem__) for fact in self.facts)

    def bind(
        self, values: Values, objects: Mapping[int, Any], keep_alive: Any, threads: int, arenas: Arenas
    ) -> Executable:
        """What runs the program for these sizes. `objects`: what is another for these, by its place."""
        numbers = self.sizes(values)
        room = self._room(values)
        words = room.words[:]
        for place, number in self.holes:
            words[place] = numbers[number]
        chosen = list(self.objects)
        for place, value in objects.items():
            chosen[place] = value
        flat = FlatTable(words.tobytes() + self.strings, tuple(chosen))

        def views() -> list[Tensor]:
            numbers = iter(self.layouts(values))
            return [
                _filled(view, room.offsets[name], numbers) if fixed is None else fixed
                for fixed, (view, name) in zip(room.shared.views, self.arena_views, strict=True)
            ]

        acquire = arenas.acquirer(room.bytes, self.arena_devices, views, room.shared)
        return Executable.of_table(flat, threads, keep_alive, arenas, "never", acquire)

    def for_all_sizes(
        self,
        values: Values,
        facts: Sequence[SizeGuard],
        limits: Mapping[Expression, int],
        readings: Sequence[Reading],
        kernel_sizes: Mapping[str, Sequence[Any]],
        objects: Mapping[int, Any],
        keep_alive: Any,
        threads: int,
        arenas: Arenas,
    ) -> Executable | None:
        """What runs the program for all sizes that fit the arena of these, if the facts hold; None if sizes decide more
        than a call can fill in. `limits`: the most that some sizes may be; `kernel_sizes`: of kernels that are given
        sizes; `objects`: what is another for these, by its place."""
        chosen = list(self.objects)
        for place, value in objects.items():
            chosen[place] = value
        launchers = [chosen[place] for place in self.launchers.values()]
        sizes = [size for each in kernel_sizes.values() for size in each]
        if any(type(each) is not _native.Launcher for each in launchers) or not all(map(_is_expression, sizes)):
            return None
        room = self._room(values)
        writer = SizesWriter(room.words, readings)
        writer.add_facts((*facts, *self.facts))
        writer.add_limits(limits)
        writer.add_limits(dict(zip(self.arena_bytes, room.sizes, strict=True)))
        if not all(writer.add_hole(word, self.hole_sizes[number]) for word, number in self.holes):
            return None
        inputs = len(self.program.inputs)
        constants = {name: inputs + place for place, (name, _) in enumerate(self.program.constants)}
        for name, each in kernel_sizes.items():
            writer.add_constant(constants[f"{name}_sizes"], each)
        first = section(room.words, "tensors").records - len(self.arena_views)
        varying = [first + place for place, (view, _) in enumerate(self.arena_views) if _varies(view)]
        numbers = self.sizes(values)
        words = room.words[:]
        for word, number in self.holes:
            words[word] = numbers[number]
        views = [
            view._replace(layout=Layout((), (), 0), arena_offset=room.offsets[name]) if fixed is None else fixed
            for fixed, (view, name) in zip(room.shared.views, self.arena_views, strict=True)
        ]
        acquire = arenas.acquirer(room.bytes, self.arena_devices, lambda: views, SharedViews(views))
        flat = FlatTable(words.tobytes() + self.strings, tuple(chosen))
        try:
            return Executable.of_table(flat, threads, keep_alive, arenas, "never", acquire, writer.complete(varying))
        except ValueError:  # a number that the runner relies on, or an expression that is too deep
            return None

    def _room(self, values: Values) -> _Room:
        """An arena in which the buffers have room for these sizes."""
        needed = self.arena_sizes(values)
        room = self.room
        if room is None or any(size > most for size, most in zip(needed, room.sizes, strict=True)):
            room = self._planned({symbol: rounded(value) for symbol, value in values.items()})
            if any(size > most for size, most in zip(needed, room.sizes, strict=True)):
                room = self._planned(values)  # a size that falls when another rises
            self.room = room
        return room

    def _planned(self, values: Values) -> _Room:
        def change(size: Any) -> Any:
            return size.evaluate(values.__getitem__) if type(size) is SymSize else size

        buffers = []
        for buffer in self.program.buffers:
            spec = buffer.spec
            shape, stride = tuple(map(change, spec.shape)), tuple(map(change, spec.stride))
            buffers.append(replace(buffer, spec=replace(spec, shape=shape, stride=stride), offset=0))
        planned = plan(replace(self.program, buffers=tuple(buffers)), self.lives)
        offsets = {buffer.name: buffer.offset for buffer in planned.buffers if buffer.place is Place.ARENA}
        views = [
            None if _varies(view) else view._replace(arena_offset=offsets[name]) for view, name in self.arena_views
        ]
        words = self.words[:]
        for place, name in self.planned_holes:
            words[place] = offsets[name] if name else planned.arena_bytes
        return _Room(tuple(self.arena_sizes(values)), offsets, planned.arena_bytes, words, SharedViews(views))


def _is_expression(size: Any) -> bool:
    return isinstance(size, Expression)


def _varies(view: Tensor) -> bool:
    shape, stride, offset = view.layout
    return any(type(size) is SymSize for size in (*shape, *stride, offset))


def rounded(value: int) -> int:
    """A size with few significant bits that is at least as large."""
    step = 1 << max(value.bit_length() - _ROUNDED_BITS, 3)
    return -(-value // step) * step


def _filled(view: Tensor, offset: int, numbers: Iterator[int]) -> Tensor:
    """A view with the next of the numbers in its layout."""
    rank = len(view.layout.shape)
    shape, stride = tuple(itertools.islice(numbers, rank)), tuple(itertools.islice(numbers, rank))
    return view._replace(layout=Layout(shape, stride, next(numbers)), arena_offset=offset)


def open_table(
    program: Program, lives: Lives, launchers: Mapping[str, BuiltKernel], shape_env: ShapeEnv, consuming: bool
) -> OpenTable | None:
    """The table of a program whose sizes are symbols of `shape_env`; None if sizes decide more than words.

    Buffers have the places that they have when they are planned; `launchers` are examples.
    """
    on_host = all(buffer.spec.device == HOST for buffer in program.buffers)
    if program.has_backward or not on_host:
        return None
    buffers = tuple(
        replace(buffer, offset=_Unplanned.of(buffer.name)) if buffer.place is Place.ARENA else buffer
        for buffer in program.buffers
    )
    flattener = Flattener(replace(program, buffers=buffers, arena_bytes=_Unplanned.of()), launchers, consuming)
    flattener.write()
    words, strings = flattener.writer.complete()
    objects = tuple(flattener.writer.objects)
    if any(map(_has_sizes, objects)):
        return None
    places = {id(launcher): name for name, launcher in launchers.items()}
    sizes: dict[Any, int] = {}
    holes: list[tuple[int, int]] = []
    planned_holes: list[tuple[int, str]] = []
    for place, word in enumerate(words):
        if type(word) is SymSize:
            expression = expression_of(word)
            if expression not in sizes:
                sizes[expression] = len(sizes)
            holes.append((place, sizes[expression]))
        elif isinstance(word, _Unplanned):
            planned_holes.append((place, word.name))
        else:
            continue
        words[place] = 0
    in_arena = [arena_bytes(buffer) for buffer in program.buffers if buffer.place is Place.ARENA]
    varying = {expression_of(size): None for size in in_arena if type(size) is SymSize}
    views = [(Tensor(view.buffer, spec.dtype, spec.device, Layout(view.shape, view.stride, view.offset)), view.buffer)
             for view in flattener.arena_views for spec in (flattener.buffers[view.buffer].spec,)]  # fmt: skip
    varying_layouts = [view.layout for view, _ in views if _varies(view)]
    numbers = [size for shape, stride, offset in varying_layouts for size in (*shape, *stride, offset)]
    return OpenTable(
        facts=tuple(shape_env.guards),
        program=program,
        lives=lives,
        words=array("q", words),
        strings=strings,
        objects=objects,
        holes=holes,
        hole_sizes=tuple(sizes),
        planned_holes=planned_holes,
        sizes=evaluator(list(sizes)),
        arena_sizes=evaluator(list(varying)),
        arena_bytes=tuple(varying),
        arena_views=tuple(views),
        arena_devices=frozenset(view.device for view, _ in views),
        layouts=evaluator([expression_of(size) for size in numbers]),
        launchers={places[id(each)]: place for place, each in enumerate(objects) if id(each) in places},
    )


def _has_sizes(value: Any) -> bool:
    """Whether an argument that is kept as an object depends on sizes."""
    if isinstance(value, tuple | list):
        return any(map(_has_sizes, value))
    return not isinstance(value, torch.Tensor) and varies(value)
