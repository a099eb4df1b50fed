"""What one kernel would leave for another, computed in both: as few bytes as can be, and the same numbers."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt
from smelt.base import events
from smelt.base.options import Options
from smelt.ir.kernel import Accumulate, Role
from smelt.ir.program import Launch, Program
from tests.absent_device.ahead import compile_ahead, spec_like

HALF = torch.bfloat16


def _programs(model: nn.Module, shape: tuple[int, ...], budget: int | None = None) -> tuple[Program, ...]:
    options = Options(target="sm_90") if budget is None else Options(target="sm_90", max_rewrites=budget)
    return compile_ahead(model.to(HALF), [spec_like(shape, HALF)], options).programs


def _wide_and_big(program: Program, numel: int) -> list[str]:
    return [
        buffer.name
        for buffer in program.buffers
        if buffer.spec.dtype is torch.float32 and buffer.spec.numel == numel
    ]


def test_batch_norm_leaves_nothing_wide_in_memory() -> None:
    """The gradient's kernel stored float32 of everything for the one after it: four times the bytes of what came in."""
    model = nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), nn.ReLU())
    for program in _programs(model, (16, 8, 12, 12)):
        assert _wide_and_big(program, 16 * 8 * 12 * 12) == []


def test_it_is_said() -> None:
    with events.collect() as seen:
        _programs(nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), nn.ReLU()), (16, 8, 12, 12))
    assert any("itself, which moves fewer bytes" in event.text for event in seen if event.channel == "fusion")


def _normed(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.relu(F.batch_norm(x, None, None, w, b, training=True) + y.sin())


def _column_softmax(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    h = (x * y).exp() * w.view(1, -1, 1, 1)
    return h / h.sum((0, 2, 3), keepdim=True) + b.view(1, -1, 1, 1)


def _two_readers(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    h = x.sin() * y
    total, most = h.sum((0, 2, 3)), h.amax((0, 2, 3))
    return h - total.view(1, -1, 1, 1), h * most.view(1, -1, 1, 1), h.transpose(0, 1).contiguous() * 2


@pytest.mark.parametrize("function", [_normed, _column_softmax, _two_readers])
@pytest.mark.parametrize("dtype", [torch.float32, HALF], ids=str)
def test_the_same_numbers(function: object, dtype: torch.dtype) -> None:
    assert callable(function)
    shapes = ((6, 5, 7, 9), (6, 5, 7, 9), (5,), (5,))
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(shape, generator=generator) for shape in shapes]
    results = []
    for run, kind in ((function, torch.float64), (smelt.compile(function, options={"target": "simt-host"}), dtype)):
        inputs = [tensor.to(dtype).to(kind).requires_grad_() for tensor in drawn]
        made = run(*inputs)
        made = made if isinstance(made, tuple) else (made,)
        loss = sum((part.double() * torch.linspace(-1, 1, part.numel()).view(part.shape)).sum() for part in made)
        results.append([*made, *torch.autograd.grad(loss, inputs, allow_unused=True)])
    for exact, mine in zip(*results, strict=True):
        if exact is not None:
            error = (mine.double() - exact).norm() / exact.norm().clamp_min(1.0)  # one is nothing but rounding
            assert error < (2e-2 if dtype is HALF else 1e-5), error


def test_what_is_returned_is_read() -> None:
    """It is in memory anyhow."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = x.sin()
        return h, h - h.sum(0)

    found = compile_ahead(function, [spec_like((64, 32))], Options(target="sm_90"))
    (program,) = found.programs
    launches = [step for step in program.steps if isinstance(step, Launch)]
    assert "sin" not in str(launches[-1].kernel.stages)


def test_a_kernel_of_which_nothing_is_left_is_not_launched() -> None:
    """All that read it compute it themselves."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
    spec = replace(spec_like((5, 3, 16, 16)), requires_grad=True)
    for program in compile_ahead(model, [spec], Options(target="sm_90")).programs:
        assert all(step.args for step in program.steps if isinstance(step, Launch))


def test_what_another_kernel_needs_in_memory_is_read() -> None:
    """The gradient of a residual sum: stored for the block before, so the batch norm's second kernel reads it, and not
    the two gradients and the mask that it is computed from."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution, self.norm = nn.Conv2d(8, 8, 1, bias=False), nn.BatchNorm2d(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.relu(self.norm(self.convolution(x)) + x)

    numel = 16 * 8 * 12 * 12
    backward = _programs(nn.Sequential(*(Block() for _ in range(3))), (16, 8, 12, 12))[1]
    reads = [
        sum(buffer.size == numel and buffer.role is not Role.OUTPUT for buffer in step.kernel.parameters)
        for step in backward.steps
        if isinstance(step, Launch) and not any(isinstance(i, Accumulate) for i in step.kernel.instructions())
    ]
    # The gradient and the image. The first block's is for its batch norm alone, and computed twice.
    assert [each for each in reads if each] == [2, 2, 4]
