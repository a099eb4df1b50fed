"""The map of the compiler: every table, those of fusion and of code generation included. `smelt info stages` prints it.

    fuse: memory
      write in place       kernel program → kernel program · optional, rewrite by rewrite
                           before buffers are reused: an input's new value belongs where the old one is
"""

from collections.abc import Iterator, Sequence

from smelt.base.row import Row
from smelt.codegen.generator import Generator
from smelt.device import generator_of, names
from smelt.fuse.fusion_passes import GROUP, MEMORY, READ
from smelt.pipeline.passes import Pass
from smelt.pipeline.stages import LOWER, SIMPLIFY, TRACE_FORWARD, TRACE_JOINT

Tables = dict[str, Sequence[Pass | Row]]

# In the order in which a graph comes to them: title → rows. Those of targets follow.
_TABLES: Tables = {
    "trace, where no gradients are needed": TRACE_FORWARD,
    "trace, in training": TRACE_JOINT,
    "simplify, each graph": SIMPLIFY,
    "lower, each graph": LOWER,
    "fuse: read": READ,
    "fuse: group": GROUP,
    "fuse: memory": MEMORY,
}


def tables() -> Tables:
    """Every table, those of the targets on offer included."""
    targets_by_table: dict[tuple[str, tuple[Row, ...]], list[str]] = {}
    for name in names():
        generator: Generator = generator_of(name)
        for title, rows in generator.tables().items():
            targets_by_table.setdefault((title, tuple(rows)), []).append(name)
    of_targets = targets_by_table.items()
    return _TABLES | {f"generate for {', '.join(targets)}: {title}": rows for (title, rows), targets in of_targets}


def stage_map() -> str:
    """All tables as text, one after the other."""
    return "\n\n".join("\n".join([title, *_lines(rows)]) for title, rows in tables().items())


def _lines(rows: Sequence[Pass | Row]) -> Iterator[str]:
    for row in rows:
        if isinstance(row, Row):
            yield f"  {row.name:<20} {row.takes} → {row.gives} · {row.budget_use.value}"
        else:
            yield f"  {row.name:<20} {row.takes.value} → {row.gives.value}"
        yield f"  {'':<20} {row.why}"
