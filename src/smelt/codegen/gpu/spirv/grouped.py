"""`GroupedSpirv`: many pointwise kernels of one body as one grid for Vulkan.

    member = how many others begin at or before the block;  %b0 = parameter 3 · member, %b1 = 3 · member + 1, …

SPIR-V does not allow branches from many places to one block, as other targets do. So arrays of constants have the first
block and the length of each member, and a block reads its member's parameters from those of the launch.
"""

from smelt.codegen.gpu.launch_groups import GroupMembers
from smelt.codegen.gpu.simt import GLOBAL
from smelt.codegen.gpu.spirv.thread import Spirv
from smelt.codegen.llvm.builder import LlvmValue
from smelt.codegen.llvm.runtime_sizes import Sizes
from smelt.device import Target


class GroupedSpirv(Spirv):
    """Code for the members of a group."""

    def __init__(self, target: Target, symbol: str, sizes: Sizes, members: GroupMembers, threads: int) -> None:
        super().__init__(target, symbol, sizes, "i64", buffers=members.buffers, threads=threads)
        self.members = members

    def block_number(self) -> LlvmValue:
        return LlvmValue("%own", "i64")

    def function(self) -> str:
        assert self.sizes is not None
        members = self.members
        tables = {"first": list(members.starts)}
        tables |= {f"size{slot}": values for slot, values in enumerate(members.sizes(self.sizes))}
        lines = self._member()
        for name in tables:
            lines.append(f"%{name}.at = getelementptr i64, ptr @{self.symbol}.{name}, i64 %member")
            lines.append(f"%{name} = load i64, ptr %{name}.at")
        lines += ["%own = sub i64 %block, %first", f"%base = mul i64 %member, {members.buffers}"]
        self.declared.add("declare i64 @smelt.parameter(i64)")
        for number in range(members.buffers):
            is_number = self._taken(number) != GLOBAL
            lines.append(f"%at{number} = add i64 %base, {number}")
            lines.append(f"{'%b' if is_number else '%given'}{number} = call i64 @smelt.parameter(i64 %at{number})")
            if not is_number:
                lines.append(f"%b{number} = inttoptr i64 %given{number} to {GLOBAL}")
        total = len(members.values) * members.buffers + 1  # the workspace, too
        text = "".join(_table(f"{self.symbol}.{name}", values) for name, values in tables.items())
        return text + self._function([], [*lines, *self.prologue, *self.lines], f' "parameters"="{total}"')

    def _member(self) -> list[str]:
        """From the block's number to the member's."""
        self.declared |= {"declare i32 @llvm.spv.group.id.i32(i32)", "declare i64 @smelt.first_block()"}
        lines = [
            "%group = call i32 @llvm.spv.group.id.i32(i32 0)",
            "%group.wide = zext i32 %group to i64",
            "%group.first = call i64 @smelt.first_block()",
            "%block = add i64 %group.first, %group.wide",
        ]
        count = "0"
        for number, start in enumerate(self.members.starts[1:], 1):
            lines.append(f"%after{number} = icmp uge i64 %block, {start}")
            lines.append(f"%one{number} = zext i1 %after{number} to i64")
            lines.append(f"%count{number} = add i64 {count}, %one{number}")
            count = f"%count{number}"
        lines.append(f"%member = add i64 {count}, 0")
        return lines


def _table(name: str, values: list[int]) -> str:
    elements = ", ".join(f"i64 {value}" for value in values)
    return f"@{name} = internal constant [{len(values)} x i64] [{elements}]\n"
