"""Launches consecutive kernels that need nothing of each other as one, in chains of short launches.

    launch k4(x, q), launch k5(x, k), launch k5(x, v)   →   launch s0_k4_and_2_more(x, q, x, k, x, v)

A launch takes a GPU longer than a small kernel. Only programs with products of our own have it, as for
`overlap_launches`: products that follow each other, and small pointwise kernels.
"""

from collections.abc import Callable
from dataclasses import replace

from smelt.base.rewrite_budget import RewriteBudget
from smelt.device.fusion_limits import Limits
from smelt.fuse.launches.overlap_launches import is_few_rows
from smelt.ir.kernel import Accumulate, Contract, Kernel, KernelGroup, Reduce, Role, Scan, WeightedSum
from smelt.ir.program import Launch, Program, Step, reads, writes
from smelt.ir.substitute_sizes import shape_env_of

_MOST_KERNELS = 4
_MOST_POINTS = 1 << 16  # of a pointwise kernel: launching a larger one takes less time than running it


def side_by_side(program: Program, limits_of: Callable[[str], Limits], budget: RewriteBudget) -> Program:
    """The program with such kernels grouped."""
    if not any(kind_of(step, limits_of) is Contract for step in program.steps):
        return program
    steps: list[Step] = []
    waiting: list[Launch] = []
    groups: dict[tuple[int, ...], KernelGroup] = {}

    def launch() -> None:
        kernels = tuple(step.kernel for step in waiting if isinstance(step.kernel, Kernel))
        if len(waiting) < 2 or not budget.take(*(kernel.name for kernel in kernels)):
            steps.extend(waiting)
        else:
            name = f"s{len(groups)}_{kernels[0].name}_and_{len(kernels) - 1}_more"
            group = groups.setdefault(tuple(map(id, kernels)), KernelGroup(name, kernels))
            steps.append(Launch(group, tuple(name for step in waiting for name in step.args)))
        waiting.clear()

    for step in program.steps:
        kind = kind_of(step, limits_of)
        if waiting and (kind is None or kind is not kind_of(waiting[-1], limits_of) or not _may_join(waiting, step)):
            launch()
        if kind is None:
            steps.append(step)
        else:
            assert isinstance(step, Launch)
            waiting.append(step)
    launch()
    return replace(program, steps=tuple(steps))


def kind_of(step: Step, limits_of: Callable[[str], Limits]) -> type | None:
    """What a step that may be grouped is: `Contract` or `Kernel`, for a small pointwise one."""
    if not isinstance(step, Launch) or not isinstance(step.kernel, Kernel):
        return None
    kernel = step.kernel
    if not limits_of(kernel.target).overlaps_launches or shape_env_of(kernel) is not None:
        return None
    kinds = {type(i) for i in kernel.instructions()}
    if is_few_rows(kernel):
        return Contract
    if kinds & {Contract, WeightedSum} or any(buffer.role is Role.SCRATCH for buffer in kernel.buffers):
        return None
    points = int(kernel.row_count) * int(kernel.col_count)
    return None if kinds & {Reduce, Scan, Accumulate} or points > _MOST_POINTS else Kernel


def _may_join(waiting: list[Launch], step: Step) -> bool:
    """Whether the order of a launch and of those that wait is free."""
    touched = {name for each in waiting for name in (*reads(each), *writes(each))}
    written = {name for each in waiting for name in writes(each)}
    free = not written & set(reads(step)) and not touched & set(writes(step))
    return free and len(waiting) < _MOST_KERNELS
