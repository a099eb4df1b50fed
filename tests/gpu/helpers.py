"""What tests on a GPU share: inputs there, which kernels ran, and differences that can be read.

    with made_for_gpu(): compiled(x)        fails unless a kernel was generated for the GPU
    kernels_run(lambda: compiled(x))   →    ["fused_add_0", "ampere_sgemm_…"], by the profiler, in order
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from smelt.base import events
from smelt.ir.program import Launch, Program

CUDA = "cuda"


def randn(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False, seed: int = 0) -> torch.Tensor:
    """Drawn on the host, so that what the GPU would draw next is left alone."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    made = torch.randn(shape, generator=generator, device="cpu")
    return made.to(CUDA, dtype).requires_grad_(grad)


@contextmanager
def made_for_gpu() -> Iterator[list[str]]:
    """The names of the kernels that are generated within: at least one, and all for a GPU."""
    names: list[str] = []
    with events.collect() as seen:
        yield names
    programs = [event.subject for event in seen if isinstance(event.subject, Program)]
    steps = [step for program in programs for step in program.steps if isinstance(step, Launch)]
    assert steps, f"no kernel was generated; {len(programs)} programs, told: {[event.text for event in seen][-5:]}"
    elsewhere = [(step.kernel.name, step.target) for step in steps if not step.target.startswith("sm_")]
    assert not elsewhere, f"kernels that are not for a GPU: {elsewhere}"
    names += [step.kernel.name for step in steps]


def kernels_run(call: Callable[[], Any]) -> list[str]:
    """What ran on the GPU during a call, by name, as `torch.profiler` tells it."""
    from torch._C._autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    found = [event for event in seen.events() or () if event.device_type == DeviceType.CUDA]
    return [event.name for event in sorted(found, key=lambda event: event.time_range.start)]


def assert_same_bits(mine: torch.Tensor, eager: torch.Tensor, what: str) -> None:
    """Equal to the last bit; otherwise how many differ, and the first few places."""
    assert (mine.shape, mine.dtype, mine.device) == (eager.shape, eager.dtype, eager.device), what
    wrong = ((mine != eager) & ~(mine.isnan() & eager.isnan())).flatten()
    if not bool(wrong.any()):
        return
    places = wrong.nonzero().flatten()[:5].tolist()
    shown = [(place, mine.flatten()[place].item(), eager.flatten()[place].item()) for place in places]
    told = ", ".join(f"at {place} {one!r}, eager {other!r}" for place, one, other in shown)
    raise AssertionError(f"{what}: {int(wrong.sum())} of {wrong.numel()} differ: {told}")


def relative_error(found: torch.Tensor, exact: torch.Tensor) -> float:
    """The norm of the error over the norm of what is right."""
    return float((found.double() - exact.double()).norm() / exact.double().norm())


def assert_near(found: Any, wanted: Any, what: str = "", allowed: float = 1e-3) -> None:
    """Tensors, or tuples of them, that differ by rounding alone: what was read too early is far off."""
    if isinstance(found, tuple | list):
        assert len(found) == len(wanted), what
        for number, (mine, theirs) in enumerate(zip(found, wanted, strict=True)):
            assert_near(mine, theirs, f"{what} part {number}", allowed)
        return
    assert (found.shape, found.dtype, found.device) == (wanted.shape, wanted.dtype, wanted.device), what
    error = relative_error(found, wanted)
    assert error <= allowed, f"{what}: off by {error:.2g} of its size"
