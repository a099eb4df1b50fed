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


def _far(x: torch.Tensor) -> torch.Tensor:
    return torch.as_strided(1 - x, (x.shape[0], 2), (1, 1), 0).select(1, 1) * 2


def _far_of_a_view(x: torch.Tensor) -> torch.Tensor:
    return (x + 1).t()[:1].as_strided((x.shape[0], 2), (1, 1)).sum()


def _far_and_unused(x: torch.Tensor) -> torch.Tensor:
    torch.as_strided(x.exp().sqrt(), (x.shape[0], 2), (1, 1), 0)
    return x + 1


@every_backend
@pytest.mark.parametrize("program", [_far, _far_of_a_view, _far_and_unused])
def test_what_is_computed_is_not_read_beyond_its_end(program: Callable[..., torch.Tensor], backend: str) -> None:
    """What was planned to lie behind it was: only PyTorch's own tensors know where they end."""
    compiled = smelt.compile(program, backend=backend)
    for shape in ((3, 2), (4, 3), (5, 3)):
        x = torch.linspace(0, 1, shape[0] * shape[1]).view(shape)
        torch.testing.assert_close(compiled(x), program(x))
    for rows in (3, 1):
        with pytest.raises(RuntimeError, match="out of bounds") as expected:
            program(torch.ones(rows, 1))
        with pytest.raises(RuntimeError, match="out of bounds") as raised:
            compiled(torch.ones(rows, 1))
        assert str(raised.value) == str(expected.value)
