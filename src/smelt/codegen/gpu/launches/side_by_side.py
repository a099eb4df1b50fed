"""One grid for kernels of different bodies, such as the products for query, key and value of a token.

    q: 512 blocks, k: 128 blocks, v: 128 blocks   →   blocks 0 to 511 are q's, 512 to 639 k's, 640 to 767 v's

All threads of a block take the branch of its kernel. Each kernel's grid is written as if it were launched alone; blocks
have as many threads, and as much shared memory as the one that needs most.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from smelt.codegen.generator import EntryCode
from smelt.codegen.gpu.bodies.points_body import Points
from smelt.codegen.gpu.grid_plan import plan, uses_wide_positions
from smelt.codegen.gpu.grids import Grid
from smelt.codegen.gpu.products.few_rows_body import FewRows
from smelt.codegen.gpu.simt import Simt
from smelt.codegen.loops.builder import param
from smelt.codegen.loops.runtime_sizes import Sizes
from smelt.device import Target
from smelt.ir.kernel import Kernel
from smelt.ir.kernel_code import GridPhase
from smelt.ir.loops import Compute, If, Node
from smelt.symbolic.symsize import is_symsize

_OWN = "own"  # the number of a block among those of its kernel


def emit_side_by_side(
    simt: type[Simt], symbol: str, kernels: Sequence[Kernel], target: Target, *, aligned: bool
) -> EntryCode | None:
    """The grid, whose buffers come one kernel's after the other's; None if some kernel is neither pointwise nor a
    product of few rows, or grids have different numbers of threads."""
    if any(kernel.early is None for kernel in kernels):
        kernels = [replace(kernel, early=None) for kernel in kernels]
    plans = [plan(kernel, target) for kernel in kernels]
    grids = [each.phases[0] for each in plans if len(each.phases) == 1 and not each.workspace]
    if len(grids) != len(plans) or target.form == "spirv" or len({each.threads for each in grids}) != 1:
        return None
    if not all(isinstance(each, Points | FewRows) and not is_symsize(each.blocks) for each in grids):
        return None
    total = sum(len(kernel.parameters) for kernel in kernels)
    kind = "i64" if any(map(uses_wide_positions, plans)) else "i32"
    sizes, builders, first = Sizes(total), list[Simt](), 0
    for grid, kernel in zip(grids, kernels, strict=True):
        names = [*[""] * first, *(buffer.name for buffer in kernel.parameters)]
        block = param(f"{_OWN}{len(builders)}", kind)
        how = {"buffers": total, "block": block, "parameters": names, "aligned": aligned, "early": grid.kernel.early}
        b = grid.builder(simt, kernel, target, symbol, sizes, kind, **how)
        if builders:
            b.follow(builders[-1])
        grid.write(b)
        builders.append(b)
        first += len(kernel.parameters)
    if sizes.params:
        return None
    return _joined(symbol, builders, grids)


def _joined(symbol: str, builders: Sequence[Simt], grids: Sequence[Grid]) -> EntryCode:
    """One function of them, a branch for each."""
    *others, whole = builders
    bodies = [b.waiting_body() for b in builders]
    starts = [*accumulate((int(grid.blocks) for grid in grids), initial=0)]
    whole.join(others)
    block = whole.block_of_all()
    code: list[Node] = []
    for number in reversed(range(len(bodies))):
        start = whole.const(block.kind, starts[number])
        own = [Compute(param(f"{_OWN}{number}", block.kind), "sub", (block, start)), *bodies[number]]
        if code:
            whole.body = []
            is_own = whole.icmp("ult", block, starts[number + 1])
            code = [*whole.body, If(is_own, own, code)]
        else:
            code = own
    whole.body = code
    function = whole.lowered(whole.grid_function())
    phase = GridPhase(
        symbol, starts[-1], whole.threads, whole.shared_size, whole.has_barrier, overlaps=whole.overlaps
    )  # fmt: skip
    return EntryCode((function,), tuple(whole.helpers.values()), 0, phases=(phase,))
