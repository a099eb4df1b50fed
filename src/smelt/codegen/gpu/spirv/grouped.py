"""`GroupedSpirv`: many pointwise kernels of one body as one grid for Vulkan.

    member = how many others begin at or before the block;  %b0 = parameter 3 · member, %b1 = 3 · member + 1, …

Arrays of constants have the first block and the length of each member, and a block reads its member's parameters from
those of the launch: as branches, as on other targets, these would be too many for some devices.
"""

from smelt.codegen.gpu.launch_groups import GroupMembers
from smelt.codegen.gpu.spirv.thread import Spirv
from smelt.codegen.loops.builder import param
from smelt.codegen.loops.runtime_sizes import Sizes
from smelt.device import Target
from smelt.ir.loops import GLOBAL, Address, Compute, Convert, Function, Id, Load, Node, Table, Value

_OWN, _MEMBER = param("own"), param("member")


class GroupedSpirv(Spirv):
    """Code for the members of a group."""

    def __init__(self, target: Target, symbol: str, sizes: Sizes, members: GroupMembers, threads: int) -> None:
        super().__init__(target, symbol, sizes, "i64", buffers=members.buffers, threads=threads)
        self.members = members

    def block_number(self) -> Value:
        return _OWN

    def grid_function(self) -> Function:
        assert self.sizes is not None
        members, first, base = self.members, param("first"), param("base")
        block = self._block()
        tables = {"first": list(members.starts)}
        tables |= {f"size{slot}": values for slot, values in enumerate(members.sizes(self.sizes))}
        nodes = self._member(block)
        for name in tables:
            at = param(f"{name}.at", "ptr")
            nodes.append(Address(at, Value(f"@{self.symbol}.{name}", "ptr"), "i64", _MEMBER))
            nodes.append(Load(param(name), at, 8, invariant=True))
        nodes.append(Compute(_OWN, "sub", (block, first)))
        nodes.append(Compute(base, "mul", (_MEMBER, self.const("i64", members.buffers))))
        for number in range(members.buffers):
            buffer, at, whole = self.taken(number), param(f"at{number}"), param(f"given{number}")
            nodes.append(Compute(at, "add", (base, self.const("i64", number))))
            if buffer.kind == GLOBAL:
                nodes += [Id(whole, "parameter", at), Convert(buffer, "inttoptr", whole)]
            else:
                nodes.append(Id(buffer, "parameter", at))
        function = self._function(())
        # What the kernel's code asks for first, such as the block, comes before.
        function.body[len(self.prologue) : len(self.prologue)] = nodes
        function.parameters = len(members.values) * members.buffers + 1  # the workspace, too
        constants = {name: tuple(self.const("i64", value) for value in values) for name, values in tables.items()}
        function.tables = tuple(Table(f"{self.symbol}.{name}", values) for name, values in constants.items())
        return function

    def _member(self, block: Value) -> list[Node]:
        """From the block's number to the member's."""
        count, nodes = self.const("i64", 0), list[Node]()
        for number, start in enumerate(self.members.starts[1:], 1):
            after, one, more = param(f"after{number}", "i1"), param(f"one{number}"), param(f"count{number}")
            nodes.append(Compute(after, "icmp uge", (block, self.const("i64", start))))
            nodes += [Convert(one, "zext", after), Compute(more, "add", (count, one))]
            count = more
        nodes.append(Compute(_MEMBER, "add", (count, self.const("i64", 0))))
        return nodes
