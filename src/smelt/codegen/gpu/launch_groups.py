"""Launches many pointwise kernels with the same body as one grid, such as an optimizer's update of all parameters.

    k0: cols(j:256) …, k1: cols(j:65536) …     →   blocks 0 to 0 are k0's, 1 to 64 are k1's; buffers k0's, then k1's

A block finds its kernel from its number, in a tree of branches that all its threads take. The pointers and sizes are
then that kernel's, and the code is written once. They are parameters, so the runtime launches the grid like any other.
`Limits.group_buffers` limits their number.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.generator import EntryCode
from smelt.codegen.gpu.bodies.points_body import PointsBody
from smelt.codegen.gpu.grid_plan import Along, GridPlan, plan
from smelt.codegen.gpu.host import HostWarp
from smelt.codegen.gpu.nvptx import Nvptx
from smelt.codegen.gpu.simt import WORKSPACE, Simt
from smelt.codegen.loops.builder import BUFFERS, TRUE, param
from smelt.codegen.loops.runtime_sizes import Sizes, as_integer
from smelt.device import Target
from smelt.ir.kernel import Kernel
from smelt.ir.kernel_code import GridPhase
from smelt.ir.loops import Address, Compute, Convert, Function, Id, If, Node, Number, Value
from smelt.ir.substitute_sizes import length_axis, lengthened
from smelt.ir.text import format_kernel
from smelt.symbolic.expressions import ShapeEnv, Symbol
from smelt.symbolic.symsize import expression_of, sym_size

_BLOCK, _FIRST, _OWN = param("block"), param("first"), param("own")  # of the launch; the member's first; its own
_MINE = param("mine", "ptr")


def _always(value: int) -> Callable[[Symbol], int]:
    """The value of a family's symbol in a member."""
    return lambda _: value


@dataclass(frozen=True, slots=True)
class GroupMembers:
    """The members of a group: the symbol's value and the first block of each."""

    values: tuple[int, ...]
    starts: tuple[int, ...]
    buffers: int  # of each

    def sizes(self, sizes: Sizes) -> list[list[int]]:
        """The values in each member of every size that the code needs."""
        return [[as_integer(size.evaluate(_always(value))) for value in self.values] for size in sizes.params]

    def chosen(self, results: Sequence[Value], of_each: Sequence[Sequence[Value]]) -> list[Node]:
        """From the block's number to the member: `results` become those of the member, and `_OWN` the number of its
        block."""
        starts = [Value("", "i64", number=start) for start in self.starts]
        nodes, values = self._search(
            (*results, _FIRST), [(*each, start) for each, start in zip(of_each, starts, strict=True)], 0, len(starts)
        )
        nodes.append(If(TRUE, [], [], (*results, _FIRST), values, values))
        nodes.append(Compute(_OWN, "sub", (_BLOCK, _FIRST)))
        return nodes

    def _search(
        self, names: Sequence[Value], of_each: Sequence[tuple[Value, ...]], low: int, high: int
    ) -> tuple[list[Node], tuple[Value, ...]]:
        """Nodes that find the member between two numbers, and its values."""
        if high - low == 1:
            return [], of_each[low]
        middle = (low + high) // 2
        then, then_values = self._search(names, of_each, low, middle)
        otherwise, else_values = self._search(names, of_each, middle, high)
        is_low = param(f"search{low}.{high}", "i1")
        results = tuple(Value(f"{name.name}.{low}.{high}", name.kind) for name in names)
        middle_start = Value("", "i64", number=self.starts[middle])
        return [
            Compute(is_low, "icmp ult", (_BLOCK, middle_start)),
            If(is_low, then, otherwise, results, then_values, else_values),
        ], results

    def size_params(self, sizes: Sizes) -> tuple[list[Value], list[list[Value]]]:
        """The parameters of sizes, and their values in each member."""
        columns = self.sizes(sizes)
        names = [param(f"size{slot}") for slot in range(len(columns))]
        return names, [[Value("", "i64", number=column[n]) for column in columns] for n in range(len(self.values))]


class GroupedPtx(Nvptx):
    """Code for the members of a group, for NVIDIA's GPUs."""

    def __init__(self, target: Target, symbol: str, sizes: Sizes, members: GroupMembers, threads: int) -> None:
        super().__init__(target, symbol, sizes, "i64", buffers=members.buffers, threads=threads)
        self.members = members

    def block_number(self) -> Value:
        return _OWN

    def grid_function(self) -> Function:
        assert self.sizes is not None
        members, here = self.members, param("here", "i32")
        names, sizes = members.size_params(self.sizes)
        own = [self.taken(number) for number in range(members.buffers)]
        params = [
            [Value(f"%given{member * len(own) + number}", each.kind) for number, each in enumerate(own)]
            for member in range(len(sizes))
        ]
        before = members.chosen([*own, *names], [[*each, *more] for each, more in zip(params, sizes, strict=True)])
        function = super().grid_function()
        function.params = (*(each for member in params for each in member), WORKSPACE)
        function.body[:0] = [Id(here, "block"), Convert(_BLOCK, "zext", here), *before]
        return function


class GroupedWarp(HostWarp):
    """The same for the host."""

    def __init__(self, target: Target, symbol: str, sizes: Sizes, members: GroupMembers) -> None:
        super().__init__(target, symbol, sizes, "i64", warp=target.warp_size)
        self.members = members

    def buffer_array(self) -> Value:
        return _MINE

    def block_number(self) -> Value:
        return _OWN

    def runtime_param(self, number: Number) -> Value:
        assert self.sizes is not None
        return param(f"size{self.sizes.slot(number)}")

    def grid_function(self) -> Function:
        assert self.sizes is not None
        members, base = self.members, param("base")
        names, sizes = members.size_params(self.sizes)
        first = [self.const("i64", member * members.buffers) for member in range(len(sizes))]
        before = members.chosen([base, *names], [[each, *more] for each, more in zip(first, sizes, strict=True)])
        return self._function([*before, Address(_MINE, BUFFERS, "ptr", base)])


Writer = Callable[[str, Sizes, GroupMembers, int], Simt]
"""Symbol, sizes, members and threads of a block → what writes code for all members."""


def emit_group(
    symbol: str, kernels: Sequence[Kernel], target: Target, writer: Writer, *, aligned: bool = True
) -> EntryCode | None:
    """One grid for kernels that differ in their length alone, whose buffers come one kernel's after the other's; None
    where they do not, or are no pointwise kernels along a line."""
    shared = _body(kernels)
    if shared is None:
        return None
    body, values, shape_env = shared
    grid_plan: GridPlan = plan(body, target.warp_size)
    if len(grid_plan.phases) != 1 or grid_plan.workspace:
        return None
    (phase,) = grid_plan.phases
    if phase.along is not Along.POINTS or phase.tile is not None:
        return None
    if not all(guard.holds(_always(value)) for guard in shape_env.guards for value in values):
        return None
    blocks = [as_integer(expression_of(phase.blocks).evaluate(_always(value))) for value in values]
    buffers = len(body.parameters)
    members = GroupMembers(values, tuple(accumulate(blocks[:-1], initial=0)), buffers)
    sizes = Sizes(buffers)
    b = writer(symbol, sizes, members, phase.threads)
    pointers = {buffer.name: (lambda n=n: b.parameter(n)) for n, buffer in enumerate(grid_plan.kernel.parameters)}
    PointsBody(b, phase, pointers, aligned=aligned).write()
    if not all(guard.holds(_always(value)) for guard in shape_env.guards for value in values):
        return None  # the code relies on something else
    grid = GridPhase(symbol, sum(blocks), phase.threads, b.shared_bytes, b.has_barrier)
    return EntryCode((b.grid_function(),), tuple(b.helpers.items()), 0, phases=(grid,))


def _body(kernels: Sequence[Kernel]) -> tuple[Kernel, tuple[int, ...], ShapeEnv] | None:
    """The common body, the symbol's value in each kernel, and the symbol's `ShapeEnv`. Kernels of equal length are the
    body themselves."""
    axes = [length_axis(kernel) for kernel in kernels]
    known = [(kernel, axis) for kernel, axis in zip(kernels, axes, strict=True) if axis is not None]
    texts = {format_kernel(replace(lengthened(kernel, axis, 0), name="")) for kernel, axis in known}
    lengths = [axis.size for _, axis in known]
    if len(texts) != 1 or len(known) != len(kernels) or kernels[0].rows:
        return None
    shape_env, first = ShapeEnv(), kernels[0]
    if len(set(lengths)) == 1:
        return first, tuple(lengths), shape_env
    assert axes[0] is not None
    # As many points as all have together keep the chip busy.
    varies = sym_size(shape_env, shape_env.symbol("length", sum(lengths)))
    return lengthened(first, axes[0], varies), tuple(lengths), shape_env
