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


def _written(x: torch.Tensor) -> torch.Tensor:
    x.view(-1)[::2] = 3  # refused if it does not lie row by row
    return x


LAID_OUT_ANEW: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "isin": lambda x: _written(torch.isin(x, torch.tensor([0.0, 1.0]))),
    "isin of one": lambda x: _written(torch.isin(x, 1.0)),
    "batch_norm": lambda x: _written(F.batch_norm(x, None, None, training=True)),
    "batch_norm with statistics": lambda x: _written(F.batch_norm(x, x[0].clone(), x[1].square(), training=True)),
    "batch_norm by statistics": lambda x: _written(F.batch_norm(x, x[0], x[1].square())),
}


@every_backend
@pytest.mark.parametrize("name", LAID_OUT_ANEW)
def test_what_lies_row_by_row_in_eager_does_so_here(name: str, backend: str) -> None:
    program = LAID_OUT_ANEW[name]
    x = torch.arange(12.0).view(4, 3).t()
    found, expected = smelt.compile(program, backend=backend)(x), program(x)
    torch.testing.assert_close(found, expected)
    assert found.stride() == expected.stride() == (4, 1)


@every_backend
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last, torch.preserve_format])
def test_batch_norm_of_images_lies_as_in_eager(layout: torch.memory_format, backend: str) -> None:
    norm = torch.nn.BatchNorm2d(3).double()
    compiled = smelt.compile(norm, backend=backend)
    for training in (True, False):
        norm.train(training)
        found = []
        for function in (norm, compiled):
            norm.reset_running_stats()
            x = torch.linspace(-2, 2, 120, dtype=torch.float64).sin().view(5, 4, 3, 2).transpose(0, 3)
            x = x.transpose(1, 2).clone(memory_format=layout).requires_grad_()
            y = function(x)
            y.square().sum().backward()
            assert x.grad is not None
            found.append((y, x.grad, norm.running_mean, y.stride(), x.grad.stride()))
        torch.testing.assert_close(found[0][:3], found[1][:3])
        assert found[0][3:] == found[1][3:]


@every_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 0, 4), (0, 2, 4), (3, 2, 0)])
def test_groups_without_elements(shape: tuple[int, ...], dtype: torch.dtype, backend: str) -> None:
    """PyTorch's own description of the gradient divides by how many there are."""

    def grouped(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.group_norm(x, 1, weight, weight) * 2

    results = []
    for function in (grouped, smelt.compile(grouped, backend=backend)):
        x, weight = torch.ones(shape, dtype=dtype).requires_grad_(), torch.ones(shape[1]).requires_grad_()
        y = function(x, weight)
        y.sum().backward()
        results.append((y.detach(), x.grad, weight.grad))
    torch.testing.assert_close(*results, equal_nan=True)  # the mean of none is NaN


@every_backend
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_distances_that_nobody_uses_are_refused_as_in_eager(dtype: torch.dtype, backend: str) -> None:
    compiled = smelt.compile(lambda x: (torch.cdist(x, x), x * 2)[1], backend=backend)
    with pytest.raises(NotImplementedError, match='"cdist" not implemented for'):
        compiled(torch.ones(3, 4, dtype=dtype))
    assert compiled(torch.ones(26, 4, dtype=dtype)).sum() == 208  # by a matrix product, which knows them
