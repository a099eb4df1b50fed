"""Modules that learn their sizes at the first call (`nn.LazyLinear` and others): on the lazy device, and exported."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import smelt


def convolutional() -> nn.Sequential:
    return nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3))


def _made_there(device: str) -> nn.Module:
    with torch.device(device):
        return convolutional()


WAYS: dict[str, Callable[[str], nn.Module]] = {
    "moved": lambda device: convolutional().to(device),
    "made there": _made_there,
}


def train(device: str, make: Callable[[str], nn.Module]) -> list[Any]:
    torch.manual_seed(0)
    model = make(device)
    inputs = [torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(step)) for step in range(4)]
    torch.manual_seed(1)
    model(inputs[0].to(device))  # the sizes
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for x in inputs:
        optimizer.zero_grad()
        loss = model(x.to(device)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("way", WAYS)
def test_on_the_device(way: str) -> None:
    found = train("lazy", WAYS[way])
    torch.testing.assert_close(torch.tensor(found), torch.tensor(train("cpu", WAYS[way])), rtol=1e-5, atol=1e-5)
    how = [run.how for run in smelt.lazy.explain().runs if run.reason == "an optimizer's step"]
    assert how[-2:] == ["cached"] * 2


def test_a_moved_module_still_waits_for_its_sizes() -> None:
    model = convolutional().to("lazy")
    assert model[0].has_uninitialized_params() and model[4].has_uninitialized_params()
    model.to("cpu").to("lazy")
    model(torch.ones(2, 3, 8, 8, device="lazy"))
    assert type(model[4]) is nn.Linear and model[4].weight.shape == (3, 144)
    assert {each.device.type for each in model.parameters()} == {"lazy"}


@pytest.mark.parametrize("known", [True, False])
def test_export(tmp_path: Any, known: bool) -> None:
    """Also where the example is the first that tells the sizes."""
    model, x = convolutional().eval(), torch.randn(2, 3, 8, 8)
    if known:
        model(x)
    path = smelt.export(model, (x,)).save(tmp_path / "model.smelt")
    assert type(model[4]) is nn.Linear
    torch.testing.assert_close(smelt.load(path)(x), model(x), rtol=1e-4, atol=1e-5)
