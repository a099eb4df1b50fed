"""`RecurrenceProblem`: a kernel with steps in the form that code is written from.

rows(b:8) cols(j:128), steps(t:50): p0 … p3 = contract (k:128) h[k], w[…], then stores to h and c
→ row b:8   col j:128   state h   products p0 … p3 of depth 128   before, in and after the steps: instructions
"""

from dataclasses import replace

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.ir.kernel import Axis, Buffer, Contract, Instruction, Kernel, Role, Stage, Store
from smelt.symbolic.shapes import Size
from smelt.symbolic.symsize import is_symsize

NEXT = ".next"  # behind the name of a scratch buffer: what a step stores to it


@dataclass(frozen=True, slots=True)
class RecurrenceProblem:
    kernel: Kernel
    before: tuple[Instruction, ...]
    stage: Stage
    after: tuple[Instruction, ...]

    @property
    def row(self) -> Axis:
        return self.kernel.rows[0]

    @property
    def col(self) -> Axis:
        return self.kernel.cols[0]

    @property
    def steps(self) -> Axis:
        assert self.stage.steps is not None
        return self.stage.steps

    @property
    def products(self) -> tuple[Contract, ...]:
        return tuple(each for each in self.stage.body if isinstance(each, Contract))

    @property
    def width(self) -> int:
        return int(self.col.size)

    @property
    def depth(self) -> int:
        return int(self.products[0].axes[0].size)

    @property
    def state(self) -> str:
        """The scratch buffer that is multiplied."""
        return self.products[0].left.buffer

    @property
    def dtype(self) -> torch.dtype:
        return self.products[0].dtype

    @property
    def scratch(self) -> tuple[Buffer, ...]:
        return tuple(each for each in self.kernel.buffers if each.role is Role.SCRATCH)

    @property
    def multiplications(self) -> Size:
        """Of a row."""
        return len(self.products) * self.depth * self.width * self.steps.size

    def outside(self, body: tuple[Instruction, ...]) -> Kernel:
        """A kernel of the instructions before or after the steps."""
        return replace(self.kernel, stages=(Stage(True, body),))

    def inside(self) -> Kernel:
        """A kernel of the instructions of a step, whose number is an axis of the rows. It stores to scratch buffers
        other than those that it reads."""
        later = tuple(replace(each, name=each.name + NEXT) for each in self.scratch)
        names = {each.name for each in self.scratch}

        def stored(instruction: Instruction) -> Instruction:
            if isinstance(instruction, Store) and instruction.buffer in names:
                return replace(instruction, buffer=instruction.buffer + NEXT)
            return instruction

        body = tuple(map(stored, self.stage.body))
        rows = (*self.kernel.rows, self.steps)
        return replace(self.kernel, rows=rows, buffers=(*self.kernel.buffers, *later), stages=(Stage(True, body),))


def is_recurrence(kernel: Kernel) -> bool:
    return kernel.stepped is not None


def why_no_problem(kernel: Kernel) -> str | None:
    """Why no code is written for a kernel with steps."""
    stage = kernel.stepped
    if stage is None:
        return "it has no steps"
    if len(kernel.rows) != 1 or len(kernel.cols) != 1 or is_symsize(kernel.cols[0].size):
        return "its rows or cols are not one axis, or its cols vary"
    place = kernel.stages.index(stage)
    if place > 1 or len(kernel.stages) > place + 2 or not all(each.loop for each in kernel.stages):
        return "more than one loop is before or after its steps"
    products = [each for each in stage.body if isinstance(each, Contract)]
    if not products:
        return "it multiplies nothing"
    if any(len(each.axes) != 1 or is_symsize(each.axes[0].size) for each in products):
        return "its products are not over one axis whose size is known"
    return next(filter(None, (_why_no_product(kernel, each, products[0]) for each in products)), None)


def _why_no_product(kernel: Kernel, each: Contract, first: Contract) -> str | None:
    own, row, steps = each.axes[0].name, kernel.rows[0].name, kernel.stepped
    assert steps is not None and steps.steps is not None
    if (each.left, each.axes, each.dtype) != (first.left, first.axes, first.dtype):
        return "its products are not of one state"
    left, right = each.factors
    if kernel.buffer(left.buffer).role is not Role.SCRATCH or left.index.terms != ((own, 1),) or left.index.offset:
        return "what it multiplies is not the state"
    if {row, steps.steps.name} & right.index.axes or kernel.buffer(right.buffer).role is not Role.INPUT:
        return "a weight is not the same for all rows and steps"
    if any(factor.bounds or factor.quantized for factor in each.factors):
        return "a factor has bounds, or is quantized"
    if any(kernel.buffer(factor.buffer).dtype is not each.dtype for factor in each.factors):
        return "a factor is not of the dtype it is summed in"
    return None


def problem_of(kernel: Kernel) -> RecurrenceProblem:
    """What `kernel` computes; `why_no_problem` has nothing against it."""
    stage = kernel.stepped
    assert stage is not None
    place = kernel.stages.index(stage)
    before = kernel.stages[0].body if place else ()
    after = kernel.stages[place + 1].body if place + 1 < len(kernel.stages) else ()
    return RecurrenceProblem(kernel, before, stage, after)
