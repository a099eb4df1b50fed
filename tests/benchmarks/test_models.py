"""The benchmark models through the whole compiler: no graph break, the numerical rule kept, few kernels."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import smelt
from benchmarks.measure import errors, saved_bytes
from benchmarks.models import MODELS, Case
from smelt.base import events
from smelt.ir.program import Program

OWN = ("mlp", "pointwise")  # tests/models has architectures like the others
STRICT = {"fallback": False, "check_specs": True}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    smelt.reset()
    yield
    smelt.reset()


def trained(case: Case, model: Callable[..., Any]) -> list[torch.Tensor]:
    """The output and every gradient of one step."""
    output = model(*case.inputs)
    case.loss(output).backward()
    leaves = [*case.module.parameters(), *(x for x in case.inputs if x.requires_grad)]
    return [output.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


@pytest.mark.parametrize("name", OWN)
def test_a_step_keeps_the_numerical_rule_in_one_graph(name: str) -> None:
    eager, mine, exact = MODELS[name].build(), MODELS[name].build(), MODELS[name].build(torch.float64)
    compiled = smelt.compile(mine.module, fullgraph=True, options=STRICT)
    found = trained(mine, compiled)
    assert errors(found, trained(eager, eager.module), trained(exact, exact.module)).within
    assert (smelt.counters["graphs"], smelt.counters["graph_breaks"]) == (1, 0)


def test_the_pointwise_block_is_one_kernel_forward_and_few_backward() -> None:
    case = MODELS["pointwise"].build()
    with events.collect() as seen:
        trained(case, smelt.compile(case.module, options=STRICT))
    programs = [event.subject for event in seen if isinstance(event.subject, Program)]
    forward, backward = programs
    assert len(forward.steps) == len(forward.kernels) == 1
    assert len(backward.steps) == len(backward.kernels) <= 3


@pytest.mark.parametrize("name", OWN)
def test_no_more_is_saved_for_backward_than_eager_saves(name: str) -> None:
    case = MODELS[name].build()
    eager = saved_bytes(case.loss(case.module(*case.inputs)), case.module.parameters())
    compiled = smelt.compile(case.module, options=STRICT)
    assert saved_bytes(case.loss(compiled(*case.inputs)), case.module.parameters()) <= eager
