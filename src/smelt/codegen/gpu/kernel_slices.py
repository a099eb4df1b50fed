"""Splits a kernel: a slice has some instructions and what they need, the rest stays without them.

    loop:                                   slice for the scatter              what is left
      p = load places[i]                      p = load places[i]                 p = load places[i]
      ok = lt p, n                            v = load x[i]                      ok = lt p, n
      all_ok = reduce all ok                  scatter sum y[0] by 1*p = v        all_ok = reduce all ok
      v = load x[i]                                                            row:
      scatter sum y[0] by 1*p = v                                                store good[0] = all_ok
    row:
      store good[0] = all_ok

Values that need only loads and arithmetic are recomputed rather than passed through memory.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from smelt.codegen.axes import rewritten
from smelt.ir.check_kernel import operands, result
from smelt.ir.kernel import (
    Access,
    Accumulate,
    Axis,
    Buffer,
    Gather,
    Index,
    Instruction,
    Kernel,
    Load,
    Position,
    Reduce,
    Role,
    Scan,
    Scatter,
    Stage,
    Store,
)
from smelt.symbolic.symsize import known_equal

_EFFECTS = Store | Accumulate | Scatter


def has(kernel: Kernel, *kinds: type) -> bool:
    """Whether there are instructions of one of these kinds."""
    return any(isinstance(i, kinds) for i in kernel.instructions())


def in_order(instruction: Instruction, axes: Sequence[Axis]) -> Instruction:
    """Its index with terms in the order of `axes`."""
    if not isinstance(instruction, Access | Position):
        return instruction
    index = instruction.index
    terms = tuple((axis.name, index.stride(axis.name)) for axis in axes if axis.name in index.axes)
    return replace(instruction, index=Index(terms, index.offset))


def with_axes(kernel: Kernel, rows: Iterable[Axis], cols: Iterable[Axis]) -> Kernel:
    """With its axes in this order, and all terms."""
    kernel = replace(kernel, rows=tuple(rows), cols=tuple(cols))
    return rewritten(kernel, lambda i: [in_order(i, kernel.rows + kernel.cols)])


def with_buffers(kernel: Kernel, stages: Sequence[Stage], extra: Iterable[Buffer], name: str) -> Kernel:
    """A kernel of other stages, with the buffers they touch: inputs where they only read, updated where they
    scatter."""
    touched = {i.buffer: Role.INPUT for stage in stages for i in stage.body if isinstance(i, Access)}
    known = {buffer.name: buffer for buffer in (*kernel.buffers, *extra)}
    for i in (i for stage in stages for i in stage.body):
        if isinstance(i, Scatter):
            touched[i.buffer] = Role.INOUT
        elif isinstance(i, Access) and (isinstance(i, Store | Accumulate) or known[i.buffer].role is Role.SCRATCH):
            touched[i.buffer] = known[i.buffer].role
    buffers = [replace(each, role=touched[name]) for name, each in known.items() if name in touched]
    return replace(kernel, name=name, buffers=tuple(buffers), stages=tuple(stages))


def leading_to(code: Sequence[Instruction], values: Iterable[str]) -> list[Instruction]:
    """Those instructions that the values come from."""
    wanted = set(values)
    needed: list[Instruction] = []
    for instruction in reversed(code):
        if result(instruction) in wanted:
            wanted.update(operands(instruction))
            needed.append(instruction)
    return needed[::-1]


def sliced(kernel: Kernel, wanted: Collection[Instruction], extra: Iterable[Buffer] = (), name: str = "") -> Kernel:
    """The kernel that runs `wanted`, and of the rest what these need."""
    kernel = replace(kernel, buffers=(*kernel.buffers, *extra))
    chosen = {id(i) for i in wanted}
    roles = {buffer.name: buffer.role for buffer in kernel.buffers}
    values = {value for i in wanted for value in operands(i)}
    memory: set[str] = set()
    stages: list[Stage] = []
    for stage in reversed(kernel.stages):
        body: list[Instruction] = []
        for instruction in reversed(stage.body):
            into = isinstance(instruction, Store) and instruction.buffer in memory
            if id(instruction) in chosen or into or result(instruction) in values:
                body.append(instruction)
                values.update(operands(instruction))
                if isinstance(instruction, Load) and roles[instruction.buffer] in (Role.SCRATCH, Role.OUTPUT):
                    memory.add(instruction.buffer)  # what is stored there twice is the same
        if body:
            stages.append(Stage(stage.loop, tuple(reversed(body))))
    return with_buffers(kernel, tuple(reversed(stages)), (), name or kernel.name)


def reads_updates(kernel: Kernel, part: Kernel) -> bool:
    """Whether a slice of `kernel` loads a buffer that the kernel updated in place before."""
    names = {result(i) for i in part.instructions()}
    updated: set[str] = set()
    for instruction in kernel.instructions():
        if isinstance(instruction, Load) and instruction.buffer in updated and instruction.out in names:
            return True
        if isinstance(instruction, Store) and kernel.buffer(instruction.buffer).role is Role.INOUT:
            updated.add(instruction.buffer)
    return False


def effects(kernel: Kernel) -> list[Instruction]:
    """The instructions that write memory."""
    scratch = {buffer.name for buffer in kernel.buffers if buffer.role is Role.SCRATCH}
    return [i for i in kernel.instructions() if isinstance(i, _EFFECTS) and i.buffer not in scratch]


def is_pure(kernel: Kernel, part: Kernel) -> bool:
    """Whether every value of a slice is computed pointwise from the kernel's inputs."""
    buffers = {buffer.name: buffer.role for buffer in kernel.buffers}
    for instruction in part.instructions():
        if isinstance(instruction, Reduce | Scan):
            return False
        if isinstance(instruction, Load | Gather) and buffers[instruction.buffer] is not Role.INPUT:
            return False
    return True


def exchanged(kernel: Kernel, old: Instruction, new: Sequence[Instruction], extra: Iterable[Buffer] = ()) -> Kernel:
    """With other instructions in the place of one."""
    kernel = rewritten(kernel, lambda i: new if i is old else [i])
    return replace(kernel, buffers=(*kernel.buffers, *extra))


def updated_in_place(kernel: Kernel) -> set[str]:
    """Buffers of which each point is read and written at one index, which names all axes: by one thread, once."""
    names = {axis.name for axis in kernel.rows + kernel.cols if not known_equal(axis.size, 1)}
    indices: dict[str, set[Index]] = {}
    for i in kernel.instructions():
        if isinstance(i, Access):
            indices.setdefault(i.buffer, set()).add(i.index)
    inout = [buffer.name for buffer in kernel.buffers if buffer.role is Role.INOUT]
    return {name for name in inout if len(indices[name]) == 1 and names <= next(iter(indices[name])).axes}
