"""What the functions that all tiled products of a module share are told of one: a table of numbers.

    k0.numbers: 128 rows, 3072 cols, 768 steps, blocks of …; left: its panels at byte 0, offset 0, steps (768 1) …

A head (`HEAD`), then a record for each factor (`SIDE`), then for each of its indices, which are its own and those of
its bounds, the extent, the offset, and size and step of the axes outside of blocks, of points, and of steps.
"""

from collections.abc import Sequence

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.cpu.products.problem import ProductAxis, count
from smelt.codegen.cpu.products.step_runs import period, run
from smelt.codegen.cpu.products.tiling import PanelSpace, Tiling
from smelt.codegen.llvm.builder import Builder, LlvmValue
from smelt.ir.kernel import Factor, Index, Store

HEAD = (
    "m", "n", "k", "rows", "cols", "depth", "row_blocks", "col_blocks", "depth_blocks", "sums", "stride",
    "left", "right", "out_base", "out_step", "out_axes", "outer_count",
)  # fmt: skip
SIDE = (
    "panels", "ks", "xs", "pk", "px", "depth", "length", "size", "ascending", "bounds",
    "points", "steps", "outer_count", "point_count", "step_count", "record", "period", "table",
    "apart",
)  # fmt: skip
RECORD = 2  # numbers of an index before its axes: extent, offset


def read(b: Builder, table: str, names: Sequence[str], name: str) -> LlvmValue:
    """A number of a head or side that `table` points to."""
    return b.load(b.element(table, "i64", names.index(name)), "i64")


def _pairs(axes: Sequence[ProductAxis], index: Index) -> list[int]:
    """Size and step of each axis; of one point, where there is none."""
    return [each for axis in axes for each in (axis.size, int(index.stride(axis.name)))] or [1, 0]


@dataclass(frozen=True, slots=True)
class Numbers:
    """The table of one product."""

    values: tuple[int, ...]

    @classmethod
    def of(cls, tiling: Tiling, space: PanelSpace) -> "Numbers":
        sides = [_side(tiling, space, number) for number in (0, 1)]
        out = stored(tiling)
        index = out.index if out is not None else Index()
        m = tiling.epilogue.m[-1:]
        blocks = tiling.blocks
        left = len(HEAD)
        right = left + len(sides[0])
        head = {
            "m": count(tiling.m), "n": count(tiling.n), "k": count(tiling.problem.k),
            "rows": blocks.rows, "cols": blocks.cols, "depth": blocks.depth,
            "row_blocks": blocks.row_count, "col_blocks": blocks.col_count, "depth_blocks": blocks.depth_count,
            "sums": space.starts["sums"], "stride": tiling.stride, "left": left, "right": right,
            "out_base": int(index.offset), "out_step": int(index.stride(m[0].name)) if m else 0,
            "out_axes": right + len(sides[1]), "outer_count": max(1, len(tiling.outer)),
        }  # fmt: skip
        return cls((*(head[name] for name in HEAD), *sides[0], *sides[1], *_pairs(tiling.outer, index)))

    def text(self, name: str) -> str:
        values = ", ".join(f"i64 {value}" for value in self.values)
        return f"@{name} = private constant [{len(self.values)} x i64] [{values}]"


def _side(tiling: Tiling, space: PanelSpace, number: int) -> list[int]:
    factor: Factor = tiling.problem.contract.factors[number]
    name, points = (("left", tiling.m), ("right", tiling.n))[number]
    axes = (tiling.outer, points, tiling.problem.k)
    records = []
    for index, extent in ((factor.index, 0), *factor.bounds):
        records.append([int(extent), int(index.offset), *(each for group in axes for each in _pairs(group, index))])
    side = {
        "panels": space.starts[name], "ks": space.starts[f"{name}_steps"], "xs": space.starts[f"{name}_points"],
        "pk": space.starts[f"{name}_step_positions"], "px": space.starts[f"{name}_positions"],
        "depth": tiling.blocks.depth, "length": (tiling.padded_rows, tiling.padded_cols)[number],
        "size": int(tiling.problem.kernel.buffer(factor.buffer).size),
        "ascending": int(_ascends(points, factor.index)), "bounds": len(factor.bounds),
        "points": count(points), "steps": count(tiling.problem.k),
        "outer_count": max(1, len(tiling.outer)), "point_count": max(1, len(points)),
        "step_count": max(1, len(tiling.problem.k)), "record": len(records[0]),
        "period": period(factor, tiling.problem.k) or run(factor, tiling.problem.k),
        "table": space.starts.get("windows", 0),
        "apart": tiling.padded_cols if number and tiling.keeps_right else 0,
    }  # fmt: skip
    return [*(side[each] for each in SIDE), *(value for record in records for value in record)]


def _ascends(points: Sequence[ProductAxis], index: Index) -> bool:
    """Whether each point lies behind the one before it."""
    reach = 0
    for axis in reversed(points):
        step = int(index.stride(axis.name))
        if step <= reach:
            return False
        reach += step * (axis.size - 1)
    return True


def stored(tiling: Tiling) -> Store | None:
    """Where tiles are stored as they are, if that is all there is to do with them: rows of numbers side by side."""
    problem = tiling.epilogue
    if len(problem.epilogue) != 1 or len(problem.m) > 1 or not problem.n or tiling.beside or tiling.turned:
        return None
    (store,) = problem.epilogue
    if not isinstance(store, Store) or store.value != problem.contract.out:
        return None
    along = problem.n[-1].name
    fits = store.index.stride(along) == 1 and problem.kernel.buffer(store.buffer).dtype is problem.dtype
    return store if fits else None
