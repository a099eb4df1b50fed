"""Compiling ahead: a function or module for tensors that are not there, on a device that this process may not have.

    ahead = compile_ahead(model, [TensorSpec((32, 784), (784, 1), torch.float32, torch.device("cuda", 0))],
                          Options(target="sm_90"))
    ahead.forward, ahead.backward        kernel programs whose kernels are for sm_90
    ahead.generate()                     their code, where something makes code for that target

Nothing runs, and no data is made up. The function is called once, on tensors without data; what reads data raises
`CannotTrace`. A module's parameters and buffers become inputs on the device, before the others.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from smelt import codegen
from smelt.autograd.aot import lifted, state_of
from smelt.autograd.aot_inputs import ProgramCode
from smelt.autograd.joint.functional_trace import CannotTrace
from smelt.autograd.joint.partial_backward import for_the_loss
from smelt.autograd.joint.trace_joint import TraceSource, trace_forward, trace_joint
from smelt.autograd.partition.partition import ForwardBackward
from smelt.base.fast_dataclass import dataclass
from smelt.base.options import Options
from smelt.base.rewrite_budget import RewriteBudget
from smelt.device import check_wanted
from smelt.device.host_library import on_host
from smelt.ir.call_contract import JointPlan
from smelt.ir.graph import Traced
from smelt.ir.program import Program
from smelt.ir.tensorspec import TensorSpec
from smelt.meta.devices import with_index
from smelt.ops.decompositions import decompositions
from smelt.pipeline.parts import Built
from smelt.pipeline.passes import PassContext, run_passes, why_not_generate
from smelt.pipeline.stages import LOWER, SIMPLIFY, TRACE_FORWARD, TRACE_JOINT
from tests.absent_device.stand_in import is_here, on_device, standing_in


@dataclass(frozen=True, slots=True)
class Ahead:
    """What a function became: programs, not yet bound to a device's memory."""

    forward: Program
    backward: Program | None
    plan: JointPlan
    options: Options

    @property
    def programs(self) -> tuple[Program, ...]:
        return (self.forward,) if self.backward is None else (self.forward, self.backward)

    def generate(self) -> Built:
        """The code of all kernels, by name within each program."""
        code: dict[str, Any] = {}
        for program in self.programs:
            budget = RewriteBudget(self.options.max_rewrites)
            built = codegen.compile_kernels(program.kernels, self.options, budget, program.name)
            code |= {f"{program.name}.{name}": kernel for name, kernel in built.items()}
        return code


def spec_like(shape: Sequence[int], dtype: torch.dtype = torch.float32, device: str = "cuda") -> TensorSpec:
    """The spec of a contiguous tensor of a shape."""
    meta = torch.empty(tuple(shape), dtype=dtype, device="meta")
    return replace(TensorSpec.of(meta), device=with_index(torch.device(device)))


def compile_ahead(
    model: Callable[..., Any],
    args: Sequence[Any],
    options: Options | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> Ahead:
    """Trace, split, simplify and fuse `model` for arguments like `args`, in which a `TensorSpec` stands for a tensor.

    All specs are on one device; a module's own tensors are taken to be there too. A backward is made where something
    requires grad: parameters of a module do, in training.
    """
    options = options or Options()
    check_wanted(options.target)
    leaves, tree = pytree.tree_flatten((tuple(args), dict(kwargs or {})), is_leaf=_is_spec)
    device = _device_of([leaf for leaf in leaves if _is_spec(leaf)])
    function: Callable[..., Any] = model
    if isinstance(model, torch.nn.Module):
        function = lifted(model)
        own, switches = state_of(model)
        moved = {name: replace(TensorSpec.of(tensor), device=device) for name, tensor in own.items()}
        leaves, tree = pytree.tree_flatten((((moved, switches), *args), dict(kwargs or {})), is_leaf=_is_spec)
    source = _source(function, leaves, tree)
    if not is_here(device):
        source = standing_in(source, device, options.target)
    context = PassContext(options, "ahead", RewriteBudget(options.max_rewrites), decompositions(options))
    if not (torch.is_grad_enabled() and any(spec.requires_grad for spec in source.specs)):
        pure = on_device(trace_forward(source, context.decompositions), device)
        pure = run_passes(pure, TRACE_FORWARD[1:], context)
        return Ahead(_program(pure.traced, "forward", context), None, pure.plan, options)
    joint = on_device(trace_joint(source, context.decompositions), device)
    halves: ForwardBackward = run_passes(joint, TRACE_JOINT[1:], context)
    backward = None if halves.backward is None else for_the_loss(halves.backward, halves.plan)
    forward = _program(halves.forward, "forward", context)
    return Ahead(forward, None if backward is None else _program(backward, "backward", context), halves.plan, options)


def _is_spec(value: Any) -> bool:
    return isinstance(value, TensorSpec)


def _device_of(specs: Sequence[TensorSpec]) -> torch.device:
    devices = {with_index(spec.device) for spec in specs if spec.shape or not on_host(spec.device)}
    if len(devices) != 1:
        raise ValueError(f"compiling ahead takes inputs on one device, not on {sorted(map(str, devices)) or 'none'}")
    return devices.pop()


def _source(function: Callable[..., Any], leaves: Sequence[Any], tree: Any) -> TraceSource:
    places = [place for place, leaf in enumerate(leaves) if _is_spec(leaf)]

    def call(inputs: Sequence[Any], _: Mapping[str, Any]) -> list[Any]:
        filled = list(leaves)
        for place, tensor in zip(places, inputs, strict=True):
            filled[place] = tensor
        args, kwargs = pytree.tree_unflatten(filled, tree)
        on_fakes = any(map(torch._is_functional_tensor, inputs))
        with ProgramCode() if on_fakes else contextlib.nullcontext():
            return pytree.tree_leaves(function(*args, **kwargs))

    specs = tuple(replace(leaves[place], device=with_index(leaves[place].device)) for place in places)
    return TraceSource(specs, tuple(f"argument {place}" for place in places), call, {}, is_program=True)


def _program(half: Traced, name: str, context: PassContext) -> Program:
    reason = why_not_generate(half, context.options.target)
    if reason is not None:
        raise CannotTrace(reason)
    program: Program = run_passes(half, (*SIMPLIFY, LOWER[0]), replace(context, name=name))
    return program
