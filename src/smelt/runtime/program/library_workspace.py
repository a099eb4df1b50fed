"""What a library call takes for itself while it runs, and gives back before it returns.

    scratch_of(aten.convolution.default, (f32[4, 64, 24, 24], f32[64, 64, 3, 3], None, …), {})   →   1179648 bytes

PyTorch does not say, and it differs by machine: so the call is made once, on zeros of the same layout, and what
PyTorch's allocator hands out and gets back meanwhile is counted. Asked for under a memory budget only.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._C._autograd import _disable_profiler_legacy, _enable_profiler_legacy
from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig

from smelt import _native
from smelt.base import locks
from smelt.base.torch_originals import BASE
from smelt.ir.program import Library, Operand, Program
from smelt.ir.tensorspec import TensorSpec
from smelt.meta.effects import effect_of
from smelt.runtime.program.flatten import function_of

_MOST = 8192  # calls, which differ by their sizes
_known: dict[Any, int] = {}
_one_at_a_time = locks.lock()


def scratch_of(op: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """The bytes a call takes beyond its results, at the most; arguments have `TensorSpec`s in the place of tensors.

    0 where it is unknown: for what draws random numbers, writes arguments or does anything else that shows, for
    what raises on zeros, and on devices other than the CPU.
    """
    arguments = (tuple(args), tuple(kwargs.items()))
    specs = list(_specs_in(arguments))
    if not isinstance(op, torch._ops.OpOverload) or not all(_can_be_made(spec) for spec in specs):
        return 0
    if effect_of(op, args, kwargs) is not None and not _is_out_variant(op):
        return 0
    key = (op, repr(arguments), torch.get_num_threads())
    scratch = _known.get(key)
    if scratch is None:
        with _native.Held(_one_at_a_time):
            if len(_known) >= _MOST:
                _known.clear()
            scratch = _known[key] = _tried(function_of(op), *_map((tuple(args), dict(kwargs)), _zeros))
    return scratch


def scratch_of_step(program: Program, step: Library) -> int:
    """The same of a step of a program."""

    def spec(operand: Operand) -> TensorSpec:
        buffer = program.buffer(operand.buffer).spec
        return TensorSpec(operand.shape, operand.stride, buffer.dtype, buffer.device)

    kwargs = dict(step.kwargs)
    if step.into:
        outs = [(key, name) for key, name in zip(step.into, step.outs, strict=True) if name is not None]
        kwargs |= {key: program.buffer(name).spec for key, name in outs}
    args, kwargs = _map((step.args, kwargs), lambda each: spec(each) if isinstance(each, Operand) else each)
    return scratch_of(step.op, args, kwargs)


def _tried(call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    if torch._C._autograd._profiler_enabled():
        return 0  # somebody else is at it, and there is one only
    threads: list[Any] = []

    def watched() -> Any:
        _enable_profiler_legacy(_memory_alone())
        try:
            return _native.unrecorded(call, *args, **kwargs)
        except Exception:
            return None

    def stop() -> None:
        if torch._C._autograd._profiler_enabled():
            threads.extend(_disable_profiler_legacy())

    if _native.undoing(stop, watched) is None:
        return 0
    now = most = 0
    for event in (event for thread in threads for event in thread if str(event.kind()) == "memory_alloc"):
        now += event.cpu_memory_usage()
        most = max(most, now)
    return most - now


def _memory_alone() -> ProfilerConfig:
    """No shapes, stacks, flops or modules: what the allocator does, and no more."""
    shapes, memory, stacks, flops, modules = False, True, False, False, False
    return ProfilerConfig(ProfilerState.CPU, shapes, memory, stacks, flops, modules, _ExperimentalConfig())


def _is_out_variant(op: torch._ops.OpOverload) -> bool:
    """Whether all that an operator does besides is to write into `out`, which here is zeros of our own."""
    written = [argument for argument in op._schema.arguments if argument.is_write]
    random = torch.Tag.nondeterministic_seeded in op.tags
    return bool(written) and all(argument.is_out for argument in written) and not random


def _can_be_made(spec: TensorSpec) -> bool:
    return spec.device.type == "cpu" and not spec.varies


def _zeros(value: Any) -> Any:
    if not isinstance(value, TensorSpec):
        return value
    tensor = torch.empty_strided(value.shape, value.stride, dtype=value.dtype, device=value.device)
    return BASE.zero_(tensor)


def _specs_in(value: Any) -> "Sequence[TensorSpec]":
    specs: list[TensorSpec] = []
    _map(value, lambda each: specs.append(each) if isinstance(each, TensorSpec) else None)
    return specs


def _map(value: Any, change: Callable[[Any], Any]) -> Any:
    """`value` with all that is in its tuples, lists and dicts changed."""
    if isinstance(value, tuple | list):
        return type(value)(_map(item, change) for item in value)
    if isinstance(value, dict):
        return {key: _map(item, change) for key, item in value.items()}
    return change(value)
