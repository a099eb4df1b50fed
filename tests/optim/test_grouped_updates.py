"""Optimizers on a GPU's schedules: all parameters are updated by a few launches, as they would be one by one."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.base.events import Event, collect
from smelt.explain.report_code import Codes
from smelt.explain.report_data import report_data
from smelt.fuse import fusion_passes
from smelt.ir import serialize
from smelt.ir.kernel import KernelGroup
from smelt.ir.program import Launch, Program
from tests.optim.test_optimizers import OPTIMIZERS
from tests.targets import chosen

pytestmark = pytest.mark.skipif(chosen[0] != "cpu", reason="of schedules that run on the host")

SHAPES = ((33, 17), (64, 2), (10, 1), (3, 5), (128, 96), (1, 77), (40, 4))
# Launches of a step over all of these, whichever step it is. One by one they are seven times as many or more.
MOST = {"Rprop": 7}
USUAL = 4
ALONG_ROWS = ("Adafactor", "Muon")  # their kernels fold rows, or are products: next to none is launched with others


def parameters() -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(shape)) for shape in SHAPES]


def launches(events: list[Event]) -> list[int]:
    """Of each program, in order."""
    programs = [event.subject for event in events if isinstance(event.subject, Program)]
    return [sum(isinstance(step, Launch) for step in program.steps) for program in programs]


def trained(kind: Callable[..., Any], **settings: Any) -> tuple[list[torch.Tensor], list[int]]:
    """The parameters after a few steps, and how many launches the programs had."""
    smelt.reset()
    given = parameters()
    optimizer = kind(given, **settings)
    step = smelt.compile(optimizer.step, options={"target": "simt-host", "check_specs": True})
    generator = torch.Generator().manual_seed(1)
    with collect() as events:
        for _ in range(3):
            for each in given:
                each.grad = torch.randn(each.shape, generator=generator)
            step()
    state = [value for each in given for value in optimizer.state[each].values() if isinstance(value, torch.Tensor)]
    return [each.detach() for each in given] + state, launches(events)


def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusion_passes, "group_launches", lambda program, *_: program)


def assert_equal(mine: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    assert len(mine) == len(theirs) and all(map(torch.equal, mine, theirs))


@pytest.mark.parametrize("kind", OPTIMIZERS, ids=lambda kind: kind.__name__)
def test_updates_are_launched_together(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"lr": 0.01} if kind is torch.optim.SGD else {}
    mine, few = trained(kind, **settings)
    one_by_one(monkeypatch)
    theirs, many = trained(kind, **settings)
    assert_equal(mine, theirs)
    if kind.__name__ in ALONG_ROWS:
        assert 0 < sum(few) <= sum(many)
    else:
        assert few and max(few) <= MOST.get(kind.__name__, USUAL) and 2 * sum(few) < sum(many), (few, many)


@pytest.mark.parametrize(
    "kind, settings",
    [
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
        (torch.optim.Adam, {"amsgrad": True, "weight_decay": 0.1}),
        (torch.optim.AdamW, {"foreach": False, "maximize": True}),
        (torch.optim.RMSprop, {"centered": True, "momentum": 0.5}),
    ],
)
def test_settings_change_nothing_about_that(kind: Any, settings: dict[str, Any]) -> None:
    assert max(trained(kind, **settings)[1]) <= USUAL


def test_counts_in_memory_of_their_own_are_grouped_first() -> None:
    """Each parameter's update waits for its own count of steps: all counts come first, then all updates."""
    _, found = trained(torch.optim.AdamW)
    assert set(found) == {2}


def clip_and_zero(gradients: list[torch.Tensor], others: list[torch.Tensor]) -> None:
    total = torch.stack([each.norm() for each in gradients]).norm()
    torch._foreach_mul_(gradients, torch.clamp(1.0 / (total + 1e-6), max=1.0))
    torch._foreach_zero_(others)


def test_clipping_and_zeroing_are_grouped(monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> tuple[list[torch.Tensor], list[KernelGroup]]:
        smelt.reset()
        gradients, others = [each.detach() for each in parameters()], [each.detach() for each in parameters()]
        with collect() as events:
            smelt.compile(clip_and_zero, options={"target": "simt-host", "check_specs": True})(gradients, others)
        programs = [event.subject for event in events if isinstance(event.subject, Program)]
        kernels = [kernel for program in programs for kernel in program.kernels]
        return gradients + others, [kernel for kernel in kernels if isinstance(kernel, KernelGroup)]

    mine, groups = run()
    assert len(SHAPES) in [len(group.kernels) for group in groups]
    one_by_one(monkeypatch)
    assert_equal(mine, run()[0])


def one_graph(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad()
    loss: torch.Tensor = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def test_a_whole_step_groups_its_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> tuple[list[torch.Tensor], list[int]]:
        smelt.reset()
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(4)))
        optimizer = torch.optim.AdamW(model.parameters())
        step = smelt.compile(one_graph, options={"target": "simt-host", "check_specs": True})
        with collect() as events:
            losses = [step(model, optimizer, torch.ones(8, 16)) for _ in range(3)]
        return [*losses, *(each.detach() for each in model.parameters())], launches(events)

    mine, few = run()
    one_by_one(monkeypatch)
    theirs, many = run()
    assert_equal(mine, theirs)
    assert max(few) + 12 <= max(many), (few, many)


def test_buffers_at_any_address() -> None:
    """A group for buffers that do not begin at multiples of sixteen bytes is made when they first come."""
    smelt.reset()
    memory = torch.randn(2, 500)
    step = smelt.compile(lambda given: torch._foreach_add_(given, 1.0), options={"target": "simt-host"})
    for first in (0, 1):
        given = [memory[0, first : 100 + first], memory[1, 100 + first : 400 + first]]
        want = [each + 1 for each in given]
        step(given)
        assert_equal([each.clone() for each in given], want)


def test_lengths_that_vary_are_launched_one_by_one() -> None:
    """Where kernels have sizes that are known at launch only, they stay what they are."""
    smelt.reset()
    step = smelt.compile(
        lambda x, y: (x * 2, y * 2), options={"target": "simt-host", "check_specs": True}, dynamic=True
    )
    with collect() as events:
        for length in (5, 9, 30, 77):
            x, y = torch.randn(length), torch.randn(3 * length + 1)
            assert_equal(list(step(x, y)), [x * 2, y * 2])
    kernels = [k for e in events if isinstance(e.subject, Program) for k in e.subject.kernels]
    assert kernels and not any(isinstance(kernel, KernelGroup) for kernel in kernels)


def test_reports_and_files_have_groups() -> None:
    smelt.reset()
    with collect() as events:
        given = parameters()
        optimizer = torch.optim.SGD(given, lr=0.1)
        for each in given:
            each.grad = torch.ones_like(each)
        smelt.compile(optimizer.step, options={"target": "simt-host"})()
    (program,) = [event.subject for event in events if isinstance(event.subject, Program)]
    codes = Codes()
    data = json.loads(json.dumps(report_data(events, "step", codes)))
    (step,) = data["graphs"][0]["programs"][0]["steps"]
    assert step["name"].endswith("and 6 more") and len(step["members"]) == len(SHAPES) and step["grids"]
    assert all("group" in texts[0] and "define" in texts[2] for texts in codes.texts())
    assert serialize.parse(serialize.dump(program.kernels)) == program.kernels


def test_asgd_of_large_parameters_is_compiled() -> None:
    """It replaces its averages without reading them: nothing that reads an old value has to come before."""
    smelt.reset()
    given = [nn.Parameter(torch.ones(256, 128)), nn.Parameter(torch.ones(3))]
    step = smelt.compile(torch.optim.ASGD(given).step, options={"fallback": False})
    for each in given:
        each.grad = torch.ones_like(each)
    step()
    same = [nn.Parameter(torch.ones(256, 128)), nn.Parameter(torch.ones(3))]
    for each in same:
        each.grad = torch.ones_like(each)
    torch.optim.ASGD(same).step()
    torch.testing.assert_close([each.detach() for each in given], [each.detach() for each in same])
