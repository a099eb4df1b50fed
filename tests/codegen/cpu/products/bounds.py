"""How far a product's results may be from the truth: every value in float64, and beside it an error that is allowed.

A product may be off by twice what PyTorch's own is anywhere in it, relative to the sum of the magnitudes that are
added, and by four units of that sum. What follows it passes the error on, and adds a few roundings of its own.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from smelt.ir.check_kernel import value_dtypes
from smelt.ir.kernel import Cast, Compute, Const, Contract, Instruction, Kernel, Load, Position, Store
from smelt.ir.scalar import SCALAR_OPS
from tests.kernel_reference import Run

# The steepest slope of a function.
SLOPES = {"ndtr": 1 / math.sqrt(2 * math.pi), "sigmoid": 0.25, "tanh": 1.0, "maximum": 1.0, "abs": 1.0, "neg": 1.0}
_FUNCTION_ROUNDINGS = 8  # units in the last place of what is computed inline


@dataclass(frozen=True)
class Bounded:
    """Values, and the errors they may have."""

    truth: Tensor
    error: Tensor


def bounded_outputs(kernel: Kernel, tensors: Sequence[Tensor]) -> dict[str, tuple[Tensor, Bounded]]:
    """For each buffer the kernel writes: where, what and how exactly."""
    run = _BoundedRun(kernel)
    for buffer, tensor in zip(kernel.parameters, tensors, strict=True):
        run.memory[buffer.name] = tensor
    (stage,) = kernel.stages
    for instruction in stage.body:
        run.bound(instruction)
    return run.written


class _BoundedRun(Run):
    """The reference interpreter in float64, with errors."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.dtypes = value_dtypes(kernel)
        self.found: dict[str, Bounded] = {}
        self.written: dict[str, tuple[Tensor, Bounded]] = {}

    def bound(self, instruction: Instruction) -> None:
        match instruction:
            case Store(name, index, value):
                where = self.buffer_positions(name, index, True)
                kept = self.found[value]
                parts = (each.expand(where.shape).reshape(-1) for each in (kept.truth, kept.error))
                self.written[name] = where.reshape(-1), Bounded(*parts)
            case Contract(out, dtype=dtype):
                self.found[out] = self._product(instruction, dtype)
            case Compute(out, op, args, dtype):
                self.found[out] = self._computed(op, [self.found[arg] for arg in args], dtype)
            case Cast(out, source, dtype):
                self.found[out] = self._cast(self.found[source], dtype)
            case Const(out) | Load(out) | Position(out):
                self.step(instruction, True)
                read = self.values[out]
                truth = read.double() if read.dtype.is_floating_point else read
                self.found[out] = Bounded(truth, torch.zeros(()).double())

    def _product(self, contraction: Contract, dtype: torch.dtype) -> Bounded:
        truth = self.contracted(contraction, lambda x: x.double())
        eager = self.contracted(contraction, lambda x: x.to(dtype)).double()
        sums = self.contracted(contraction, lambda x: x.double().abs())
        eps = torch.finfo(dtype).eps
        share = ((eager - truth).abs() / sums.clamp_min(torch.finfo(dtype).tiny)).amax().item() if truth.numel() else 0
        return Bounded(truth, (2 * share + 4 * eps) * sums + torch.finfo(dtype).tiny)

    def _computed(self, op: str, args: list[Bounded], dtype: torch.dtype) -> Bounded:
        truth = SCALAR_OPS[op].reference(*(arg.truth for arg in args))
        errors = [arg.error for arg in args]
        if op in ("lt", "ge"):  # of positions, which are exact
            return Bounded(truth, errors[0])
        rounding = torch.finfo(dtype).eps * truth.abs() + torch.finfo(dtype).tiny
        match op:
            case "where":
                error = torch.maximum(errors[1], errors[2])
            case "add" | "sub":
                error = errors[0] + errors[1] + rounding
            case "mul":
                left, right = (arg.truth.abs() for arg in args)
                error = left * errors[1] + right * errors[0] + errors[0] * errors[1] + rounding
            case _:
                error = SLOPES[op] * sum(errors) + _FUNCTION_ROUNDINGS * rounding
        return Bounded(truth, error)

    def _cast(self, value: Bounded, dtype: torch.dtype) -> Bounded:
        """What is rounded to, too, may be the neighbour of where the truth is rounded to."""
        limits = torch.finfo(dtype)
        return Bounded(value.truth, value.error + limits.eps * value.truth.abs() + limits.smallest_normal * limits.eps)


def differences(kernel: Kernel, before: Sequence[Tensor], after: Sequence[Tensor]) -> Iterator[str]:
    """What is not as it should be in each of the buffers."""
    outputs = bounded_outputs(kernel, before)
    for buffer, old, new in zip(kernel.parameters, before, after, strict=True):
        kept = torch.ones(buffer.size, dtype=torch.bool)
        if buffer.name in outputs:
            where, allowed = outputs[buffer.name]
            kept[where] = False
            got = new[where].double()
            limit = torch.finfo(new.dtype).max if new.dtype.is_floating_point else math.inf
            wrong = ~((got - allowed.truth).abs() <= allowed.error) & ~(got.isinf() & (allowed.truth.abs() >= limit))
            if wrong.any():
                place = int(wrong.nonzero()[0])
                yield (
                    f"{buffer.name}: {int(wrong.sum())} of {len(wrong)} are wrong, the first at {int(where[place])}: "
                    f"{got[place].item()} for {allowed.truth[place].item()} ± {allowed.error[place].item():.3g}"
                )
        if not torch.equal(_bits(old)[kept], _bits(new)[kept]):
            yield f"{buffer.name}: written where nothing was to be"


def _bits(tensor: Tensor) -> Tensor:
    return tensor.view(torch.uint8).reshape(len(tensor), tensor.element_size())
