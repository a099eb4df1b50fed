"""Drops launches and checks on the device that repeat earlier ones, such as the check of an index in every layer.

    launch k7(position, a), assert a, …, launch k7(position, b), assert b   →   launch k7(position, a), assert a, …

The graph of such a program has each operation once; lowering adds these. A launch repeats another one if it runs the
same kernel on the same contents, and what the other one wrote is still there.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import Any

import torch

from smelt.base.rewrite_budget import RewriteBudget
from smelt.device.fusion_limits import Limits
from smelt.ir.kernel import Kernel, Role
from smelt.ir.program import Launch, Library, Operand, Place, Program, Step, operands_in, writes

_CHECK = torch.ops.aten._assert_async.msg


def drop_repeats(program: Program, limits_of: Callable[[str], Limits], budget: RewriteBudget) -> Program:
    """The program without such steps."""
    checks = [step for step in program.steps if isinstance(step, Library) and step.op is _CHECK]
    targets = {kernel.target for kernel in program.kernels}
    if len(checks) < 2 or any(limits_of(target).host_reads_flags for target in targets):
        return program
    returned = {operand.buffer for operand in operands_in(list(program.outputs))}
    places = {buffer.name: buffer.place for buffer in program.buffers}
    versions: Counter[str] = Counter()
    instead: dict[str, str] = {}
    known: dict[Hashable, dict[str, int]] = {}  # by what they do with which contents: what they wrote, by version
    steps: list[Step] = []
    for step in program.steps:
        step = _renamed(step, instead)
        key = _key(step, versions)
        earlier = known.get(key)
        if key is not None and earlier is not None and all(versions[name] == had for name, had in earlier.items()):
            own = writes(step)
            kept = any(name in returned or places[name] is not Place.ARENA for name in own)
            if not kept and budget.take(step.kernel.name if isinstance(step, Launch) else str(step.op)):
                instead.update(zip(own, earlier, strict=True))
                continue
        for name in writes(step):
            versions[name] += 1
        if key is not None:
            known[key] = {name: versions[name] for name in writes(step)}
        steps.append(step)
    buffers = tuple(buffer for buffer in program.buffers if buffer.name not in instead)
    return replace(program, steps=tuple(steps), buffers=buffers)


def _what(step: Step) -> Any:
    """What a step that may repeat another one does; None for others."""
    if isinstance(step, Launch):
        is_pure = isinstance(step.kernel, Kernel) and all(
            buffer.role in (Role.INPUT, Role.OUTPUT) for buffer in step.kernel.parameters
        )
        return id(step.kernel) if is_pure else None
    return step.op if step.op is _CHECK else None


def _key(step: Step, versions: Mapping[str, int]) -> Hashable:
    what = _what(step)
    if what is None:
        return None
    if isinstance(step, Launch):
        pairs = zip(step.kernel.parameters, step.args, strict=True)
        return what, tuple((name, versions[name]) for buffer, name in pairs if buffer.role is Role.INPUT)
    return what, step.args, tuple(versions[operand.buffer] for operand in operands_in(step.args))


def _renamed(step: Step, instead: Mapping[str, str]) -> Step:
    if not instead:
        return step
    if isinstance(step, Launch):
        return replace(step, args=tuple(instead.get(name, name) for name in step.args))
    return _renamed_call(step, instead)


def _renamed_call(call: Library, instead: Mapping[str, str]) -> Library:
    def renamed(value: Any) -> Any:
        if isinstance(value, Operand):
            return replace(value, buffer=instead.get(value.buffer, value.buffer))
        return type(value)(map(renamed, value)) if isinstance(value, list | tuple) else value

    kwargs = tuple((name, renamed(value)) for name, value in call.kwargs)
    unless = None if call.unless is None else instead.get(call.unless, call.unless)
    return replace(call, args=renamed(call.args), kwargs=kwargs, unless=unless)
