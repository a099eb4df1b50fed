"""Kernels in `torch.profiler`: each by the name that `smelt.explain` has for it."""

import torch
import torch.nn.functional as F

import smelt
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
