"""Random products as kernels: `product_of(7)` is the same kernel every time.

Matrix products with batches, several axes of each kind, transposed, strided, overlapping, reversed and broadcast
factors; convolutions of one to three dimensions; sizes odd, one and zero; padding by bounds; and epilogues.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import torch

from smelt.ir.check_kernel import SMALL_INTEGERS, factor_range, index_range
from smelt.ir.kernel import (
    Axis,
    Buffer,
    Cast,
    Compute,
    Const,
    Contract,
    Factor,
    Index,
    Instruction,
    Kernel,
    Load,
    Position,
    Role,
    Stage,
    Store,
)
from smelt.symbolic.expressions import SMALLEST, ShapeEnv
from smelt.symbolic.symsize import hint, sym_size

F32, F64, BF16, F16 = torch.float32, torch.float64, torch.bfloat16, torch.float16
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15, 16, 17, 20, 24, 25, 31, 32, 33, 40, 48, 63, 64, 65)
LARGE = (96, 100, 127, 128, 129, 200, 255, 256, 257, 384, 500, 513, 1030, 2049)
MOST_POINTS, MOST_PRODUCTS = 40_000, 1_500_000


def product_of(seed: int, shape_env: ShapeEnv | None = None) -> Kernel:
    """The kernel of a number. With a `ShapeEnv`, about half of its sizes are symbols of that one."""
    chance = random.Random(seed)
    if chance.random() < 0.65:
        return _Maker(chance, f"product_{seed}", shape_env).matrix_product()
    return _Maker(chance, f"convolution_{seed}", shape_env).convolution()


def _index(strides: dict[str, int], order: Sequence[Axis], offset: int = 0) -> Index:
    return Index(tuple((axis.name, strides[axis.name]) for axis in order if strides.get(axis.name)), offset)


class _Maker:
    """A kernel in the making."""

    def __init__(self, chance: random.Random, name: str, shape_env: ShapeEnv | None) -> None:
        self.chance = chance
        self.name = name
        self.shape_env, self.choice, self.integers = shape_env, random.Random(name), random.Random(f"{name} integers")
        self.narrow = chance.choice((F32, F32, F32, F32, F64, F64, BF16, F16))
        self.dtype = F64 if self.narrow is F64 else F32
        self.rows: tuple[Axis, ...] = ()
        self.cols: tuple[Axis, ...] = ()
        self.sums: tuple[Axis, ...] = ()
        self.buffers: list[Buffer] = []
        self.body: list[Instruction] = []

    # Chances.

    def often(self, share: float) -> bool:
        return self.chance.random() < share

    def size(self) -> int:
        return self.chance.choice(LARGE if self.often(0.1) else SIZES)

    def axes(self, letter: str, *shares: float) -> list[Axis]:
        """As many as the shares of 0, 1, 2, … say."""
        count = self.chance.choices(range(len(shares)), shares)[0]
        return [Axis(f"{letter}{number}", self.size()) for number in range(count)]

    def varied(self, size: int) -> int:
        if self.shape_env is None or size < SMALLEST or self.choice.random() < 0.5:
            return size
        symbol = self.shape_env.symbol(f"s{len(self.shape_env.symbols)}", size)
        return sym_size(self.shape_env, symbol)  # type: ignore[no-any-return]

    # Layouts.

    def strides(self, axes: Sequence[Axis], usual: bool = True, *, apart: bool = False) -> dict[str, int]:
        """Dense in the order of the axes or, `usual` or not, in another; unless they must stay apart, some of them
        overlap or run backwards."""
        order = list(axes)
        if not usual or self.often(0.25):
            self.chance.shuffle(order)
        step = self.chance.choice((1, 1, 1, 1, 1, 1, 2, 3))
        found: dict[str, int] = {}
        for axis in reversed(order):
            found[axis.name] = step
            step *= max(axis.size, 1)
            if self.often(0.06):
                step += self.chance.randrange(1, 9)
            elif not apart and self.often(0.06) and step > 1:
                step = self.chance.randrange(1, hint(step))
        for name in found:
            if not apart and self.often(0.04):
                found[name] = -found[name]
        return found

    def buffer(self, name: str, dtype: torch.dtype, index: Index, axes: Sequence[Axis], role: Role) -> Index:
        """A new buffer, just long enough for an index, mostly; the index, moved so that it begins in there."""
        low, high = index_range(index, axes) if all(axis.size for axis in axes) else (0, -1)
        start = self.chance.choice((0, 0, 0, 1, 5))
        self.buffers.append(Buffer(name, dtype, high - low + 1 + start if high >= low else start, role))
        return replace(index, offset=index.offset - low + start)

    def factor(self, name: str, index: Index, bounds: tuple[tuple[Index, int], ...] = ()) -> Factor:
        axes = self.rows + self.cols + self.sums
        made = Factor(name, index, bounds)
        low, high = factor_range(made, axes) or (0, -1)
        start = self.chance.choice((0, 0, 0, 1, 5))
        dtype = self.chance.choice((F32, BF16, F16)) if self.dtype is F32 and self.often(0.05) else self.narrow
        dtype = self.integers.choice(SMALL_INTEGERS) if self.integers.random() < 0.08 else dtype
        self.buffers.append(Buffer(name, dtype, high - low + 1 + start, Role.INPUT))
        return replace(made, index=replace(index, offset=index.offset - low + start))

    # Products.

    def matrix_product(self) -> Kernel:
        while True:
            batch, m = self.axes("b", 0.6, 0.3, 0.1), self.axes("m", 0.1, 0.75, 0.15)
            n, k = self.axes("n", 0.1, 0.75, 0.15), self.axes("k", 0.03, 0.7, 0.2, 0.07)
            points = math.prod(axis.size for axis in batch + m + n)
            if points <= MOST_POINTS and points * math.prod(axis.size for axis in k) <= MOST_PRODUCTS:
                break
        if self.often(0.04):  # a size of zero
            group = self.chance.choice([group for group in (batch, m, n, k) if group] or [k])
            group[:1] = [Axis(axis.name, 0) for axis in group[:1]]
        batch, m, n, k = ([Axis(axis.name, self.varied(axis.size)) for axis in each] for each in (batch, m, n, k))
        self.sums = tuple(k)
        self._loops(batch, m, n)
        every = self.rows + self.cols + self.sums
        named = [self._named(batch + m, k), self._named(batch + n, k)]
        factors = []
        for letter, axes in zip("xw", named, strict=True):
            strides = self.strides(axes, self.often(0.5))
            factors.append(self.factor(letter, _index(strides, every), self._random_bounds(every)))
        if self.often(0.04):  # a product of something with itself
            whole = max(self.buffers[:2], key=lambda each: each.size)
            self.buffers = [replace(whole, name="x")]
            factors = [replace(each, buffer="x") for each in factors]
        return self._finished(factors[0], factors[1])

    def _loops(self, batch: list[Axis], m: list[Axis], n: list[Axis]) -> None:
        rows, cols = batch + m, n
        if self.often(0.1):
            rows, cols = batch + n, m
        elif self.often(0.1):
            both = batch + m + n
            self.chance.shuffle(both)
            cut = self.chance.randrange(len(both) + 1)
            rows, cols = both[:cut], both[cut:]
        self.rows, self.cols = tuple(rows), tuple(cols)

    def _named(self, kept: list[Axis], summed: list[Axis]) -> list[Axis]:
        """The axes of a factor: now and then it does not depend on one, which is to spread it."""
        axes = [axis for axis in kept if not self.often(0.04)] + [axis for axis in summed if not self.often(0.03)]
        return axes if self.often(0.6) else axes[len(kept) :] + axes[: len(kept)]

    def _random_bounds(self, every: Sequence[Axis]) -> tuple[tuple[Index, int], ...]:
        bounds = []
        while self.often(0.08) and every:
            chosen = self.chance.sample(every, k=min(len(every), self.chance.choice((1, 2))))
            strides = {axis.name: self.chance.choice((1, 1, 2, -1)) for axis in chosen}
            extent = self.chance.choice((1, 3, 8, 30))
            bounds.append((_index(strides, every, self.chance.randrange(-5, 6)), extent))
        return tuple(bounds)

    # Convolutions.

    def convolution(self) -> Kernel:
        chance = self.chance
        while True:
            dims = chance.choice((1, 2, 2, 2, 2, 3))
            image = [chance.choice((1, 2, 3, 5, 6, 7, 8, 9, 14, 16)) for _ in range(dims)]
            window = [chance.choice((1, 1, 2, 3, 3, 3, 4, 5)) for _ in range(dims)]
            stride, dilation = ([chance.choice(of) for _ in range(dims)] for of in ((1, 1, 1, 2, 3), (1, 1, 1, 2)))
            padding = [chance.choice((0, 0, 1, 1, 2, 3)) for _ in range(dims)]
            groups = chance.choice((1, 1, 1, 1, 2, 3, 8))
            count, into, out = chance.choice((1, 1, 2, 3)), chance.choice((1, 1, 2, 3, 4, 5, 16, 130)), self.size()
            if groups > 1 and self.often(0.5):
                into = out = 1  # depthwise
            inner = [d * (w - 1) + 1 for d, w in zip(dilation, window, strict=True)]
            found = [
                max(0, (i + 2 * p - w) // s + 1) for i, p, w, s in zip(image, padding, inner, stride, strict=True)
            ]
            points = count * groups * out * math.prod(found)
            if points <= MOST_POINTS and points * into * math.prod(window) <= MOST_PRODUCTS:
                break
        letters = "hwd"[:dims]
        if self.shape_env is not None:
            image, (count, into, out) = [self.varied(size) for size in image], map(self.varied, (count, into, out))
            ends = zip(image, padding, inner, stride, strict=True)
            found = [(i + 2 * p - w) // s + 1 if size else 0 for (i, p, w, s), size in zip(ends, found, strict=True)]
        axes = {"n": count, "g": groups, "o": out} | dict(zip(letters, found, strict=True))
        last = self.often(0.5)
        kept = [Axis(name, size) for name, size in axes.items() if name != "g" or groups > 1 or self.often(0.2)]
        pixels, across = [axis for axis in kept if axis.name in letters], [axis for axis in kept if axis.name in "go"]
        first = [axis for axis in kept if axis.name == "n"]
        if last:
            self.rows, self.cols = tuple(first + pixels + across[:-1]), tuple(across[-1:])
        else:
            self.rows, self.cols = tuple(first + across), tuple(pixels)
        self.sums = tuple(
            Axis(name, size)
            for name, size in {"c": into, **{f"k{x}": w for x, w in zip(letters, window, strict=True)}}.items()
            if size > 1 or self.often(0.3)
        )
        read = self._image(letters, (count, groups, into, *image), (stride, dilation, padding), last)
        taps = self._taps(letters, (groups, out, into, *window))
        return self._finished(*((read, taps) if last or self.often(0.1) else (taps, read)))

    def _image(
        self, letters: str, shape: Sequence[int], how: tuple[list[int], list[int], list[int]], last: bool
    ) -> Factor:
        dims = [Axis(name, size) for name, size in zip(["n", "g", "c", *letters], shape, strict=True)]
        given = [dims[0], *dims[3:], dims[1], dims[2]] if last else dims
        usual = self.often(0.9)
        steps = self.strides(given) if not usual else self._dense(given)
        every = self.rows + self.cols + self.sums
        strides, bounds, offset = {name: steps[name] for name in "ngc"}, [], 0
        for place, letter in enumerate(letters):
            stride, dilation, padding = (each[place] for each in how)
            moved = {letter: stride, f"k{letter}": dilation}
            strides |= {name: step * steps[letter] for name, step in moved.items()}
            offset -= padding * steps[letter]
            if padding or self.often(0.1):
                bounds.append((_index(moved, every, -padding), shape[3 + place]))
        return self.factor("x", _index(strides, every, offset), tuple(bounds))

    def _dense(self, axes: Sequence[Axis]) -> dict[str, int]:
        step, found = 1, {}
        for axis in reversed(axes):
            found[axis.name] = step
            step *= axis.size
        return found

    def _taps(self, letters: str, shape: Sequence[int]) -> Factor:
        names = ["g", "o", "c", *(f"k{letter}" for letter in letters)]
        dims = [Axis(name, size) for name, size in zip(names, shape, strict=True)]
        steps = self._dense(dims) if self.often(0.7) else self.strides(dims)
        if self.often(0.1):  # a window read backwards, as for gradients
            steps |= {name: -step for name, step in steps.items() if name.startswith("k")}
        return self.factor("f", _index(steps, self.rows + self.cols + self.sums))

    # What follows the product.

    def _finished(self, left: Factor, right: Factor) -> Kernel:
        self.body.append(Contract("p", self.sums, left, right, self.dtype))
        points = self.rows + self.cols
        where = _index(self.strides(points, self.often(0.85), apart=True), points)
        dtype = self.chance.choice((F32, BF16, F16)) if self.dtype is F32 and self.often(0.15) else self.narrow
        in_place = self.often(0.1)
        where = self.buffer("y", dtype, where, points, Role.INOUT if in_place else Role.OUTPUT)
        value = "p"
        if in_place:
            value = self.compute("add", value, self.loaded("y", dtype, where))
        for _ in range(self.chance.choice((0, 0, 1, 1, 2, 3))):
            value = self.chance.choice(_STEPS)(self, value)
        if dtype is not self.dtype:
            value = self.put(Cast(self.fresh(), value, dtype))
        self.body.append(Store("y", where, value))
        self.chance.shuffle(self.buffers)
        return Kernel(self.name, self.rows, self.cols, tuple(self.buffers), (Stage(True, tuple(self.body)),))

    def fresh(self) -> str:
        return f"v{len(self.body)}"

    def put(self, instruction: Instruction) -> str:
        self.body.append(instruction)
        return instruction.out  # type: ignore[union-attr]

    def compute(self, op: str, *args: str) -> str:
        return self.put(Compute(self.fresh(), op, args, self.dtype))

    def constant(self, value: float) -> str:
        return self.put(Const(self.fresh(), value, self.dtype))

    def loaded(self, name: str, dtype: torch.dtype, index: Index) -> str:
        found = self.put(Load(self.fresh(), name, index))
        return found if dtype is self.dtype else self.put(Cast(self.fresh(), found, self.dtype))

    def read(self, axes: Sequence[Axis]) -> str:
        """A new array over some of the axes."""
        points = self.rows + self.cols
        name, dtype = f"a{len(self.buffers)}", self.narrow if self.often(0.8) else self.dtype
        index = _index(self.strides(axes), points)
        return self.loaded(name, dtype, self.buffer(name, dtype, index, points, Role.INPUT))

    def bias(self, value: str) -> str:
        points = self.rows + self.cols
        axes = points[-1:] if self.often(0.6) else [axis for axis in points if self.often(0.4)]
        return self.compute(self.chance.choice(("add", "sub", "mul")), value, self.read(axes))

    def residual(self, value: str) -> str:
        return self.compute("add", value, self.read(self.rows + self.cols))

    def scale(self, value: str) -> str:
        return self.compute("mul", value, self.constant(self.chance.choice((0.125, -2.0, 0.3))))

    def activation(self, value: str) -> str:
        op = self.chance.choice(("relu", "gelu", "sigmoid", "tanh", "silu", "abs", "neg"))
        if op == "relu":
            return self.compute("maximum", value, self.constant(0.0))
        if op in ("gelu", "silu"):
            return self.compute("mul", value, self.compute("ndtr" if op == "gelu" else "sigmoid", value))
        return self.compute(op, value)

    def masked(self, value: str) -> str:
        """Zero beyond a diagonal, say."""
        points = self.rows + self.cols
        strides = {axis.name: self.chance.choice((1, -1, 2)) for axis in points if self.often(0.5)}
        index = _index(strides, points)
        low, high = index_range(index, points)
        place = self.put(Position(self.fresh(), index))
        op = self.chance.choice(("lt", "ge"))
        kept = self.chance.randint(min(hint(low), hint(high)), hint(high)) + (op == "lt")  # one point at least
        limit = self.put(Const(self.fresh(), kept, torch.int64))
        mask = self.put(Compute(self.fresh(), op, (place, limit), torch.bool))
        return self.compute("where", mask, value, self.constant(0.0))

    def second(self, value: str) -> str:
        """What has been computed so far, kept as well."""
        points, name = self.rows + self.cols, f"z{len(self.buffers)}"
        where = _index(self.strides(points, self.often(0.85), apart=True), points)
        self.body.append(Store(name, self.buffer(name, self.dtype, where, points, Role.OUTPUT), value))
        return value


_STEPS = (_Maker.bias, _Maker.bias, _Maker.residual, _Maker.scale, _Maker.activation, _Maker.activation,
          _Maker.masked, _Maker.second)  # fmt: skip
