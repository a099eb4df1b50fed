"""The flat table of a program in symbols: binding it to sizes fills in words instead of flattening a program.

    Allocate y[s0, 4], Launch k(x, y)   ── flattened once ──►   words with holes for s0, 4*s0, …, and where they are
    at s0 = 7                           ──►                     the same words, with 7, 28, … in the holes

A cache that grows has another length at every token, so that each token binds a program. Flattening relies on sizes as
the other stages do (`symbolic.symsize`): a table is used for sizes for which its guards hold. The arena is planned for
sizes rounded up, and again when the sizes outgrow that.
"""

from array import array
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.device.host_library import HOST
from smelt.fuse.memory_plan import Lives, plan
from smelt.ir.kernel import AnyKernel
from smelt.ir.program import Place, Program, arena_bytes
from smelt.ir.table.records import Layout, Tensor
from smelt.runtime.program.arenas import Arenas
from smelt.runtime.program.flatten import BuiltKernel, FlatTable, Flattener
from smelt.runtime.program.launch import Executable
from smelt.symbolic.expressions import ShapeEnv, SizeGuard, Symbol
from smelt.symbolic.symsize import SymSize, expression_of, varies

if TYPE_CHECKING:
    from smelt.codegen.build import CompiledKernel

Values = Mapping[Symbol, int]
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
    views: list[Tensor | None]  # what the arena lends; None: its layout varies


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
    planned_holes: list[tuple[int, str]]  # a word, and the buffer whose offset goes there
    sizes: tuple[SymSize, ...]
    arena_sizes: tuple[SymSize, ...]  # bytes of buffers in the arena
    arena_views: tuple[tuple[Tensor, str], ...]  # in symbols, and their buffers
    launchers: dict[str, int]  # by kernel: the place among the objects
    room: _Room | None = None

    def holds(self, values: Values) -> bool:
        return all(fact.holds(values.__getitem__) for fact in self.facts)

    def bind(
        self, values: Values, objects: Mapping[int, Any], keep_alive: Any, threads: int, arenas: Arenas
    ) -> Executable:
        """What runs the program for these sizes. `objects`: what is another for these, by its place."""
        numbers = [size.evaluate(values.__getitem__) for size in self.sizes]
        room = self._room(values)
        words = self.words[:]
        for place, number in self.holes:
            words[place] = numbers[number]
        for place, name in self.planned_holes:
            words[place] = room.offsets[name] if name else room.bytes
        chosen = list(self.objects)
        for place, value in objects.items():
            chosen[place] = value
        flat = FlatTable(words.tobytes() + self.strings, tuple(chosen))
        known = dict(zip(map(id, self.sizes), numbers, strict=True))

        def views() -> list[Tensor]:
            return [
                _filled(view, room.offsets[name], known, values) if fixed is None else fixed
                for fixed, (view, name) in zip(room.views, self.arena_views, strict=True)
            ]

        return Executable.of_table(flat, threads, keep_alive, arenas, "never", views)

    def _room(self, values: Values) -> _Room:
        """An arena in which the buffers have room for these sizes."""
        needed = [size.evaluate(values.__getitem__) for size in self.arena_sizes]
        room = self.room
        if room is None or any(size > most for size, most in zip(needed, room.sizes, strict=True)):
            room = self._planned({symbol: _rounded(value) for symbol, value in values.items()})
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
        return _Room(tuple(map(change, self.arena_sizes)), offsets, planned.arena_bytes, views)


def _varies(view: Tensor) -> bool:
    shape, stride, offset = view.layout
    return any(type(size) is SymSize for size in (*shape, *stride, offset))


def _rounded(value: int) -> int:
    """A size with few significant bits that is at least as large."""
    step = 1 << max(value.bit_length() - _ROUNDED_BITS, 3)
    return -(-value // step) * step


def _filled(view: Tensor, offset: int, known: dict[int, int], values: Values) -> Tensor:
    def change(size: Any) -> int:
        if type(size) is not SymSize:
            return int(size)
        number = known.get(id(size))
        return size.evaluate(values.__getitem__) if number is None else number

    shape, stride, begin = view.layout
    layout = Layout(tuple(map(change, shape)), tuple(map(change, stride)), change(begin))
    return view._replace(layout=layout, arena_offset=offset)


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
    kept: list[SymSize] = []
    holes: list[tuple[int, int]] = []
    planned_holes: list[tuple[int, str]] = []
    for place, word in enumerate(words):
        if type(word) is SymSize:
            expression = expression_of(word)
            if expression not in sizes:
                sizes[expression] = len(sizes)
                kept.append(word)
            holes.append((place, sizes[expression]))
        elif isinstance(word, _Unplanned):
            planned_holes.append((place, word.name))
        else:
            continue
        words[place] = 0
    in_arena = [arena_bytes(buffer) for buffer in program.buffers if buffer.place is Place.ARENA]
    varying = {expression_of(size): size for size in in_arena if type(size) is SymSize}
    views = [(Tensor(view.buffer, spec.dtype, spec.device, Layout(view.shape, view.stride, view.offset)), view.buffer)
             for view in flattener.arena_views for spec in (flattener.buffers[view.buffer].spec,)]  # fmt: skip
    return OpenTable(
        facts=tuple(shape_env.guards),
        program=program,
        lives=lives,
        words=array("q", words),
        strings=strings,
        objects=objects,
        holes=holes,
        planned_holes=planned_holes,
        sizes=tuple(kept),
        arena_sizes=tuple(varying.values()),
        arena_views=tuple(views),
        launchers={places[id(each)]: place for place, each in enumerate(objects) if id(each) in places},
    )


def _has_sizes(value: Any) -> bool:
    """Whether an argument that is kept as an object depends on sizes."""
    if isinstance(value, tuple | list):
        return any(map(_has_sizes, value))
    return not isinstance(value, torch.Tensor) and varies(value)
