"""Lets an output reuse the memory of an input that nothing reads later.

    launch k3(mm, bias, relu)   the last read of mm; relu has its size and is written where mm is read
    →  launch k3_in0out0(mm, bias)   with mm `inout`; readers of relu read mm

This is safe if the kernel reads the dying buffer only at the index where it stores the output, and before the store.
Only arena memory is reused: inputs, constants and library results belong to others. An input is overwritten only by
its own new value:

    launch k7(weight, gradient, new)   new is the weight's new value
    →  launch k7_in0out0(weight, gradient)   and nothing is returned for the weight
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from smelt.base.rewrite_budget import RewriteBudget
from smelt.fuse.memory_plan import aliases, lifetimes
from smelt.ir.kernel import Accumulate, Buffer, Contract, Gather, Index, Kernel, Load, Role, Stage, Store, WeightedSum
from smelt.ir.program import (
    Launch,
    Library,
    Operand,
    Place,
    Program,
    ProgramBuffer,
    Step,
    operands_in,
    reads,
    writes,
)
from smelt.symbolic.shapes import span
from smelt.symbolic.symsize import known_equal

aten = torch.ops.aten


def reuse_in_place(program: Program, budget: RewriteBudget) -> Program:
    """Let outputs of kernels reuse the memory of dying inputs where that is safe."""
    return _Reuse(program, budget).run()


def write_in_place(program: Program, pairs: Sequence[tuple[int, int]], budget: RewriteBudget) -> Program:
    """Let kernels write new values of inputs (outputs and inputs by position) where the old ones are.

    Only behind the last library call that may fail: then nothing must have been written.
    """
    return _Overwrite(program, budget).run(pairs) if pairs else program


class _Overwrite:
    def __init__(self, program: Program, budget: RewriteBudget) -> None:
        self.program = program
        self.budget = budget
        self.steps = list(program.steps)
        self.outputs = list(program.outputs)
        self.buffers = {buffer.name: buffer for buffer in program.buffers}
        self.used = {name: last for name, (_, last) in lifetimes(program).items()}
        self.writer = {name: number for number, step in enumerate(self.steps) for name in writes(step)}
        self.returned = Counter(operand.buffer for operand in operands_in(program.outputs))
        self.viewed = {name for step in self.steps if aliases(step) for name in reads(step)}
        calls = [number for number, step in enumerate(self.steps) if isinstance(step, Library) and may_fail(step.op)]
        self.last_call = calls[-1] if calls else -1
        self.now: dict[str, str] = {}  # new values → the inputs they lie in

    def run(self, pairs: Sequence[tuple[int, int]]) -> Program:
        for place, number in pairs:
            self._try(place, self.program.inputs[number])
        return replace(
            self.program,
            buffers=tuple(buffer for buffer in self.program.buffers if buffer.name not in self.now),
            steps=tuple(_step_renamed(step, self.now) for step in self.steps),
            outputs=tuple(self.outputs),
        )

    def _try(self, place: int, mine: str) -> None:
        output = self.outputs[place]
        if not isinstance(output, Operand):
            return
        theirs, spec = output.buffer, self.buffers[mine].spec
        if output == Operand(mine, spec.shape, spec.stride):  # a scatter has put it there, or nothing has
            self.outputs[place] = None
            return
        number = self.writer.get(theirs, -1)
        if self.buffers[theirs].place is not Place.FRESH or output != Operand(theirs, spec.shape, spec.stride):
            return
        if self.returned[theirs] != 1 or self.returned[mine] or mine in self.viewed or number <= self.last_call:
            return
        step = self.steps[number]
        if not isinstance(step, Launch) or self.used.get(mine) != number or step.args.count(mine) != 1:
            return
        if not isinstance(step.kernel, Kernel):
            return
        parameters = dict(zip(step.args, step.kernel.parameters, strict=True))
        source, target = parameters[mine], parameters[theirs]
        if source.role is not Role.INPUT or target.role is not Role.OUTPUT or not is_safe(step.kernel, source, target):
            return
        if not _as_long(self.buffers[mine], self.buffers[theirs]) or not self.budget.take(theirs, mine):
            return
        args = tuple(name for name in step.args if name != theirs)
        self.steps[number] = Launch(merged(step.kernel, source, target), args)
        self.outputs[place] = None
        self.now[theirs] = mine


class _Reuse:
    def __init__(self, program: Program, budget: RewriteBudget) -> None:
        self.program = program
        self.budget = budget
        self.buffers = {buffer.name: buffer for buffer in program.buffers}
        self.lives = lifetimes(program)
        # Memory that a library call has handed out a view of is read at places the kernel does not show.
        self.viewed = {name for step in program.steps if aliases(step) for name in reads(step)}
        self.now: dict[str, str] = {}  # buffers taken over → whose memory they have
        self.leaving: set[str] = set()  # those whose memory leaves the program in the end
        # Many steps launch one kernel, and go on launching one: by its id, with the kernel, and two of its buffers.
        self._safe: dict[tuple[int, str, str], tuple[Kernel, bool]] = {}
        self._merged: dict[tuple[int, str, str], tuple[Kernel, Kernel]] = {}

    def run(self) -> Program:
        steps = [self._step(number, step) for number, step in enumerate(self.program.steps)]
        if not self.now:
            return self.program
        left = [buffer for buffer in self.program.buffers if buffer.name not in self.now]
        buffers = tuple(replace(each, place=Place.FRESH) if each.name in self.leaving else each for each in left)
        outputs = tuple(_renamed(output, self.now) for output in self.program.outputs)
        return replace(self.program, buffers=buffers, steps=tuple(steps), outputs=outputs)

    def _step(self, number: int, step: Step) -> Step:
        step = _step_renamed(step, self.now)
        if isinstance(step, Library) or not isinstance(step.kernel, Kernel):
            return step
        kernel, args = step.kernel, step.args
        for source in [parameter for parameter in kernel.parameters if parameter.role is Role.INPUT]:
            arguments = dict(zip((p.name for p in kernel.parameters), args, strict=True))
            target = self._taker(number, kernel, source, arguments)
            if target is None or not self.budget.take(arguments[target.name], arguments[source.name]):
                continue
            mine, taken = arguments[source.name], arguments[target.name]
            self.now[taken] = mine
            if self.buffers[taken].place is Place.FRESH:
                self.leaving.add(mine)
            self.lives[mine] = (self.lives[mine][0], self.lives[taken][1])
            args = tuple(name for name in args if name != taken)
            key = (id(kernel), source.name, target.name)
            if key not in self._merged:
                self._merged[key] = kernel, merged(kernel, source, target)
            kernel = self._merged[key][1]
        return Launch(kernel, args)

    def _taker(self, number: int, kernel: Kernel, source: Buffer, arguments: dict[str, str]) -> Buffer | None:
        """The output of this launch that may reuse the buffer passed for `source`."""
        mine = self.buffers[arguments[source.name]]
        if mine.place is not Place.ARENA or mine.name in self.leaving or self.lives[mine.name][1] != number:
            return None
        if list(arguments.values()).count(mine.name) != 1 or mine.name in self.viewed:
            return None
        for target in kernel.parameters:
            theirs = self.buffers[arguments[target.name]]
            if target.role is Role.OUTPUT and _alike(mine, theirs) and self._may_overwrite(kernel, source, target):
                return target
        return None

    def _may_overwrite(self, kernel: Kernel, source: Buffer, target: Buffer) -> bool:
        key = (id(kernel), source.name, target.name)
        if key not in self._safe:
            self._safe[key] = kernel, is_safe(kernel, source, target)
        return self._safe[key][1]


# Products that write into memory given to them, copies, gradients, which have the shape and dtype of what they are of,
# and what shapes alone decide about: all that can go wrong is that memory runs out.
_SURE = frozenset(
    {
        aten.mm.out,
        aten.bmm.out,
        aten.addmm.out,
        aten.baddbmm.out,
        aten.cat.out,
        aten.clone.default,
        aten.stack.default,
        aten.unbind.int,
        aten._to_copy.default,
        aten.convolution.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_cudnn_attention.default,
        aten.topk.default,
        aten.sort.default,
        aten.convolution_backward.default,
        aten.col2im.out,
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
        aten._scaled_dot_product_flash_attention_backward.default,
        aten._scaled_dot_product_efficient_attention_backward.default,
        aten.embedding_dense_backward.default,
    }
)


def may_fail(op: torch._ops.OpOverload) -> bool:
    """Whether a library call may raise for some values, or return something other than its spec."""
    return op not in _SURE


def _renamed(value: Any, now: Mapping[str, str]) -> Any:
    if isinstance(value, Operand):
        return replace(value, buffer=now.get(value.buffer, value.buffer))
    if isinstance(value, list | tuple):
        return type(value)(_renamed(item, now) for item in value)
    return value


def _step_renamed(step: Step, now: Mapping[str, str]) -> Step:
    if isinstance(step, Launch):
        return Launch(step.kernel, tuple(now.get(name, name) for name in step.args))
    kwargs = tuple((name, _renamed(value, now)) for name, value in step.kwargs)
    unless = None if step.unless is None else now.get(step.unless, step.unless)
    return replace(step, args=_renamed(step.args, now), kwargs=kwargs, unless=unless)


def _alike(mine: ProgramBuffer, theirs: ProgramBuffer) -> bool:
    return theirs.place in (Place.ARENA, Place.FRESH) and _as_long(mine, theirs)


def _as_long(mine: ProgramBuffer, theirs: ProgramBuffer) -> bool:
    return (
        mine.spec.dtype is theirs.spec.dtype
        and mine.spec.device == theirs.spec.device
        and known_equal(span(mine.spec.shape, mine.spec.stride), span(theirs.spec.shape, theirs.spec.stride))
    )


def is_safe(kernel: Kernel, source: Buffer, target: Buffer) -> bool:
    """Whether `target` may overwrite `source`."""
    if kernel.stepped is not None:  # what a later step reads is in the same buffer
        return False
    index: Index | None = None
    for instruction in kernel.instructions():
        if isinstance(instruction, Gather) and instruction.buffer == source.name:
            return False
        if isinstance(instruction, Contract):
            if source.name in {each.buffer for factor in instruction.factors for each in factor.elements}:
                return False
            continue
        if isinstance(instruction, WeightedSum):  # it is written when other rows may still be read
            return False
        if isinstance(instruction, Load) and instruction.buffer in (source.name, target.name):
            if instruction.buffer == target.name or (index is not None and instruction.index != index):
                return False
            index = instruction.index
    stored = False
    for instruction in kernel.instructions():
        if isinstance(instruction, Accumulate) and instruction.buffer == target.name:
            return False
        if isinstance(instruction, Store) and instruction.buffer == target.name:
            if stored or instruction.index != index:
                return False
            stored = True
        if stored and isinstance(instruction, Load) and instruction.buffer == source.name:
            return False
    return stored


def merged(kernel: Kernel, source: Buffer, target: Buffer) -> Kernel:
    """The kernel with one `inout` buffer in place of two."""
    buffers = tuple(
        replace(buffer, role=Role.INOUT) if buffer.name == source.name else buffer
        for buffer in kernel.buffers
        if buffer.name != target.name
    )
    stages = tuple(
        Stage(
            stage.loop,
            tuple(
                replace(i, buffer=source.name) if isinstance(i, Store) and i.buffer == target.name else i
                for i in stage.body
            ),
        )
        for stage in kernel.stages
    )
    name = f"{kernel.name}_{source.name}{target.name}"
    return replace(kernel, name=name, buffers=buffers, stages=stages)
