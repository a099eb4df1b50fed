"""The levels in which runs of equal keys are reduced, each over a list far shorter than the previous one.

    1,000,000 entries in chunks of 32  →  62,500 in chunks of 32  →  3,908  →  246  →  16 in one chunk
"""

from dataclasses import replace

from smelt.codegen.gpu.scatters.run_reductions import RunLevel
from smelt.codegen.gpu.scatters.scatter_kernels import Places, loop
from smelt.codegen.gpu.scatters.stable_sort import SortedEvents
from smelt.ir.check_kernel import value_dtypes
from smelt.ir.kernel import Buffer, Kernel, Role
from smelt.symbolic.shapes import product
from smelt.symbolic.symsize import hint, is_symsize

_CHUNKS = (8, 32)  # entries of a chunk: short ones where there are few threads otherwise
_ENOUGH_THREADS = 132 * 1024
_ONE_CHUNK = 64  # so many are reduced by one thread


def run_levels(places: Places, events: SortedEvents) -> list[RunLevel]:
    levels: list[RunLevel] = []
    dtype = value_dtypes(places.kernel)[places.scatter.value]
    inner = product(axis.size for axis in places.inner)
    count, keys, values = places.event_count, events.keys, None
    while True:
        level = len(levels)
        inputs = [replace(keys, role=Role.INPUT)]
        inputs.append(replace(events.order if values is None else values, role=Role.INPUT))
        last = hint(count) <= _ONE_CHUNK
        enough = hint(count) * hint(inner) // _CHUNKS[1] >= _ENOUGH_THREADS
        # One more where the count varies: none are no chunk then.
        whole = count + 1 if is_symsize(count) else count
        chunk = whole if last else _CHUNKS[1] if enough else _CHUNKS[0]
        order, source = (events.order.name, "") if values is None else (None, values.name)
        run_level = RunLevel(places.kernel, places, count, chunk, keys.name, order, source)
        new: list[Buffer] = []
        if not last:
            entries = 2 * run_level.chunks
            stem = f"{places.scatter.buffer}.level{level}"
            new = [Buffer(f"{stem}.keys", places.dtype, entries, Role.OUTPUT)]
            new.append(Buffer(f"{stem}.values", dtype, entries * inner, Role.OUTPUT))
            run_level = replace(run_level, further=(new[0].name, new[1].name))
        levels.append(replace(run_level, kernel=_kernel(places, [*inputs, *new], level)))
        if last:
            return levels
        (keys, values), count = new, 2 * run_level.chunks


def _kernel(places: Places, extra: list[Buffer], level: int) -> Kernel:
    kernel = places.kernel
    fold = loop(kernel, kernel.cols, kernel.instructions(), (), f"fold{level}")
    return replace(fold, buffers=(*fold.buffers, *extra))
