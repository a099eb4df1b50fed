"""Whole programs by GPU schedules on the host, where a warp is a vector: backward, dynamic sizes, the runner."""

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

import smelt
from smelt.base import events
from smelt.ir.program import Launch, Program
from tests.simt_host.offer import SIMT_HOST
from tests.targets import on_target


@pytest.fixture(autouse=True)
def simt() -> Iterator[None]:
    with on_target(SIMT_HOST):
        yield


def test_a_model_and_its_gradients() -> None:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 5)]
    model = torch.nn.Sequential(*layers)
    x, targets = torch.randn(4, 8), torch.tensor([1, 2, 3, 0])
    compiled = smelt.compile(model, options={"fallback": False})
    with events.collect() as collected:
        F.cross_entropy(compiled(x), targets).backward()
    found = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    F.cross_entropy(model(x), targets).backward()
    for gradient, parameter in zip(found, model.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad)
    programs = [event.subject for event in collected if isinstance(event.subject, Program)]
    launches = [step for program in programs for step in program.steps if isinstance(step, Launch)]
    assert launches and all(step.target == SIMT_HOST for step in launches)


def test_dynamic_sizes_share_code() -> None:
    def loss(x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(torch.softmax(x @ x.T, -1).sin(), targets)

    compiled = smelt.compile(loss, options={"fallback": False})
    for length in (6, 9, 13, 40):
        x, targets = torch.randn(length, 7, requires_grad=True), torch.randint(0, length, (length,))
        found = compiled(x, targets)
        (gradient,) = torch.autograd.grad(found, x)
        want = loss(x, targets)
        torch.testing.assert_close(found, want)
        torch.testing.assert_close(gradient, torch.autograd.grad(want, x)[0])
    assert smelt.counters["sizes_traced"] == 1


@pytest.mark.parametrize("offset", [0, 1, 3])
def test_tensors_that_begin_anywhere(offset: int) -> None:
    """Code that moves sixteen bytes at once is for tensors that begin at multiples of that; others have their own."""

    def update(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2.0)
        return torch.softmax(x + y, -1)

    storage = torch.randn(600 * 64 + 8)
    x = storage[offset : offset + 600 * 64].view(600, 64)
    y = torch.randn(600, 64)
    want_x = x * 2
    found = smelt.compile(update, options={"fallback": False})(x, y)
    torch.testing.assert_close(x, want_x)
    torch.testing.assert_close(found, torch.softmax(want_x + y, -1))
    assert (smelt.counters["kernels_built"] > smelt.counters["kernels"]) is bool(offset)
