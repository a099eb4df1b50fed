"""Gradients of pooling where no library may be called: right, for sizes that differ too."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import smelt

POOLS: dict[str, Callable[[Tensor], Tensor]] = {
    "avg_pool2d": lambda x: F.avg_pool2d(x[:, :, 0], 3, 2, 1, True, False),
    "avg_pool3d": lambda x: F.avg_pool3d(x, 3, 2, 1),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x[:, :, 0], (4, 3)),
    "adaptive_avg_pool3d": lambda x: F.adaptive_avg_pool3d(x, (2, 4, 3)),
    "max_pool3d": lambda x: F.max_pool3d(x, 3, 2, 1),
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x[:, :, 0], (4, 3)),
}


@pytest.mark.parametrize("name", POOLS)
def test_gradients_without_a_library(name: str) -> None:
    compiled = smelt.compile(POOLS[name], options={"library": "none"}, fullgraph=True)
    for batch in (2, 3, 4):
        x = torch.randn(batch, 2, 5, 7, 6, generator=torch.Generator().manual_seed(batch))
        one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
        mine, eager = compiled(one), POOLS[name](other)
        torch.testing.assert_close(mine, eager)
        weights = torch.linspace(-1, 1, eager.numel()).view(eager.shape)
        torch.testing.assert_close(
            torch.autograd.grad((mine * weights).sum(), one), torch.autograd.grad((eager * weights).sum(), other)
        )
