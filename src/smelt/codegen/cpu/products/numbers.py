"""The table of numbers by which a tiled product parameterizes the functions that all products of a module share.

    k0.numbers: 128 rows, 3072 cols, 768 steps, blocks of …; left: its panels at byte 0, offset 0, steps (768 1) …

A head (`HEAD`), then a record for each factor (`SIDE`). Each record is followed by the factor's indices (its own and
those of its bounds): the extent, the offset, and the size and step of the axes outside of blocks, of points, and of
steps.

For dynamic shapes, each part fills in its own table at launch, blocks included.
"""

from collections.abc import Sequence
from typing import Any

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.axes import strides_ascend
from smelt.codegen.cpu.products.problem import ProductAxis, count
from smelt.codegen.cpu.products.step_runs import period, run
from smelt.codegen.cpu.products.tile_shape import Count, smaller, threads
from smelt.codegen.cpu.products.tiling import PanelSpace, Tiling, units
from smelt.codegen.loops.builder import Builder
from smelt.ir.kernel import Factor, Index, Store
from smelt.ir.loops import Table, Value
from smelt.symbolic.shapes import Size
from smelt.symbolic.symsize import is_symsize, known_equal

HEAD = (
    "m", "n", "k", "rows", "cols", "depth", "row_blocks", "col_blocks", "depth_blocks", "sums", "stride",
    "left", "right", "out_base", "out_step", "out_axes", "outer_count", "units", "threads",
)  # fmt: skip
SIDE = (
    "panels", "ks", "xs", "pk", "px", "depth", "length", "size", "ascending", "bounds",
    "points", "steps", "outer_count", "point_count", "step_count", "record", "period", "table",
    "apart",
)  # fmt: skip
RECORD = 2  # numbers of an index before its axes: extent, offset


def read(b: Builder, table: Value, names: Sequence[str], name: str) -> Value:
    """A number of a head or side that `table` points to."""
    return b.load(b.element(table, "i64", names.index(name)), "i64")


def _pairs(axes: Sequence[ProductAxis], index: Index) -> list[Size]:
    """Size and step of each axis; one of extent one if there is none."""
    return [each for axis in axes for each in (axis.size, index.stride(axis.name))] or [1, 0]


@dataclass(frozen=True, slots=True)
class Numbers:
    """The table of one product: sizes, and the names of derived numbers, in `_COMPUTED`."""

    values: tuple[Size | str, ...]

    @classmethod
    def of(cls, tiling: Tiling, space: PanelSpace) -> "Numbers":
        sides = [_side(tiling, space, number) for number in (0, 1)]
        out = stored(tiling)
        index = out.index if out is not None else Index()
        m = tiling.epilogue.m[-1:]
        left = len(HEAD)
        right = left + len(sides[0])
        head: dict[str, Size | str] = {
            "m": tiling.sizes[0], "n": tiling.sizes[1], "k": tiling.sizes[2], **{name: name for name in _COMPUTED[:-1]},
            "sums": space.start("sums"), "stride": space.stride, "left": left, "right": right,
            "out_base": index.offset, "out_step": index.stride(m[0].name) if m else 0,
            "out_axes": right + len(sides[1]), "outer_count": max(1, len(tiling.outer)),
        }  # fmt: skip
        return cls((*(head[name] for name in HEAD), *sides[0], *sides[1], *_pairs(tiling.outer, index)))

    @property
    def length(self) -> int:
        return len(self.values)

    @property
    def is_constant(self) -> bool:
        return not any(map(is_symsize, self.values))

    def table(self, name: str, tiling: Tiling) -> Table:
        """As a constant, where all sizes are known."""
        known = _computed(tiling, tiling.sizes)
        numbers = [known[value] if isinstance(value, str) else value for value in self.values]
        return Table(name, tuple([Value("", "i64", number=int(each)) for each in numbers]))

    def write(self, b: Builder, tiling: Tiling, table: Value) -> None:
        """Fill in the table from the sizes of a launch."""
        known = _computed(tiling, [Count(b, b.const("i64", size)) for size in tiling.sizes])
        for place, value in enumerate(self.values):
            number = known[value].value if isinstance(value, str) else b.const("i64", value)
            b.store(number, b.element(table, "i64", place))


_COMPUTED = (
    "rows", "cols", "depth", "row_blocks", "col_blocks", "depth_blocks", "units", "threads", "kept",
)  # fmt: skip


def _computed(tiling: Tiling, sizes: Sequence[Any]) -> dict[str, Any]:
    blocks = tiling.blocks(sizes)
    m, n, k, batches = sizes
    shared = units(blocks, sizes)
    useful = smaller(threads(m * n * (k * batches)), shared)
    counts = (blocks.row_count, blocks.col_count, blocks.depth_count)
    values = (blocks.rows, blocks.cols, blocks.depth, *counts, shared, useful, blocks.kept)
    return dict(zip(_COMPUTED, values, strict=True))


def _side(tiling: Tiling, space: PanelSpace, number: int) -> list[Size | str]:
    factor: Factor = tiling.problem.contract.factors[number]
    name, points = (("left", tiling.m), ("right", tiling.n))[number]
    axes = (tiling.outer, points, tiling.problem.k)
    records: list[list[Size]] = []
    for index, extent in ((factor.index, 0), *factor.bounds):
        records.append([extent, index.offset, *(each for group in axes for each in _pairs(group, index))])
    side: dict[str, Size | str] = {
        "panels": space.start(name), "ks": space.start(f"{name}_steps"), "xs": space.start(f"{name}_points"),
        "pk": space.start(f"{name}_step_positions"), "px": space.start(f"{name}_positions"),
        "depth": space.depth, "length": (space.rows, space.cols)[number],
        "size": tiling.problem.kernel.buffer(factor.buffer).size,
        "ascending": int(_ascends(points, factor.index)), "bounds": len(factor.bounds),
        "points": count(points), "steps": count(tiling.problem.k),
        "outer_count": max(1, len(tiling.outer)), "point_count": max(1, len(points)),
        "step_count": max(1, len(tiling.problem.k)), "record": len(records[0]),
        "period": period(factor, tiling.problem.k) or run(factor, tiling.problem.k),
        "table": space.start("windows") if tiling.problem.is_bounded else 0,
        "apart": "kept" if number else 0,
    }  # fmt: skip
    return [*(side[each] for each in SIDE), *(value for record in records for value in record)]


def _ascends(points: Sequence[ProductAxis], index: Index) -> bool:
    """Whether each point is at a higher address than the previous one."""
    return strides_ascend([(index.stride(axis.name), axis.size) for axis in reversed(points)], 1)


def stored(tiling: Tiling) -> Store | None:
    """Where tiles are stored as they are, if that is all there is to do with them: rows of numbers side by side."""
    problem = tiling.epilogue
    if len(problem.epilogue) != 1 or len(problem.m) > 1 or not problem.n or tiling.beside or tiling.is_transposed:
        return None
    (store,) = problem.epilogue
    if not isinstance(store, Store) or store.value != problem.contract.out:
        return None
    along = problem.n[-1].name
    fits = known_equal(store.index.stride(along), 1) and problem.kernel.buffer(store.buffer).dtype is problem.dtype
    return store if fits else None
