"""Kernels in `torch.profiler`: each by the name that `smelt.explain` has for it."""

import torch
import torch.nn.functional as F

import smelt
from smelt.runtime.program.profile import profiling
from tests.gpu.helpers import kernels_run, made_for_gpu, randn


def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(torch.softmax(x, -1) * 2 + w, (x.shape[-1],))


def test_kernels_are_there_by_name() -> None:
    compiled = smelt.compile(function, options={"fallback": False})
    x, w = randn(512, 1024), randn(1024)
    with made_for_gpu() as names:
        compiled(x, w)
    ran = kernels_run(lambda: compiled(x, w))
    missing = [name for name in names if not any(name in each for each in ran)]
    assert not missing, f"generated {names}, the profiler saw {ran}"


def test_kernels_of_the_backward_are_there_too() -> None:
    compiled = smelt.compile(function, options={"fallback": False})
    x, w = randn(512, 1024, grad=True), randn(1024, grad=True)

    def step() -> None:
        compiled(x, w).square().sum().backward()

    with made_for_gpu() as names:
        step()
    ran = kernels_run(step)
    missing = [name for name in names if not any(name in each for each in ran)]
    assert not missing, f"generated {names}, the profiler saw {ran}"


def test_fewer_kernels_than_eager() -> None:
    def chain(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * 2 + x.cos()).tanh().square() - x

    compiled, x = smelt.compile(chain), randn(512, 1024)
    compiled(x)
    mine, eager = (kernels_run(lambda run=run: run(x)) for run in (compiled, chain))  # type: ignore[misc]
    assert len(mine) == 1 < len(eager), f"{mine}, eager {eager}"


def test_times_of_steps_are_those_of_the_gpu() -> None:
    """What a launch costs the host is no part of them: a short kernel takes as long as the profiler says."""
    for size, least in ((1 << 12, 0.2), (1 << 26, 20.0)):
        x = randn(size)
        with profiling() as times:
            compiled = smelt.compile(lambda x: x.sin() * 2 + 1)
            compiled(x), compiled(x)  # the code is loaded
            (first,) = times()
            for _ in range(5):
                compiled(x)
            (taken,) = times()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(20_000_000)
        start.record()
        for _ in range(20):
            compiled(x)
        end.record()
        end.synchronize()
        wanted = start.elapsed_time(end) / 20 * 1e3
        found = (sum(taken.nanoseconds) - sum(first.nanoseconds)) / (taken.calls - first.calls) / 1e3
        assert least < found < 2 * wanted + 5, f"{found:.1f} µs, back to back {wanted:.1f}"
