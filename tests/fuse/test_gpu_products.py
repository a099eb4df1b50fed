"""Which products on an NVIDIA GPU are kernels of our own, with what fused, and why others are not. Needs no GPU."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from smelt.base.events import collect
from smelt.base.options import Options
from smelt.ir.kernel import Contract, Kernel
from smelt.ir.program import Launch, Library, Program
from tests.absent_device.ahead import compile_ahead, spec_like

BF16 = torch.bfloat16


class GatedLayers(nn.Module):
    """A feed-forward block with a norm, a gate and a residual."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        gated: Tensor = F.silu(self.gate(h)) * self.up(h)
        down: Tensor = self.down(gated)
        return x + down


def compiled(
    model: object, *shapes: tuple[int, ...], dtype: torch.dtype = BF16, target: str = "sm_90"
) -> tuple[Program, str]:
    """The program for a GPU that is not here, and all that was told."""
    with collect() as events:
        ahead = compile_ahead(model, [spec_like(shape, dtype) for shape in shapes], Options(target=target))  # type: ignore[arg-type]
    return ahead.forward, "\n".join(event.text for event in events)


def multiplying(program: Program) -> list[Kernel]:
    kernels = [step.kernel for step in program.steps if isinstance(step, Launch)]
    plain = [kernel for kernel in kernels if isinstance(kernel, Kernel)]
    return [kernel for kernel in plain if any(isinstance(i, Contract) for i in kernel.instructions())]


def calls(program: Program) -> int:
    return sum(isinstance(step, Library) for step in program.steps)


def test_a_token_goes_through_kernels_alone() -> None:
    model = GatedLayers(256, 1024).to(BF16).requires_grad_(False)
    program, told = compiled(model, (1, 1, 256))
    assert len(multiplying(program)) == 3 and calls(program) == 0
    assert sum(isinstance(step, Launch) for step in program.steps) == 4  # with the norm
    assert "it multiplies 1×1024×256 in about" in told


@pytest.mark.parametrize(
    ("rows", "target", "why"),
    [
        (512, "sm_90", "multiplies 512×2048×2048, which kernels do not do faster than the library"),
        (1, "sm_80", ""),
    ],
)
def test_others_are_the_librarys(rows: int, target: str, why: str) -> None:
    program, told = compiled(lambda x, w: F.linear(x, w), (rows, 2048), (2048, 2048), target=target)
    assert calls(program) == 1 and not multiplying(program)
    assert why in told


def test_float32_is_multiplied_as_it_is() -> None:
    program, _ = compiled(lambda x, w: F.linear(x, w), (2, 2048), (2048, 2048), dtype=torch.float32)
    (kernel,) = multiplying(program)
    (contract,) = (i for i in kernel.instructions() if isinstance(i, Contract))
    assert contract.dtype is torch.float32 and not calls(program)
