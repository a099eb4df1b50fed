"""A tensor program run eagerly, in float64 and through smelt, and held one against the other.

    failure_of(program)   →   None, or what differs: an error, a shape, a value, a gradient, what shares memory

The truth is the same program in float64. Values may be eight times as far from it as eager's, and a little: this is to
find what is wrong, not what is inexact, which tests/ops_db measures. Where eager itself is far off, a sum of huge terms
that cancel, so may be smelt. Where a value differs from eager's, eager is asked for its other answers (`eagers.py`): a
comparison may fall the other way by rounding, NaN pass or stop at an element by where it lies. It counts as wrong if it
is none of them, for two drawings of the inputs. Where eager refuses a backward because a value it kept was written, and
smelt computes that value again, eager is run so that it keeps copies, and smelt must agree with that; where PyTorch's
own means to that end fails, there are no gradients to agree with. What the call itself returned and wrote is compared
even so, as it is where both refuse a backward.

On a GPU all of them run there. Calls that the host refuses are left out: what is an error on the host (an index out of
range, an integer divided by zero) is none on a GPU, or one after which nothing runs there any more.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

import smelt
from tests.pipeline.generated.eagers import Drawn, modes
from tests.pipeline.generated.grammar import Program, names, on_host, tensors_of
from tests.targets import HOST, device_type, reseed

Tensor = torch.Tensor
_NEAR = {torch.float32: 2e-4, torch.float64: 1e-9, torch.bfloat16: 6e-2, torch.float16: 1e-2}


@dataclass
class Outcome:
    """What a call left: `error` is of the call, or else of the backward from its results."""

    given: list[Tensor]
    results: list[Tensor] = field(default_factory=list)
    error: Exception | None = None

    @property
    def grads(self) -> list[Tensor | None]:
        return [tensor.grad if tensor.is_leaf else None for tensor in self.given]

    def sharing(self) -> list[tuple[int, int]]:
        """Which tensors lie in the same memory."""
        places = [t.untyped_storage().data_ptr() if t.numel() else None for t in (*self.given, *self.results)]
        return [(n, m) for n, place in enumerate(places) for m in range(n) if place and place == places[m]]


def run(function: Callable[..., Any], program: Program, sizes: dict[str, int], draw: int, exact: bool) -> Outcome:
    """One call, and a backward from all of its results, each with weights of its own."""
    outcome = Outcome(tensors_of(program.inputs, sizes, draw, exact))
    generator = torch.Generator().manual_seed(draw % 2**31 + 5)
    reseed(draw % 2**31)
    try:
        outcome.results = list(function(*outcome.given))
        total = torch.zeros((), dtype=torch.float64)
        for result in outcome.results:
            if result.requires_grad:
                weights = torch.rand(result.shape, generator=generator, dtype=torch.float64, device=HOST)
                total = total + (result * weights.to(result.device, result.dtype)).sum().double()
        if total.requires_grad:
            total.backward()
    except Exception as error:
        outcome.error = error
    return outcome


def failure_of(program: Program, backend: str = "llvm") -> str | None:
    """What smelt makes other than eager, at which call."""
    smelt.reset()
    compiled = smelt.compile(_function(program, exact=False), backend=backend, dynamic=program.dynamic)
    left: list[tuple[Tensor, Tensor]] = []
    for number, sizes in enumerate(program.sizes):
        doubts = 0
        for draw in range(program.seed * 7, program.seed * 7 + 3):
            if _refused_by_host(program, sizes, draw):
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ours = run(compiled, program, sizes, draw, exact=False)
                left += [(result.detach(), result.detach().clone()) for result in ours.results]
                found, sure = _verdict(ours, program, sizes, draw)
            doubts += found is not None
            if found is not None and (sure or doubts == 2):
                return f"call {number}: {found}"
            if doubts == 0 and draw > program.seed * 7:  # what is right once may be what the first call left
                break
    if not all(torch.equal(*(each.nan_to_num() for each in pair)) for pair in left):
        return "a result is another one after a later call"
    return None


def _refused_by_host(program: Program, sizes: dict[str, int], draw: int) -> bool:
    """Whether this is a call for a GPU that the host would refuse."""
    if device_type() == HOST:
        return False
    with on_host(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return not run(_function(program, exact=False), program, sizes, draw, exact=False).results


def _verdict(ours: Outcome, program: Program, sizes: dict[str, int], draw: int) -> tuple[str | None, bool]:
    """What differs from eager, and whether that is beyond doubt."""
    eager, exact = (_function(program, exact) for exact in (False, True))
    theirs = run(eager, program, sizes, draw, exact=False)
    truth = _truth(exact, program, sizes, draw)
    if ours.error is None and "modified by an inplace operation" in str(theirs.error):
        refused = theirs
        with torch.autograd.graph.allow_mutation_on_saved_tensors():
            theirs = run(eager, program, sizes, draw, exact=False)
            truth = _truth(exact, program, sizes, draw)
        if theirs.error is not None:
            ours, theirs, truth = replace(ours, error=theirs.error), refused, None
    found, sure = _difference(ours, [theirs], truth)
    others, answers = _others(eager, program, sizes, draw, theirs.error is not None), [theirs]
    while not sure and (other := next(others, None)) is not None:
        answers.append(other)
        found, sure = _difference(ours, answers, truth)
    return found, sure


def _function(program: Program, exact: bool) -> Callable[..., Any]:
    scope = names(exact)
    exec(compile(program.text, f"<program {program.seed}>", "exec"), scope)
    function: Callable[..., Any] = scope["program"]
    return function


def _truth(function: Callable[..., Any], program: Program, sizes: dict[str, int], draw: int) -> Outcome | None:
    drawn = Drawn()
    if program.random:
        with drawn:
            run(_function(program, exact=False), program, sizes, draw, exact=False)
    torch.set_default_dtype(torch.float64)
    try:
        with Drawn(drawn.noted) if program.random else contextlib.nullcontext():
            outcome = run(function, program, sizes, draw, exact=True)
    finally:
        torch.set_default_dtype(torch.float32)
    return outcome if outcome.error is None else None


def _others(
    eager: Callable[..., Any], program: Program, sizes: dict[str, int], draw: int, refused: bool
) -> Iterator[Outcome]:
    """Eager's other answers; of a program whose backward it refused, those to the call."""
    for mode in modes():
        with mode:
            outcome = run(eager, program, sizes, draw, exact=False)
        if outcome.error is None or (refused and outcome.results):
            yield outcome


def _difference(ours: Outcome, eagers: list[Outcome], truth: Outcome | None) -> tuple[str | None, bool]:
    """What differs from all of eager's answers, and whether that is beyond doubt. Its own is the first."""
    theirs = eagers[0]
    if type(ours.error) is not type(theirs.error):
        return f"{ours.error!r} instead of {theirs.error!r}", True
    if theirs.error is not None and not theirs.results:
        return None, True
    if len(ours.results) != len(theirs.results):
        return f"the call fails ({ours.error!r}), not the backward", True
    for kind in ("results", "given", "grads") if theirs.error is None else ("results", "given"):
        true = getattr(truth, kind) if truth else [None] * len(getattr(theirs, kind))
        several = zip(*(getattr(each, kind) for each in eagers), strict=True)
        for number, (mine, answers, exact) in enumerate(zip(getattr(ours, kind), several, true, strict=True)):
            found, sure = _compared(mine, answers, exact)
            if found:
                return f"{kind}[{number}]: {found}", sure
    if ours.sharing() != theirs.sharing():
        return f"memory is shared by {ours.sharing()} instead of {theirs.sharing()}", True
    return None, True


def _compared(mine: Tensor | None, answers: Sequence[Tensor | None], true: Tensor | None) -> tuple[str | None, bool]:
    eager = answers[0]
    if mine is None or eager is None:
        return None if mine is eager else f"{mine} instead of {eager}", True
    for what in ("shape", "dtype", "device", "requires_grad"):
        if getattr(mine, what) != getattr(eager, what):
            return f"{what} {getattr(mine, what)} instead of {getattr(eager, what)}", True
    mine, eager = mine.detach(), eager.detach()
    exact = true.detach() if true is not None and true.shape == eager.shape else eager
    told = [each.detach() for each in (*answers, exact) if each is not None and each.shape == eager.shape]
    if not mine.is_floating_point():
        wrong = int(_unlike(mine, told).sum())
        return f"{wrong} of {mine.numel()} differ" if wrong else None, False
    near = _NEAR[mine.dtype]
    for special in (torch.isnan, torch.isposinf, torch.isneginf):
        wrong = int(_unlike(special(mine), [special(each) for each in told]).sum())
        if wrong and mine.dtype is not torch.float16:  # which many a sum overflows that another order keeps
            return f"{special.__name__} differs at {wrong} of {mine.numel()}", False
    finite = torch.isfinite(mine) & torch.isfinite(exact) & torch.isfinite(eager)
    if not finite.any():
        return None, True
    size = exact.double()[finite].abs()
    largest = float(size.max())
    least = max(0.05 * largest, 0.01)
    error, *theirs = ((each.double() - exact)[finite].abs().nan_to_num(0, 0, 0) for each in (mine, *told))
    eagers = max(float(each.max()) for each in theirs)
    if (error > 8 * eagers + near * size.clamp(min=least)).any():
        told_of = f"where eager's is {eagers:.3g} and the largest value {largest:.3g}"
        return f"error {float(error.max()):.3g} {told_of}", False
    return None, True


def _unlike(mine: Tensor, told: list[Tensor]) -> Tensor:
    """Where it is none of these."""
    return torch.stack([mine != each for each in told if each.dtype == mine.dtype]).all(0)
