"""Training on a chip by eager calls, through `smelt.compile` and with autocast: the losses of the host."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import smelt

Step = Callable[[nn.Module, Any], Any]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.LayerNorm(32), nn.Linear(32, 10))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 4, 5)), nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(16, 10),
    )  # fmt: skip


def train(
    device: str, make: Callable[[], nn.Module], *, compiled: bool = False, whole: bool = False, steps: int = 4
) -> list[float]:
    torch.manual_seed(0)
    model = make().to(device)
    called = smelt.compile(model, fullgraph=True) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(called(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = smelt.compile(step) if whole else step
    return [
        run(torch.randn(8, 20).to(device), torch.randint(0, 10, (8,)).to(device)).item() for _ in range(steps)
    ]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("make", [mlp, convolutional])
def test_losses_are_the_hosts(make: Callable[[], nn.Module], compiled: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", smelt.SmeltWarning)  # nothing is left to the host
        found = train("sim", make, compiled=compiled)
    torch.testing.assert_close(torch.tensor(found), torch.tensor(train("cpu", make)), rtol=1e-4, atol=1e-5)


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 32), nn.Dropout(0.2), nn.ReLU(), nn.Dropout1d(0.1), nn.Linear(32, 10))


@pytest.mark.parametrize("how", ["eager", "compiled", "step"])
def test_dropout_keeps_what_the_host_keeps(how: str) -> None:
    """Random numbers are the host's: `torch.manual_seed` gives the same losses there and here, compiled too."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", smelt.SmeltWarning)  # nothing is left to the host
        found = [train("sim", with_dropout, compiled=how == "compiled", whole=how == "step") for _ in range(2)]
    assert found[0] == found[1]
    torch.testing.assert_close(torch.tensor(found[0]), torch.tensor(train("cpu", with_dropout)), rtol=1e-4, atol=1e-5)


def test_numbers_drawn_over_a_tensor_do_not_copy_it_out() -> None:
    x = torch.empty(5, device="sim")
    before = smelt.counters["chip_copies_out"]
    x.bernoulli_(0.5)
    assert smelt.counters["chip_copies_out"] == before
    torch.manual_seed(3)
    found = torch.ones(2, 6, device="sim")
    found[:, ::2].uniform_()
    torch.manual_seed(3)
    wanted = torch.ones(2, 6)
    wanted[:, ::2].uniform_()
    assert torch.equal(found.cpu(), wanted)


def test_a_compiled_call_copies_nothing_and_launches_few_kernels() -> None:
    torch.manual_seed(0)
    model = mlp().to("sim")
    compiled = smelt.compile(model, fullgraph=True)
    x = torch.randn(8, 20, device="sim")
    for _ in range(2):
        compiled(x).square().mean().backward()
    names = ("chip_copies_in", "chip_copies_out", "chip_fallbacks")
    before = [smelt.counters[name] for name in names]
    launches = smelt.counters["chip_launches"]
    with torch.no_grad():
        compiled(x)
        compiled(x)
    launches = smelt.counters["chip_launches"]
    compiled(x)
    assert [smelt.counters[name] for name in names] == before
    assert smelt.counters["chip_launches"] - launches <= 4


def test_sizes_that_change_are_compiled_once() -> None:
    torch.manual_seed(0)
    weight = torch.randn(6, 6).to("sim")
    compiled = smelt.compile(lambda x: (x @ weight).relu().sum(-1), dynamic=True)
    for rows in (4, 5, 9):
        x = torch.randn(rows, 6)
        found = compiled(x.to("sim"))
        torch.testing.assert_close(found.cpu(), (x @ weight.cpu()).relu().sum(-1), rtol=1e-5, atol=1e-5)


def test_a_graph_on_two_devices_runs_by_operators() -> None:
    compiled = smelt.compile(lambda x: x.cpu() + 1 if x.sum() is not None else x)
    x = torch.arange(3.0, device="sim")
    assert torch.equal(compiled(x), torch.tensor([1.0, 2.0, 3.0]))


def test_a_compiled_function_makes_tensors_on_the_chip() -> None:
    compiled = smelt.compile(lambda x: x + torch.arange(3.0, device=x.device) + torch.ones(3, device="sim"))
    assert torch.equal(compiled(torch.zeros(3, device="sim")).cpu(), torch.tensor([1.0, 2.0, 3.0]))


def test_a_whole_step_with_dropout_is_compiled() -> None:
    # A step that writes and draws puts the generator's state back where it fails: it has to know the generator.
    torch.manual_seed(0)
    numbers, wanted = torch.randn(32, 16), torch.randint(0, 4, (32,))

    def losses(device: str, compiled: bool) -> list[float]:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 4)).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        run = smelt.compile(step) if compiled else step
        return [run(numbers.to(device), wanted.to(device)).item() for _ in range(4)]

    assert losses("sim", compiled=True) == pytest.approx(losses("cpu", compiled=False), rel=1e-4)
