"""Whole programs by GPU schedules on the host, where a warp is a vector: backward, dynamic sizes, the runner."""

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

import smelt
from smelt.base import events
from smelt.codegen.targets import SIMT_HOST
from smelt.ir.program import Launch, Program
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
