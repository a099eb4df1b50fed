"""Direct convolutions without packing: sums of few products whose result runs along one factor, such as depthwise ones.

    y[c, oh, ow] = Σ w[c, kh, kw] · x[c, oh + kh - 1, ow + kw - 1]
    → for each c: what x has for a few rows of y is copied, with zeros round it; then vectors along ow, two rows of y
      at a time, all taps written out: each vector of x is read once for all taps it is part of, w is in registers
"""

from dataclasses import replace

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.cpu.addresses import Workspace
from smelt.codegen.cpu.entry_points import PART, KernelFunctions
from smelt.codegen.cpu.products.epilogue import Epilogue, epilogue_lanes
from smelt.codegen.cpu.products.micro_kernel import vectors_of
from smelt.codegen.cpu.products.problem import QUANTIZED, Problem, problem_of
from smelt.codegen.cpu.products.windows import Window, start, window_of
from smelt.codegen.cpu.schedule import idempotent
from smelt.codegen.generator import EntryCode
from smelt.codegen.loops.arrays import Array, positions, spans
from smelt.codegen.loops.builder import Builder
from smelt.device import Target
from smelt.ir.kernel import Axis, Factor
from smelt.ir.loops import Value
from smelt.symbolic.shapes import Size, product
from smelt.symbolic.symsize import greater, hint, is_symsize, known_equal, lesser

_TAPS = 128  # of a sum, which are all written out
_WRITTEN = 512  # vectors of products that are written out
_IMAGE_BYTES = 24 * 1024  # of a copy: it stays in the first cache
_LARGE_BYTES = 1 << 20  # of a copy: from there on it is to be of what is read
_UNREAD = 8  # positions that are copied for each that is read
_NEAR = 8  # positions from an output's window to the next one's
_GRAIN = 1 << 16  # multiplications that are worth a thread


@dataclass(frozen=True, slots=True)
class DirectConvolution:
    """What moves how: `down` and `along` are the windows of the image, `outer` every other axis of the result."""

    problem: Problem
    image: Factor  # what the result runs along
    weights: Factor  # the same for all of a row
    outer: tuple[Axis, ...]
    down: Window
    along: Window
    lanes: int  # of the epilogue
    width: int  # of a vector
    rows: int  # of the result at a time
    block: int  # of the result for one copy

    @property
    def taps(self) -> int:
        return self.down.taps * self.along.taps

    @property
    def pitch(self) -> int:
        """Elements of one phase of a copied row: every `step`th input, so that vectors find theirs side by side."""
        return -(-self.along.reach(self.along.outputs) // self.along.step) + self.width

    @property
    def line(self) -> int:
        return self.pitch * self.along.step

    @property
    def image_size(self) -> int:
        return self.down.reach(self.block) * self.line

    @property
    def most_read(self) -> int:
        """How many elements of a copy are read, if each is for one product alone."""
        return self.block * self.along.outputs * self.taps

    @property
    def blocks(self) -> int:
        return -(-self.down.outputs // self.block)

    @property
    def extent(self) -> Size:
        """What threads share out."""
        return self.blocks * product(axis.size for axis in self.outer)

    @property
    def workspace(self) -> Workspace:
        lengths = {"image": self.image_size, "weights": self.taps + self.width}
        return Workspace.of({name: (length, self.problem.dtype) for name, length in lengths.items()})


def direct_convolution(problem: Problem, target: Target) -> DirectConvolution | str:
    """How a product is computed directly, or why not."""
    kernel, contract = problem.kernel, problem.contract
    if problem.is_quantized:
        return QUANTIZED
    if not kernel.cols or problem.dtype not in (torch.float32, torch.float64):
        return "there is nothing to run along, or sums are not of floating point"
    across = kernel.cols[-1]
    rest = tuple(axis for axis in kernel.rows + kernel.cols if axis is not across)
    problem = problem_of(replace(kernel, rows=rest, cols=(across,)))
    kernel, contract = problem.kernel, problem.contract
    across = kernel.cols[-1]
    weights, image = contract.factors
    if weights.bounds or across.name in weights.index.axes or across.name not in image.index.axes:
        return "not one factor alone runs along the last axis, or the other has bounds"
    if is_symsize(problem.depth) or is_symsize(across.size):
        return "the length of its rows varies"
    if not 0 < problem.depth <= _TAPS or known_equal(problem.batches * problem.rows * problem.cols, 0):
        return "there are more products than are written out, or none"
    if any(axis.name not in image.index.axes for axis in kernel.rows):
        return "the factor that the result runs along is used by several rows"
    windows = _windows(problem, image, weights)
    if windows is None:
        return "bounds are not those of two windows"
    down, along = windows
    outer = tuple(axis for axis in kernel.rows if axis.name != down.output)
    width = target.vector_bits // (8 * problem.dtype.itemsize)
    lanes = epilogue_lanes(problem, target, 4 * width)
    rows = 2 if down.outputs > 1 and idempotent(problem.epilogue) else 1
    while rows > 1 and rows * max(1, lanes // width) * problem.depth > _WRITTEN:
        rows //= 2
    plan = DirectConvolution(problem, image, weights, outer, down, along, lanes, min(width, lanes), rows, down.outputs)
    most = _IMAGE_BYTES // problem.dtype.itemsize
    while plan.image_size > most and plan.block > rows:
        plan = replace(plan, block=max(rows, plan.block // 2))
    if plan.image_size * problem.dtype.itemsize > _LARGE_BYTES and plan.image_size > _UNREAD * plan.most_read:
        return "taps are so far from each other that most of what is copied would not be read"
    return plan


def _windows(problem: Problem, image: Factor, weights: Factor) -> tuple[Window, Window] | None:
    """The window of each axis summed over: one may move with the columns, one with an axis of rows."""
    kernel = problem.kernel
    across, ks = kernel.cols[-1], list(problem.contract.axes)
    if len(ks) > 2 or any(not image.index.stride(axis.name) for axis in ks):
        return None
    free = [axis for axis in kernel.rows if axis.name not in weights.index.axes]
    bounded = {k.name: {each for at, _ in image.bounds if k.name in at.axes for each in at.axes} for k in ks}
    along_k = next((k for k in ks if across.name in bounded[k.name]), None)
    loose = [k for k in ks if bounded[k.name] <= {k.name} and k is not along_k]
    if along_k is None and loose:
        along_k = min(loose, key=lambda k: abs(int(image.index.stride(k.name))))
    others = [k for k in ks if k is not along_k]
    if len(others) > 1:
        return None
    down_k = others[0] if others else None
    named = bounded[down_k.name] if down_k else set()
    rows = [axis for axis in free if axis.name in named]
    along = window_of(image, along_k, across)
    down = window_of(image, down_k, rows[0] if rows else None)
    if free and not named:  # no bounds say what it moves with: an axis that is as near as strides of windows are
        near = window_of(image, down_k, free[-1])
        down = near if near is not None and near.step <= _NEAR else down
    if along is None or down is None or not 1 <= along.step <= _NEAR:
        return None
    seen = sum(1 for window in (along, down) if window.extent is not None)
    always = sum(1 for at, extent in image.bounds if not at.axes and 0 <= at.offset < extent)
    if seen + always != len(image.bounds):
        return None
    return down, along


def why_not(problem: Problem, target: Target) -> str | None:
    plan = direct_convolution(problem, target)
    return plan if isinstance(plan, str) else None


def cycles(problem: Problem, target: Target) -> float:
    plan = direct_convolution(problem, target)
    assert isinstance(plan, DirectConvolution)
    outer = hint(plan.extent) / plan.blocks
    width = -(-plan.along.outputs // plan.lanes) * plan.lanes
    products = plan.down.outputs * width * plan.taps / (2 * plan.width) * (1.2 if plan.rows > 1 else 1.8)
    copied = plan.blocks * (plan.image_size * (1.5 if plan.along.step == 1 else 3) / plan.width + 4 * plan.taps)
    return outer * (products + copied + plan.down.outputs * width)


def write(code: KernelFunctions, problem: Problem) -> EntryCode:
    plan = direct_convolution(problem, code.target)
    assert isinstance(plan, DirectConvolution)
    code.write("part", PART, lambda b: _Direct(b, plan).write())
    most = lesser(plan.extent, greater(1, problem.multiplications // _GRAIN))
    return code.end(most, plan.extent, plan.workspace.size)


class _Direct:
    """The part that a thread runs, being written, with an epilogue for each row at a time."""

    def __init__(self, b: Builder, plan: DirectConvolution) -> None:
        self.b, self.plan, self.dtype = b, plan, plan.problem.dtype
        self.epilogues = [Epilogue(b, plan.problem, plan.lanes) for _ in range(plan.rows)]
        self.copied, self.weights = (plan.workspace.array(b, name) for name in ("image", "weights"))

    def write(self) -> None:
        b, plan = self.b, self.plan
        _, _, first, last, _ = PART
        self._fill(self.copied, plan.image_size)
        with b.loop(first, last, guard=True) as unit:
            number, outer = b.const("i64", 0), unit
            if plan.blocks > 1:
                number, outer = b.urem(unit, plan.blocks), b.udiv(unit, plan.blocks)
            self.outer = positions(b, plan.outer, outer)
            for epilogue in self.epilogues:
                epilogue.axes.update(self.outer)
            top = b.mul(number, plan.block)
            if idempotent(plan.problem.epilogue):  # the last block is as long as the others
                top = b.smin(top, plan.down.outputs - plan.block)
            rows = b.smin(b.sub(plan.down.outputs, top), plan.block)
            self._copy_image(top, rows)
            self._copy_weights()
            self._rows(top, rows)

    def _fill(self, array: Array, size: int) -> None:
        """Zeros."""
        for first, last, lanes in spans(size, self.plan.width):
            with self.b.loop(first, last, lanes) as place:
                array.store(array.zero(lanes), place)

    def _matrix(self, factor: Factor, offset: Size) -> Array:
        """Where a factor begins, at the axes outside of windows."""
        array = self.epilogues[0].at.arrays[factor.buffer]
        return array.at_index(replace(factor.index, offset=offset), self.outer)

    def _copy_image(self, top: Value, rows: Value) -> None:
        """The rows that a block reaches; round them are zeros, which stay from one block to the next."""
        b, plan, down = self.b, self.plan, self.plan.down
        count = b.add(b.mul(b.sub(rows, 1), down.step), down.reach(1))
        image = self._matrix(plan.image, start(plan.image.index, (plan.down, plan.along)))
        before = b.add(b.mul(top, down.step), down.first)
        with b.loop(0, count) as number:
            row, to = b.add(before, number), self.copied.at(b.mul(number, plan.line))

            def inside() -> None:
                self._copy_row(image.at(b.mul(row, down.apart)), to)

            if down.extent is None:
                inside()
            else:
                b.choice(b.icmp("ult", row, down.extent), inside, lambda: self._fill(to, plan.line))

    def _copy_row(self, source: Array, to: Array) -> None:
        along = self.plan.along
        reach = along.reach(along.outputs)
        low = max(0, -along.first) if along.extent is not None else 0
        high = min(reach, along.extent - along.first) if along.extent is not None else reach
        for phase in range(along.step):
            first = max(0, -(-(low - phase) // along.step))
            last = -(-(high - phase) // along.step)
            if last > first:
                place = source.at((phase + along.first) * along.apart)
                self._copy_phase(place, to.at(phase * self.plan.pitch), first, last)

    def _copy_phase(self, source: Array, to: Array, first: int, last: int) -> None:
        """Every `step`th element: in vectors as far as those do not reach past the last one."""
        b, width, step = self.b, self.plan.width, self.plan.along.step * self.plan.along.apart
        # A vector that is read whole reaches over elements of other phases, but not over the last of its own.
        vectors = max(0, (last - first) // width - (step > 1)) if 1 <= step <= 2 and width > 1 else 0
        if vectors:
            with b.loop(first, first + vectors * width, width) as place:
                elements = source.load_as(self.dtype, b.mul(place, step), width * step)
                to.store(b.permute(elements, range(0, width * step, step)) if step > 1 else elements, place)
        with b.loop(first + vectors * width, last, guard=True) as place:
            to.store(source.load_as(self.dtype, b.mul(place, step)), place)

    # The weights.

    def _copy_weights(self) -> None:
        plan, index = self.plan, self.plan.weights.index
        matrix = self._matrix(plan.weights, index.offset)
        taps = [(down, along) for down in range(plan.down.taps) for along in range(plan.along.taps)]
        for number, (down, along) in enumerate(taps):
            place = down * index.stride(plan.down.k) + along * index.stride(plan.along.k)
            self.weights.store(matrix.load_as(self.dtype, place), number)

    def _held_weights(self) -> list[Value]:
        """Vectors of them, as far as there are registers to keep them in."""
        plan, target, lanes = self.plan, self.b.target, self.plan.width
        if not target.fma_by_lane or lanes < 2 or -(-plan.taps // lanes) > target.vector_registers // 2 - 2:
            return []
        return [self.weights.load(first, lanes) for first in range(0, plan.taps, lanes)]

    def _weight(self, held: list[Value], number: int) -> Value:
        b, lanes = self.b, self.plan.width
        if not held:
            return b.splat(self.weights.load(number), lanes)
        return b.permute(held[number // lanes], [number % lanes] * lanes)

    # The result.

    def _rows(self, top: Value, rows: Value) -> None:
        """A few rows of the result at a time; the last few overlap those before them."""
        b, plan = self.b, self.plan
        with b.loop(0, rows, plan.rows) as first:
            row = b.smin(first, b.sub(rows, plan.rows)) if plan.rows > 1 else first
            for number, epilogue in enumerate(self.epilogues):
                if plan.down.output:
                    epilogue.axes[plan.down.output] = b.add(b.add(top, row), number)
                epilogue.begin_row()
            held = self._held_weights()
            line = self.copied.at(b.mul(row, plan.down.step * plan.line))

            def point(column: Value, lanes: int, mask: Value | None) -> None:
                for epilogue, sums in zip(self.epilogues, self._sums(line.at(column), held), strict=True):
                    while len(sums) > 1:
                        pairs = zip(sums[::2], sums[1::2], strict=True)
                        sums = [b.permute(low, range(2 * low.lanes), high) for low, high in pairs]
                    epilogue.write_sums(column, sums[0], mask)

            width = plan.along.outputs
            self.epilogues[0].write_row(b.const("i64", width), width % plan.lanes, point, least=width, masks=True)

    def _sums(self, first: Array, held: list[Value]) -> list[list[Value]]:
        """Of each row, as vectors. A vector of the image is read once for all rows and taps that it is a part of."""
        b, plan = self.b, self.plan
        down, along, count = plan.down, plan.along, plan.lanes // plan.width
        sums: list[list[Value]] = [[] for _ in range(plan.rows)]
        for place in range(down.reach(plan.rows)):
            users = [
                (row, tap)
                for row in range(plan.rows)
                for tap in range(down.taps)
                if down.step * row + down.place(tap) == place
            ]
            for tap in range(along.taps) if users else ():
                phase, further = along.place(tap) % along.step, along.place(tap) // along.step
                read = vectors_of(first.at(place * plan.line + phase * plan.pitch + further), count, plan.width)
                for row, other in users:
                    weight = self._weight(held, other * along.taps + tap)
                    if sums[row]:
                        sums[row] = [b.fma(one, weight, total) for one, total in zip(read, sums[row], strict=True)]
                    else:
                        sums[row] = [b.fmul(one, weight) for one in read]
        return sums
