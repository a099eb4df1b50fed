"""Computes two rows at a time, one from each half of the rows: values that both add to are read and written once, and
memory is read as two streams.

    rows(i:4096) cols(j:1024)                       rows(i:2048) cols(j:1024)
      a = load x[1024*i + j]                          a = load x[1024*i + j]
      w = load weight[j]                              a' = load x[1024*i + j + 2097152]
      b = mul a, w                                    w = load weight[j]
      accumulate sum y[j] = b                     →   b = mul a, w
                                                      b' = mul a', w
                                                      b+b' = add b, b'
                                                      accumulate sum y[j] = b+b'

Adjacent rows would be slower: each stream would have gaps, which defeat the hardware prefetcher.
"""

from collections.abc import Iterator
from dataclasses import replace

from smelt.codegen.axes import Pure, renamed, rewritten
from smelt.codegen.loops.reductions import COMBINE
from smelt.ir.check_kernel import operands, value_dtypes
from smelt.ir.kernel import (
    Access,
    Accumulate,
    Axis,
    Compute,
    Gather,
    Instruction,
    Kernel,
    Load,
    Position,
    Role,
    Store,
)
from smelt.symbolic.symsize import known_equal


def paired(kernel: Kernel) -> Kernel | None:
    """`kernel` with row i computed together with row i + n/2; None if n is odd or reductions distinguish rows."""
    if not kernel.rows or not known_equal(kernel.rows[-1].size % 2, 0):
        return None
    axis = kernel.rows[-1]
    folds = [i for i in kernel.instructions() if isinstance(i, Accumulate)]
    return None if any(axis.name in fold.index.axes for fold in folds) else _Pairing(kernel, axis).run()


class _Pairing:
    def __init__(self, kernel: Kernel, axis: Axis) -> None:
        self.kernel = kernel
        self.axis = axis
        self.half = axis.size // 2
        self.dtypes = value_dtypes(kernel)
        self.inputs = {buffer.name for buffer in kernel.buffers if buffer.role is Role.INPUT}
        self.scratch = {buffer.name for buffer in kernel.buffers if buffer.role is Role.SCRATCH}
        self.shared: set[str] = set()

    def run(self) -> Kernel:
        rows = (*self.kernel.rows[:-1], Axis(self.axis.name, self.half))
        second = tuple(replace(b, name=_second(b.name)) for b in self.kernel.buffers if b.role is Role.SCRATCH)
        return replace(rewritten(self.kernel, self._both), rows=rows, buffers=(*self.kernel.buffers, *second))

    def _both(self, instruction: Instruction) -> Iterator[Instruction]:
        """What an instruction becomes: itself where rows share it, else one for each of the two rows."""
        if self._is_shared(instruction):
            self.shared.add(instruction.out)  # type: ignore[union-attr]  # stores and reductions are never shared
            yield instruction
        elif isinstance(instruction, Accumulate):
            value, other = instruction.value, self._second(instruction.value)
            both = f"{value}+{other}"
            yield Compute(both, COMBINE[instruction.op], (value, other), self.dtypes[value])
            yield replace(instruction, value=both)
        else:
            yield instruction
            yield self._renamed(self._moved(instruction))

    def _is_shared(self, instruction: Instruction) -> bool:
        if not isinstance(instruction, Pure):
            return False
        if isinstance(instruction, Load | Gather) and instruction.buffer not in self.inputs:
            return False
        if isinstance(instruction, Load | Gather | Position) and self.axis.name in instruction.index.axes:
            return False
        return self.shared.issuperset(operands(instruction))

    def _moved(self, instruction: Instruction) -> Instruction:
        """At the second of the two rows."""
        if not isinstance(instruction, Load | Gather | Store | Position):
            return instruction
        index = instruction.index
        further = self.half * index.stride(self.axis.name)
        return replace(instruction, index=replace(index, offset=index.offset + further))

    def _renamed(self, instruction: Instruction) -> Instruction:
        """With the values and the scratch of the second of the two rows."""
        if isinstance(instruction, Access) and instruction.buffer in self.scratch:
            instruction = replace(instruction, buffer=_second(instruction.buffer))
        return renamed(instruction, _second, self._second)

    def _second(self, name: str) -> str:
        return name if name in self.shared else _second(name)


def _second(name: str) -> str:
    return f"{name}'"
