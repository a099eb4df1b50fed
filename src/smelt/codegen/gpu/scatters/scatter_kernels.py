"""Turns scatters into kernels that a GPU runs in any order, with the results of running them in order.

    whole numbers, bools, max, min     any order is right: each point by an atomic operation
    the last one stays                 the last point of each place is found by an atomic maximum of their numbers;
                                       then only these store
    floats that may be added in any order   as well; PyTorch's own `scatter_add` and `index_add` do so on GPUs
    sums and products of floats        points are sorted by their places, stably; then points with the same place
                                       are reduced, neighbours first (`run_reductions`)

An *event* chooses a place: a token of an embedding's gradient, not each of its numbers. Axes along which the place is
the same and results are separate are *inner*; the others number the events. A *key* numbers the places.

    rows(i:4096) cols(j:768)   scatter sum y[j] by 768*p below 32000 = v     events i, inner j, key p

The order of additions never differs from run to run. A sum into a narrower buffer is rounded once, when it is complete.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.axes import dense_index, strides_keep_apart
from smelt.codegen.gpu.kernel_slices import effects, exchanged, is_pure, leading_to, sliced, with_buffers
from smelt.ir.check_kernel import operands, result, value_dtypes
from smelt.ir.kernel import (
    Access,
    Axis,
    Buffer,
    Cast,
    Compute,
    Const,
    Gather,
    Index,
    Instruction,
    Kernel,
    Load,
    Position,
    Role,
    Scatter,
    Stage,
    Store,
)
from smelt.symbolic.shapes import Size, product
from smelt.symbolic.symsize import hint, is_symsize, known_at_least, known_equal

_INT32 = 1 << 31


def split_scatters(kernel: Kernel) -> tuple[Kernel | None, list[Kernel]]:
    """The kernel without its scatters, and a kernel for each scatter, to run after it: one loop over all points, in
    order."""
    apart: list[Kernel] = []
    for stage in kernel.stages:
        for scatter in stage.body:
            if not isinstance(scatter, Scatter):
                continue
            part = sliced(kernel, [scatter], name=f"{kernel.name}.{scatter.buffer}")
            kept: list[Instruction] = []
            extra: list[Buffer] = []
            axes = kernel.rows + (kernel.cols if stage.loop else ())
            if not is_pure(kernel, part):
                part, kept, extra = _from_staged(kernel, scatter, axes)
            kernel = exchanged(kernel, scatter, kept, extra)
            apart.append(replace(part, rows=(), cols=axes, stages=(Stage(True, part.instructions()),)))
    if not apart:
        return kernel, []
    rest = effects(kernel)
    return sliced(kernel, rest) if rest else None, apart


def _from_staged(
    kernel: Kernel, scatter: Scatter, axes: Sequence[Axis]
) -> tuple[Kernel, list[Instruction], list[Buffer]]:
    """A scatter of operands staged in the workspace, and the instructions that stage them. Values that depend only on
    inputs are recomputed."""
    dtypes = value_dtypes(kernel)
    size, index = product(axis.size for axis in axes), dense_index(axes)
    code: list[Instruction] = []
    kept: list[Instruction] = []
    staged: list[Buffer] = []
    for name in dict.fromkeys(operands(scatter)):
        part = sliced(kernel, [i for i in kernel.instructions() if result(i) == name])
        if is_pure(kernel, part):
            code += [i for i in part.instructions() if i not in code and result(i)]
            continue
        staged.append(Buffer(f"{scatter.buffer}.{name}", dtypes[name], size, Role.OUTPUT))
        code.append(Load(name, staged[-1].name, index))
        kept.append(Store(staged[-1].name, index, name))
    stages = [Stage(True, (*code, scatter))]
    return with_buffers(kernel, stages, staged, f"{kernel.name}.{scatter.buffer}"), kept, staged


@dataclass(frozen=True, slots=True)
class Places:
    """Where a scatter's points go: element `offset + step * key + Σ stride · inner`. Keys are below `count`; an event
    that leaves nothing has `count` for its key."""

    kernel: Kernel  # one loop over all points
    scatter: Scatter
    events: tuple[Axis, ...]
    inner: tuple[Axis, ...]
    offset: Size
    step: Size
    count: Size

    @property
    def event_count(self) -> Size:
        return product(axis.size for axis in self.events)

    @property
    def dtype(self) -> torch.dtype:
        """Of keys and of events' numbers."""
        if is_symsize(self.count) or is_symsize(self.event_count):
            return torch.int64
        return torch.int32 if max(self.count, self.event_count) < _INT32 else torch.int64

    def inner_index(self) -> Index:
        """How far inside of its place a point is."""
        names = [axis.name for axis in self.inner]
        return Index(tuple(term for term in self.scatter.index.terms if term[0] in names))

    def key_code(self) -> tuple[list[Instruction], str]:
        """What computes an event's key, as an i64."""
        scatter, code = self.scatter, leading_to(self.kernel.instructions(), [name for name, _, _ in self.scatter.by])
        names = [axis.name for axis in self.events]
        terms = [(name, stride) for name, stride in scatter.index.terms if name in names]
        index = Index(tuple((name, _parted(stride, self.step)) for name, stride in terms), self._lowest())
        code += [Position("key.0", index), Const("key.zero", 0, torch.int64)]
        code.append(Const("key.none", self.count, torch.int64))
        key, inside = "key.0", ""
        for number, (place, stride, extent) in enumerate(scatter.by, 1):
            name = f"key.{number}"
            code += [
                Const(f"{name}.extent", extent, torch.int64),
                Const(f"{name}.stride", _parted(stride, self.step), torch.int64),
                Compute(f"{name}.low", "ge", (place, "key.zero"), torch.bool),
                Compute(f"{name}.high", "lt", (place, f"{name}.extent"), torch.bool),
                Compute(f"{name}.inside", "and", (f"{name}.low", f"{name}.high"), torch.bool),
                Compute(f"{name}.term", "mul", (place, f"{name}.stride"), torch.int64),
                Compute(name, "add", (key, f"{name}.term"), torch.int64),
            ]
            if inside:
                code.append(Compute(f"{name}.all", "and", (inside, f"{name}.inside"), torch.bool))
            key, inside = name, f"{name}.all" if inside else f"{name}.inside"
        code.append(Compute("key", "where", (inside, key, "key.none"), torch.int64))
        return code, "key"

    def _lowest(self) -> Size:
        """The offset that makes all keys nonnegative."""
        sizes = {axis.name: axis.size for axis in self.events}
        steps = [(stride, sizes[name]) for name, stride in self.scatter.index.terms if name in sizes]
        steps += [(stride, extent) for _, stride, extent in self.scatter.by]
        return sum((-_parted(stride, self.step) * (size - 1) for stride, size in steps if hint(stride) < 0), 0)

    def value_code(self) -> list[Instruction]:
        return leading_to(self.kernel.instructions(), [self.scatter.value])


def _parted(stride: Size, step: Size) -> Size:
    return 1 if stride is step else stride // step


def places_of(kernel: Kernel) -> Places:
    """The places of a kernel returned by `split_scatters`."""
    scatter = next(i for i in kernel.instructions() if isinstance(i, Scatter))
    code = leading_to(kernel.instructions(), [name for name, _, _ in scatter.by])
    choosing = {name for i in code if isinstance(i, Access | Position) for name in i.index.axes}
    inner = tuple(axis for axis in kernel.cols if axis.name in scatter.index.axes and axis.name not in choosing)
    places = _places(kernel, scatter, inner)
    return places if _keeps_apart(places) else _places(kernel, scatter, ())


def _places(kernel: Kernel, scatter: Scatter, inner: tuple[Axis, ...]) -> Places:
    events = tuple(axis for axis in kernel.cols if axis not in inner)
    steps = [(scatter.index.stride(axis.name), axis.size) for axis in events if axis.name in scatter.index.axes]
    steps += [(stride, extent) for _, stride, extent in scatter.by]
    step: Size = 1
    if len(steps) == 1 and known_at_least(steps[0][0], 1):
        step = steps[0][0]
    elif not any(is_symsize(stride) for stride, _ in steps):
        step = math.gcd(*(stride for stride, _ in steps))
    count: Size = 1
    for stride, size in steps:
        count = count + abs(_parted(stride, step)) * (size - 1)
    places = Places(kernel, scatter, events, inner, scatter.index.offset, step, count)
    return replace(places, offset=scatter.index.offset - places._lowest() * step)


def _keeps_apart(places: Places) -> bool:
    """Whether an element tells its key and where inside it is."""
    steps = [(abs(places.scatter.index.stride(axis.name)), axis.size) for axis in places.inner]
    steps.append((places.step, places.count))
    return strides_keep_apart((step, size) for step, size in steps if not known_equal(size, 1))


def any_order_is_right(places: Places) -> bool:
    """Whether points may be taken in any order, each by itself."""
    scatter = places.scatter
    if scatter.unordered or known_equal(places.event_count, 1):
        return True
    if scatter.op in ("sum", "prod"):
        return not value_dtypes(places.kernel)[scatter.value].is_floating_point
    return scatter.op is not None


# The last one stays.


def last_ones(places: Places) -> list[Kernel]:
    """Three kernels: nobody is last; the last of each key is found; these store."""
    kernel, scatter, dtype = places.kernel, places.scatter, places.dtype
    table = Buffer(f"{scatter.buffer}.last", dtype, places.count, Role.OUTPUT)
    code, key = places.key_code()
    by = ((key, 1, places.count),)
    number: list[Instruction] = [Position("event", dense_index(places.events)), Cast("event.number", "event", dtype)]
    nobody: list[Instruction] = [Const("nobody", -1, dtype), Scatter(table.name, None, Index(), by, "nobody")]
    latest: list[Instruction] = [*number, Scatter(table.name, "max", Index(), by, "event.number")]
    (place, stride, extent), *others = scatter.by
    chosen: list[Instruction] = [
        *number,
        Gather("last", table.name, Index(), by),
        Compute("is.last", "eq", ("last", "event.number"), torch.bool),
        Const("nowhere", -1, torch.int64),
        Compute("last.place", "where", ("is.last", place, "nowhere"), torch.int64),
        replace(scatter, by=(("last.place", stride, extent), *others)),
    ]
    whole = [i for i in kernel.instructions() if i is not scatter]
    more = [i for i in code if i not in whole]
    return [
        loop(kernel, places.events, [*code, *nobody], [table], "nobody"),
        loop(kernel, places.events, [*code, *latest], [table], "last"),
        loop(kernel, kernel.cols, [*whole, *more, *chosen], [table], "store"),
    ]


def loop(
    kernel: Kernel, axes: Sequence[Axis], body: Sequence[Instruction], extra: Sequence[Buffer], name: str
) -> Kernel:
    """One loop over some axes, with those buffers that it touches."""
    kernel = replace(kernel, rows=(), cols=tuple(axes))
    return with_buffers(kernel, [Stage(True, tuple(body))], extra, f"{kernel.name}.{name}")
