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
from smelt.codegen.gpu.simt import Simt
from smelt.codegen.llvm.builder import LlvmValue, Number
from smelt.codegen.llvm.runtime_sizes import Sizes, as_integer
from smelt.device import Target
from smelt.ir.kernel import Kernel
from smelt.ir.kernel_code import GridPhase
from smelt.ir.substitute_sizes import length_axis, lengthened
from smelt.ir.text import format_kernel
from smelt.symbolic.expressions import ShapeEnv, Symbol
from smelt.symbolic.symsize import expression_of, sym_size

_OWN = "member"  # where the code of a member begins


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

    def entry(self, phis: Sequence[tuple[str, str, Sequence[str]]]) -> list[str]:
        """From the block's number to the member, with the values named by `phis`: (name, type, that of each member)."""
        lines: list[str] = ["entry:"]
        self._search(lines, 0, len(self.values))
        lines.append(f"{_OWN}:")
        for name, kind, each in (*phis, ("%first", "i64", [str(start) for start in self.starts])):
            incoming = ", ".join(f"[ {value}, %leaf{number} ]" for number, value in enumerate(each))
            lines.append(f"{name} = phi {kind} {incoming}")
        lines.append("%own = sub i64 %block, %first")
        return lines

    def _search(self, lines: list[str], low: int, high: int) -> None:
        if high - low == 1:
            lines += [f"br label %leaf{low}", f"leaf{low}:", f"br label %{_OWN}"]
            return
        middle = (low + high) // 2
        name = f"search{low}.{high}"
        lines.append(f"%{name} = icmp ult i64 %block, {self.starts[middle]}")
        lines.append(f"br i1 %{name}, label %{name}.low, label %{name}.high")
        lines.append(f"{name}.low:")
        self._search(lines, low, middle)
        lines.append(f"{name}.high:")
        self._search(lines, middle, high)


class GroupedPtx(Nvptx):
    """Code for the members of a group, for NVIDIA's GPUs."""

    def __init__(self, target: Target, symbol: str, sizes: Sizes, members: GroupMembers, threads: int) -> None:
        super().__init__(target, symbol, sizes, "i64", buffers=members.buffers, threads=threads)
        self.members, self.block = members, _OWN

    def block_number(self) -> LlvmValue:
        return LlvmValue("%own", "i64")

    def function(self) -> str:
        assert self.sizes is not None
        members, pointer = self.members, "ptr addrspace(1)"
        count = len(members.values)
        phis = []
        for number in range(members.buffers):
            each = [f"%given{member * members.buffers + number}" for member in range(count)]
            phis.append((f"%b{number}", self._taken(number), each))
        for slot, values in enumerate(members.sizes(self.sizes)):
            phis.append((f"%size{slot}", "i64", [str(value) for value in values]))
        self.declared.add("declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()")
        first, *rest = members.entry(phis)
        where = ["%here = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()", "%block = zext i32 %here to i64"]
        body = "\n".join([first, *where, *rest, *self.prologue, *self.lines])
        taken = [f"{self._taken(n % members.buffers)} noundef %given{n}" for n in range(count * members.buffers)]
        limit = f'"nvvm.maxntid"="{self.threads}"'
        parameters = ", ".join([*taken, f"{pointer} noundef %workspace"])
        return f"define ptx_kernel void @{self.symbol}({parameters}) {limit} {{\n{body}\n  ret void\n}}\n"


class GroupedWarp(HostWarp):
    """The same for the host."""

    def __init__(self, target: Target, symbol: str, sizes: Sizes, members: GroupMembers) -> None:
        super().__init__(target, symbol, sizes, "i64", warp=target.warp_size)
        self.members, self.block = members, _OWN

    def block_number(self) -> LlvmValue:
        return LlvmValue("%own", "i64")

    def runtime_param(self, number: Number) -> LlvmValue:
        assert self.sizes is not None
        return LlvmValue(f"%size{self.sizes.slot(number)}", "i64")

    def function(self) -> str:
        assert self.sizes is not None
        members = self.members
        phis = [("%base", "i64", [str(member * members.buffers) for member in range(len(members.values))])]
        for slot, values in enumerate(members.sizes(self.sizes)):
            phis.append((f"%size{slot}", "i64", [str(value) for value in values]))
        addresses = ["%mine = getelementptr ptr, ptr %buffers, i64 %base"]
        prologue = [line.replace("ptr %buffers,", "ptr %mine,") for line in self.prologue]
        body = "\n".join([*members.entry(phis), *addresses, *prologue, *self.lines])
        taken = "ptr %buffers, ptr %workspace, i64 %block, i64 %warp, ptr %shared"
        return f"define void @{self.symbol}({taken}) {{\n{body}\n  ret void\n}}\n"


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
    return EntryCode(b.function(), frozenset(b.declared), tuple(b.helpers.items()), 0, phases=(grid,))


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
