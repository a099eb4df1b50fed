"""Launches many kernels with the same body as one grid, such as an optimizer's update of all parameters.

    k0: cols(j:256) …, k1: cols(j:65536) …     →   blocks 0 to 0 are k0's, 1 to 64 are k1's; buffers k0's, then k1's

A block finds its kernel from its number, in a tree of branches that all its threads take. The pointers and sizes are
then that kernel's, and the code is written once. They are parameters, so the runtime launches the grid like any other.
`Limits.group_buffers` limits their number.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate

from smelt.codegen.generator import EntryCode
from smelt.codegen.gpu.bodies.points_body import Points
from smelt.codegen.gpu.bodies.rows_body import Rows
from smelt.codegen.gpu.grid_plan import plan
from smelt.codegen.gpu.grids import Grid, KernelGrids
from smelt.codegen.gpu.simt import WORKSPACE, Simt
from smelt.codegen.loops.builder import TRUE, param
from smelt.codegen.loops.runtime_sizes import Sizes, as_integer
from smelt.device import Target
from smelt.ir.kernel import Kernel
from smelt.ir.kernel_code import GridPhase
from smelt.ir.loops import Compute, Function, Id, If, Value
from smelt.ir.substitute_sizes import length_axis, lengthened
from smelt.ir.text import format_kernel
from smelt.symbolic.expressions import ShapeEnv, Symbol
from smelt.symbolic.symsize import expression_of, sym_size

_OWN = param("own")  # the number of a block among those of its member


def _always(value: int) -> Callable[[Symbol], int]:
    """The value of a family's symbol in a member."""
    return lambda _: value


def _grid_function(b: Simt, lengths: Sequence[int], first_blocks: Sequence[int], workspace: int = 0) -> Function:
    """What `b` wrote for one member, as a function of all of them: from the block's number to the member, whose
    parameters and sizes then have the names that the code knows. `lengths`: the symbol's value in each member."""
    assert b.sizes is not None
    own_workspace = [b.workspace_memory] if workspace else []
    parameters = [b.taken(number) for number in range(b.buffers)]
    first_block = param("first")
    names = [*(param(f"size{slot}") for slot in range(len(b.sizes.params))), first_block]
    starts = [b.const("i64", first) for first in first_blocks]
    of_each = [
        [*(b.const("i64", as_integer(size.evaluate(_always(value)))) for size in b.sizes.params), start]
        for value, start in zip(lengths, starts, strict=True)
    ]
    code, b.prologue, b.body = [*b.prologue, *b.body], [], []
    for member, sizes in enumerate(of_each):
        sizes += [b.element(WORKSPACE, "i8", member * workspace) for _ in own_workspace]
    names += own_workspace
    block = b.convert("zext", b.id("block"), "i64")
    params: list[Value] = []
    if b.is_vulkan:
        # As branches, these would be too many for some devices.
        firsts = [b.const("i64", member * b.buffers) for member in range(len(of_each))]
        values = [firsts[0], *of_each[0]]
        for start, first, sizes in zip(starts[1:], firsts[1:], of_each[1:], strict=True):
            is_past = b.icmp("uge", block, start)
            values = [b.select(is_past, *pair) for pair in zip([first, *sizes], values, strict=True)]
        base, *values = values
        values = [*(_parameter(b, b.add(base, n), each) for n, each in enumerate(parameters)), *values]
    else:
        for member, sizes in enumerate(of_each):
            own = [Value(f"%member{len(params) + n}", each.kind) for n, each in enumerate(parameters)]
            params, of_each[member] = params + own, [*own, *sizes]
        values = list(_search(b, block, starts, of_each))
    b.body.append(If(TRUE, [], [], (*parameters, *names), tuple(values), tuple(values)))
    b.body.append(Compute(_OWN, "sub", (block, first_block)))
    b.body += code
    function = b.grid_function()
    function.params = () if b.is_vulkan else (*params, WORKSPACE)
    function.parameters = len(of_each) * b.buffers + 1 if b.is_vulkan else 0  # the workspace, too
    return function


def _search(b: Simt, block: Value, starts: Sequence[Value], of_each: Sequence[Sequence[Value]]) -> Sequence[Value]:
    """The values of the member that a block is one of."""
    if len(starts) == 1:
        return of_each[0]
    middle = len(starts) // 2
    return b.choice(
        b.icmp("ult", block, starts[middle]),
        lambda: _search(b, block, starts[:middle], of_each[:middle]),
        lambda: _search(b, block, starts[middle:], of_each[middle:]),
    )


def _parameter(b: Simt, number: Value, like: Value) -> Value:
    """A parameter of the launch, by its number."""
    parameter = b.fresh("i64")
    b.body.append(Id(parameter, "parameter", number))
    return b.convert("inttoptr", parameter, like.kind)


def emit_group(
    simt: type[Simt], symbol: str, kernels: Sequence[Kernel], target: Target, *, aligned: bool = True
) -> EntryCode | None:
    """One grid for kernels whose buffers come one kernel's after the other's: pointwise ones along a line that differ
    in their length alone, or equal ones that reduce short rows. None for others."""
    shared = _body(kernels)
    if shared is None:
        return None
    body, values, shape_env = shared
    grids = plan(body, target)
    is_points = len(grids.phases) == 1 and isinstance(grids.phases[0], Points)
    is_rows = body is kernels[0] and all(isinstance(each, Rows) and each.cluster == 1 for each in grids.phases)
    if not is_points and (not is_rows or target.form == "spirv"):
        return None
    codes = []
    for number, grid in enumerate(grids.phases):
        code = _emit_phase(simt, f"{symbol}_{number}", grids, grid, values, shape_env, target, aligned)
        if code is None:
            return None
        codes.append(code)
    return EntryCode.joined(codes, len(kernels) * as_integer(grids.workspace))


def _emit_phase(
    simt: type[Simt],
    symbol: str,
    grids: KernelGrids,
    grid: Grid,
    values: Sequence[int],
    shape_env: ShapeEnv,
    target: Target,
    aligned: bool,
) -> EntryCode | None:
    """One grid for the same phase of all members; None if its code relies on more than their lengths."""
    body = grids.kernel
    if not all(guard.holds(_always(value)) for guard in shape_env.guards for value in values):
        return None
    blocks = [as_integer(expression_of(grid.blocks).evaluate(_always(value))) for value in values]
    buffers = len(body.parameters)
    names = [buffer.name for buffer in body.parameters]
    how = {"buffers": buffers, "block": _OWN, "parameters": names, "places": dict(grids.places), "aligned": aligned}
    b = grid.builder(simt, body, target, symbol, Sizes(buffers), "i64", **how)
    workspace = as_integer(grids.workspace)
    if workspace:
        b.workspace_memory = param("own_workspace", WORKSPACE.kind)
    grid.write(b)
    if not all(guard.holds(_always(value)) for guard in shape_env.guards for value in values):
        return None  # the code relies on something else
    phase = GridPhase(symbol, sum(blocks), grid.threads, b.shared_size, b.has_barrier)
    function = b.lowered(_grid_function(b, values, [*accumulate(blocks[:-1], initial=0)], workspace))
    return EntryCode((function,), tuple(b.helpers.values()), 0, phases=(phase,))


def _body(kernels: Sequence[Kernel]) -> tuple[Kernel, tuple[int, ...], ShapeEnv] | None:
    """The common body, the symbol's value in each kernel, and the symbol's `ShapeEnv`. Kernels of equal length are the
    body themselves."""
    if len({format_kernel(replace(kernel, name="")) for kernel in kernels}) == 1:
        return kernels[0], (1,) * len(kernels), ShapeEnv()
    axes = [length_axis(kernel) for kernel in kernels]
    known = [(kernel, axis) for kernel, axis in zip(kernels, axes, strict=True) if axis is not None]
    texts = {format_kernel(replace(lengthened(kernel, axis, 0), name="")) for kernel, axis in known}
    lengths = [axis.size for _, axis in known]
    if len(texts) != 1 or len(known) != len(kernels) or kernels[0].rows:
        return None
    shape_env, first = ShapeEnv(), kernels[0]
    assert axes[0] is not None
    # As many points as all have together keep the chip busy.
    varies = sym_size(shape_env, shape_env.symbol("length", sum(lengths)))
    return lengthened(first, axes[0], varies), tuple(lengths), shape_env
