"""How much memory a run of a table takes, as far as its sizes are known, for the header.

memory_bytes(table)    all that its variants produce, their arenas and workspaces; twice that where there
                                is a loop; copies of state that a run may have to put back
"""

from smelt.codegen.static.driver import has_loop, saved_bytes, saved_ranges
from smelt.ir.artifact_file.layout import ALIGN
from smelt.ir.table import records as r
from smelt.ir.table.records import DTYPES, Bind
from smelt.symbolic.postfix import evaluate

TYPICAL = 128  # what a size that varies is taken for, if its bounds allow it

def memory_bytes(table: r.Table) -> int:
    """For sizes that vary: enough where they are `TYPICAL`, or at their bounds."""
    total = sum(_of_variant(table, variant) for state in table.states for variant in state.variants)
    return (2 * total if has_loop(table) else total) + saved_bytes(saved_ranges(table)) + ALIGN


def _of_variant(table: r.Table, variant: r.Variant) -> int:
    symbols = [_typical(table, symbol) for symbol in variant.symbols]
    total = _aligned(evaluate(variant.arena_bytes, symbols))
    for output in variant.produced:
        count = DTYPES[table.registers[output.register].dtype]
        for dim in output.dims:
            count *= max(0, evaluate(dim, symbols))
        total += _aligned(count)
    total += sum(_aligned(8 * len(value.numbers)) for value in variant.values if isinstance(value, r.SizesValue))
    launches = [step for step in variant.steps if isinstance(step, r.Launch)]
    spaces = [evaluate(step.fixed, symbols) + evaluate(step.per_thread, symbols) for step in launches]
    total += _aligned(max([0, *spaces]))
    if isinstance(variant.next, r.Return):  # views of which copies are made
        views = [each for each in variant.next.outputs if each.offset is not None]
        for view in views:
            count = DTYPES[table.registers[view.register or 0].dtype]
            for dim in view.dims:
                count *= max(0, evaluate(dim, symbols))
            total += _aligned(count)
    return total


def _typical(table: r.Table, symbol: r.Symbol) -> int:
    low, high = symbol.low, symbol.high
    dims = table.registers[symbol.register].dims
    if symbol.bind == Bind.SIZE:
        low, high = max(low, dims[symbol.dimension].low), min(high, dims[symbol.dimension].high)
    return max(low, min(high, TYPICAL))


def _aligned(count: int) -> int:
    return -(-max(0, count) // ALIGN) * ALIGN
