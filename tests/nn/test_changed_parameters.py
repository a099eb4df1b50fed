"""A compiled network of convolutions and batch norms reads its parameters at every call, however they were changed."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

import smelt
from smelt.device import host_library
from tests.targets import HOST, chosen

ON_HOST = pytest.mark.skipif(chosen[0] != HOST, reason="NumPy reads memory of the host")


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.Conv2d(64, 64, 3, padding=1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(64), nn.BatchNorm2d(64)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(self.norms[1](self.second(y)) + x)


@pytest.fixture(autouse=True)
def packing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions are kernels, whatever the processor."""
    monkeypatch.setattr(host_library, "packs_filters", lambda: True)


def check(compiled: nn.Module, model: nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)


def change_by_numpy(model: Residual) -> None:
    model.first.weight.detach().numpy()[...] *= -0.5


def change_data(model: Residual) -> None:
    model.second.weight.data.mul_(1.5)
    model.norms[0].weight.data = torch.rand(64)


def change_in_place(model: Residual) -> None:
    with torch.no_grad():
        model.norms[1].running_var.add_(0.5)  # type: ignore[operator, union-attr]
        model.first.weight.add_(0.1)


def load_another_state(model: Residual) -> None:
    model.load_state_dict(Residual().state_dict())


@pytest.mark.parametrize(
    "change",
    [pytest.param(change_by_numpy, marks=ON_HOST), change_data, change_in_place, load_another_state],
)
def test_changes_between_calls_show(change: Callable[[Residual], None]) -> None:
    torch.manual_seed(0)
    model, x = Residual().eval(), torch.randn(2, 64, 9, 7)
    compiled = smelt.compile(model)
    for _ in range(3):
        check(compiled, model, x)
    change(model)
    check(compiled, model, x)


def test_modes_sizes_and_layouts_change_between_calls() -> None:
    torch.manual_seed(0)
    model = Residual().eval()
    compiled = smelt.compile(model)
    for shape in ((2, 64, 9, 7), (1, 64, 12, 12)):
        x = torch.randn(shape)
        check(compiled, model, x)
        check(compiled, model, x.to(memory_format=torch.channels_last))
    model.train()
    compiled(torch.randn(2, 64, 9, 7)).sum().backward()  # changes the running statistics
    model.eval()
    check(compiled, model, torch.randn(2, 64, 9, 7))
