"""The epilogue of a product: the kernel's other instructions, at the points of a finished block.

    p = contract …; v = add p, b; store y = v     given the vector of p at a row and column → instructions for the rest

Rows are the axes of `batch` and `m`, cols those of `n`. Values that do not change along cols are computed once per row.
"""

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.cpu.addresses import Addresses
from smelt.codegen.cpu.instructions import InstructionWriter
from smelt.codegen.cpu.products.problem import Problem
from smelt.codegen.cpu.schedule import SchedulePlan, lanes_of, loop_variant
from smelt.codegen.cpu.workspace import WorkspaceLayout
from smelt.codegen.loops.builder import Builder
from smelt.device import Target
from smelt.ir.kernel import Instruction
from smelt.ir.loops import Value


def epilogue_lanes(problem: Problem, target: Target, most: int) -> int:
    """How many points side by side: a power of two, `most` at most."""
    lanes = lanes_of(problem.kernel, target)
    while lanes > max(1, most):
        lanes //= 2
    return lanes


@dataclass(slots=True)
class Epilogue:
    """The state of writing it. The writer of the loops sets the axes of rows, and of cols but the last, in
    `at.axes`."""

    b: Builder
    problem: Problem
    at: Addresses
    code: InstructionWriter
    inside: tuple[Instruction, ...]  # what is done at every point
    outside: tuple[Instruction, ...]  # and once a row

    @classmethod
    def of(cls, b: Builder, problem: Problem, lanes: int) -> "Epilogue":
        """Reads the buffers' addresses where it stands."""
        plan = SchedulePlan(problem.kernel, lanes=lanes)
        at = Addresses(b, plan, WorkspaceLayout.of(plan))
        at.load_pointers()
        moving = {id(i) for i in loop_variant(problem.kernel, problem.stage)}
        inside = tuple(i for i in problem.epilogue if id(i) in moving)
        outside = tuple(i for i in problem.epilogue if id(i) not in moving)
        return cls(b, problem, at, InstructionWriter.of(b, plan, at), inside, outside)

    def begin_row(self) -> None:
        """Compute the row values at the current position of the row axes."""
        self.code.begin_row()
        self.at.lanes = 1
        for instruction in self.outside:
            self.code.write(instruction)
        self.code.hold_addresses(self.inside)

    def write(self, column: Value, product: Value, mask: Value | None = None) -> None:
        """Of as many points as `product` has lanes, from `column` of the last axis on; with `mask`, of the last that
        are there, where some of them were done before (see `loop_nest`)."""
        if self.at.vector_axis:
            self.at.axes[self.at.vector_axis] = column
        self.at.lanes = product.lanes
        self.code.mask = mask
        self.code.values[self.problem.contract.out] = product
        for instruction in self.inside:
            self.code.write(instruction)
        self.code.mask = None
