"""Programs of a process for tests: steps with their kernels inside, as one table.

    program((Launched("k", launcher, (0,)),), outputs=(Ref(0),), tensors=(tensor(),), inputs=1)   →   ProgramTable
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from smelt.ir.table.records import Kernel, Launch, Layout, Program, ProgramTable, Step, Tensor


class Launched(NamedTuple):
    """A launch of a kernel, by what launches it."""

    name: str
    launcher: Any
    values: tuple[int, ...]
    target: str = ""


def tensor(
    name: str = "v", dtype: Any = None, device: Any = None, shape: tuple[int, ...] = (), stride: tuple[int, ...] = (),
    offset: int = 0, arena_offset: int = 0,
) -> Tensor:  # fmt: skip
    return Tensor(name, dtype, device, Layout(shape, stride, offset), arena_offset)


def program(
    steps: Sequence[Step | Launched],
    outputs: tuple[Any, ...] = (),
    tensors: tuple[Tensor, ...] = (),
    *,
    inputs: int = 0,
    constants: tuple[Any, ...] = (),
    arena: int = 0,
    arena_bytes: int = 0,
    consuming: bool = False,
    writes_from: int | None = None,
    name: str = "p",
) -> ProgramTable:
    kernels: list[Kernel] = []
    numbered: list[Step] = []
    for step in steps:
        if isinstance(step, Launched):
            kernel = Kernel(step.name, len(step.values), target=step.target, object=step.launcher)
            if kernel not in kernels:
                kernels.append(kernel)
            step = Launch(kernels.index(kernel), step.values)
        numbered.append(step)
    whole = Program(inputs, len(constants), arena, arena_bytes, consuming, outputs, writes_from)
    return ProgramTable(name, tensors, tuple(kernels), tuple(numbered), whole, constants)
