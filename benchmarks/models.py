"""The benchmark models: each a module, its inputs and a loss, built the same way in every process.

    MODELS["mlp"].build(torch.float32) → Case(module, inputs, loss)
    loss(module(*inputs)).backward()     is one training step
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

SEED = 20240917


@dataclass(frozen=True, slots=True)
class Case:
    """A model ready to be trained for a step. The loss is taken outside the compiled part."""

    module: nn.Module
    inputs: tuple[torch.Tensor, ...]
    loss: Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Model:
    """One benchmark: `build` makes the same weights and inputs whenever it is called, in the dtype asked for."""

    name: str
    what: str
    make: Callable[[], Case]

    def build(self, dtype: torch.dtype = torch.float32) -> Case:
        """The case, seeded; drawn in float32 and then converted, so that every dtype sees the same numbers."""
        torch.manual_seed(SEED)
        case = self.make()
        inputs = tuple(x.detach().to(dtype).requires_grad_(x.requires_grad) for x in case.inputs)
        return Case(case.module.to(dtype), inputs, case.loss)


class PointwiseBlock(nn.Module):
    """Memory-bound work only: two activations, a normalisation and a gated softmax."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.gelu(x)
        y = torch.sin(y) * torch.cos(y)
        y = self.norm(y)
        return torch.softmax(y, dim=-1) * torch.tanh(y)


def _mlp() -> Case:
    module = nn.Sequential(
        nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10)
    )
    return Case(module, (torch.randn(128, 1024),), lambda y: y.sum())


def _pointwise() -> Case:
    module = PointwiseBlock(1024)
    with torch.no_grad():  # the defaults, ones and zeros, would hide a mistake in the affine part
        module.norm.weight.add_(torch.randn(1024), alpha=0.1)
        module.norm.bias.add_(torch.randn(1024), alpha=0.1)
    return Case(module, (torch.randn(2048, 1024, requires_grad=True),), lambda y: y.square().mean())


MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        Model("mlp", "1024-2048-2048-10, ReLU, batch 128", _mlp),
        Model("pointwise", "gelu, sin·cos, layer_norm, softmax·tanh on 2048×1024", _pointwise),
    )
}
