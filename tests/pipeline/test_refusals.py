"""What raises compiled is what raises in eager, in every backend: by shapes and layouts, whatever the values are."""

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F

import smelt
from smelt.base.options import config

every_backend = pytest.mark.parametrize("backend", ["eager", "aot_eager", "llvm"])


@pytest.fixture(autouse=True)
def _nothing_falls_back() -> Iterator[None]:
    smelt.reset()
    config.suppress_errors = False
    yield
    config.suppress_errors = True


@every_backend
def test_a_mask_of_a_repeated_input_has_a_place_for_each_element(backend: str) -> None:
    """It was said to lie as the input does, many elements at one place, where nothing can be written."""

    def threshold(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return F.threshold(x, 1, -0.25), x.square()

    gradients = []
    for function in (threshold, smelt.compile(threshold, backend=backend)):
        x = torch.linspace(0, 2, 6).view(1, 2, 3).expand(5, 2, 3).detach().requires_grad_()
        one, other = function(x)
        (one + other).sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients)
