"""Quantization-aware training by `torch.ao`: one graph, eager's statistics, and switches that are heeded."""

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import smelt

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch.ao.quantization as quantization

pytestmark = pytest.mark.filterwarnings("ignore")


class ConvBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.relu = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.relu(self.norm(self.conv(x)))


def _linear() -> Any:
    model: Any = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).train()
    model.qconfig = quantization.get_default_qat_qconfig("x86")
    return quantization.prepare_qat(model), (2, 4)


def _convolution() -> Any:
    model: Any = quantization.fuse_modules_qat(ConvBlock().train(), [["conv", "norm", "relu"]])
    model.qconfig = quantization.get_default_qat_qconfig("x86")
    return quantization.prepare_qat(model), (2, 3, 8, 8)


def _observed_by_modules() -> Any:
    return nn.Sequential(nn.Linear(4, 4), quantization.FakeQuantize(), nn.Linear(4, 2)), (2, 4)


def _per_channel() -> Any:
    model: Any = nn.Sequential(nn.Linear(4, 8)).train()
    model.qconfig = quantization.QConfig(
        activation=quantization.default_fake_quant, weight=quantization.default_per_channel_weight_fake_quant
    )
    return quantization.prepare_qat(model), (2, 4)


MODELS = {
    "linear": _linear,
    "convolution": _convolution,
    "module": _observed_by_modules,
    "per channel": _per_channel,
}


def _step(model: nn.Module, call: Any, x: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    result = call(x)
    result.square().mean().backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    return [result.detach(), *gradients, *(buffer.clone() for buffer in model.buffers())]


@pytest.mark.parametrize("backend", ["eager", "llvm"])
@pytest.mark.parametrize("name", MODELS)
def test_training_is_one_graph_with_eagers_numbers(name: str, backend: str) -> None:
    torch.manual_seed(0)
    eager, shape = MODELS[name]()
    eager(torch.randn(shape))  # observers of channels have no size before
    model = copy.deepcopy(eager)
    compiled = smelt.compile(model, backend=backend, fullgraph=True)
    for step in range(4):
        if step == 2:  # the observers stop, and what they found so far is used
            for each in (eager, model):
                each.apply(quantization.disable_observer)
        if step == 3:
            for each in (eager, model):
                each.apply(quantization.disable_fake_quant)
        x = torch.randn(shape) * (step + 1)
        torch.testing.assert_close(_step(model, compiled, x), _step(eager, eager, x))
