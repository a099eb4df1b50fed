"""Biases of convolutions are operators of the graph on GPUs: the same numbers, and fewer passes over the image."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smelt
from smelt.base.options import Options
from smelt.ir.program import Library
from smelt.simplify.convolutions import biases
from tests.absent_device.ahead import compile_ahead, spec_like

aten = torch.ops.aten


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(biases, "_adds_apart", lambda device: True)


CALLS: dict[str, Any] = {
    "plane": (F.conv2d, (2, 4, 7, 6), (6, 4, 3, 3), 6, {"padding": 1}),
    "strided": (F.conv2d, (2, 4, 7, 6), (6, 4, 3, 3), 6, {"stride": 2}),
    "by channel": (F.conv2d, (2, 4, 7, 6), (4, 1, 3, 3), 4, {"groups": 4}),
    "line": (F.conv1d, (2, 4, 9), (6, 4, 3), 6, {}),
    "volume": (F.conv3d, (2, 4, 5, 6, 4), (6, 4, 3, 3, 3), 6, {}),
    "transposed": (F.conv_transpose2d, (2, 4, 7, 6), (4, 6, 3, 3), 6, {"stride": 2}),
    "no batch": (F.conv2d, (4, 7, 6), (6, 4, 3, 3), 6, {}),
}


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
@pytest.mark.parametrize("trained", ["all", "bias", "none"])
@pytest.mark.parametrize("name", CALLS)
def test_results_and_gradients(name: str, trained: str, layout: str) -> None:
    smelt.reset()
    torch.manual_seed(0)
    convolve, *shapes, channels, options = CALLS[name]
    inputs = [torch.randint(-3, 4, shape).float() for shape in (*shapes, (channels,))]
    if layout == "channels last" and inputs[0].dim() == 4:
        inputs[0] = inputs[0].contiguous(memory_format=torch.channels_last)
    for each in {"all": inputs, "bias": inputs[2:], "none": []}[trained]:
        each.requires_grad_()

    def function(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.relu(convolve(x, weight, bias, **options))

    results = []
    for run in (smelt.compile(function, options={"convolutions": "library"}), function):
        made = run(*inputs)
        needed = [each for each in inputs if each.requires_grad]
        # Integers, whose sums are exact.
        loss = (made * (torch.arange(made.numel()).view(made.shape) % 3 - 1)).sum()
        results.append([made, *(torch.autograd.grad(loss, needed) if needed else [])])
    for mine, eager in zip(*results, strict=True):
        assert (mine.shape, mine.stride()) == (eager.shape, eager.stride())
        assert torch.equal(mine, eager)
    assert smelt.counters["eager_graphs"] == 0


class Convolved(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Conv2d(8, 8, 3, padding=1) for _ in range(2)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(self.layers(x))


def test_the_library_gets_no_bias_on_gpus() -> None:
    programs = compile_ahead(Convolved(), [spec_like((4, 8, 16, 16))], Options(target="sm_90")).programs
    calls = [step for program in programs for step in program.steps if isinstance(step, Library)]
    masks = [call.args[-1] for call in calls if call.op is aten.convolution_backward.default]
    assert len(masks) == 2 and not any(mask[2] for mask in masks)
    forward = [call for call in calls if call.op is aten.convolution.default or call.op is aten.convolution.out]
    assert len(forward) == 2 and all(call.args[2] is None for call in forward)
