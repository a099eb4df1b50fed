"""Tensors that change under compiled code, by every way PyTorch has to change one in place: the answer is eager's.

Compiled code is asked first, several times: some of these changes are written down only when somebody asks the tensor.
"""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

import smelt

Program = tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor, Callable[[], Iterator[object]]]


def affine(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


def shapes() -> Program:
    x = torch.arange(6.0)

    def changes() -> Iterator[object]:
        yield x.resize_(2, 3)
        yield x.resize_(3)
        yield x.set_(torch.arange(8.0)[::2])  # type: ignore[call-overload]
        yield x.unsqueeze_(0)
        yield x.t_()
        yield x.squeeze_()
        yield x.as_strided_((2, 2), (0, 1))

    return affine, x, changes


def gradients() -> Program:
    x = torch.ones(3)

    def changes() -> Iterator[object]:
        yield x.requires_grad_()
        yield x.requires_grad_(False)
        yield x.add_(torch.ones(3, requires_grad=True))
        yield x.detach_()

    return affine, x, changes


def bases() -> Program:
    base = torch.zeros(4)
    view = base[1:]

    def changes() -> Iterator[object]:
        yield base.add_(torch.ones(4, requires_grad=True))

    return affine, view, changes


def bases_inside() -> Program:
    base = torch.zeros(4)
    views = [base[1:]]

    def changes() -> Iterator[object]:
        yield base.add_(torch.ones(4, requires_grad=True))
        yield base.detach()

    return lambda x: views[0] * 2 + x, torch.ones(3), changes


def data() -> Program:
    weight = nn.Parameter(torch.ones(3))

    def changes() -> Iterator[object]:
        for value in (torch.arange(6.0).reshape(2, 3), torch.ones(3, dtype=torch.float64), torch.arange(6.0)[::2]):
            weight.data = value
            yield

    return lambda x: weight * x, torch.ones(3), changes


def swapped() -> Program:
    one, other = torch.ones(3), torch.ones(2, 3, dtype=torch.float64)

    def changes() -> Iterator[object]:
        yield torch.utils.swap_tensors(one, other)
        yield torch.utils.swap_tensors(one, other)

    return lambda x: one * x, torch.ones(3), changes


def modules() -> Program:
    class Doubling(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input) * 2

    model = nn.Linear(3, 3)

    def changes() -> Iterator[object]:
        yield model.to(torch.float64)
        yield model.load_state_dict(nn.Linear(3, 3).state_dict(), assign=True)
        yield model.requires_grad_(False)
        model.__class__ = Doubling
        yield
        model.weight, model.bias = nn.Parameter(torch.ones(2, 3)), None  # type: ignore[assignment]
        yield

    return lambda x: model(x.to(model.weight.dtype)), torch.ones(3), changes


@pytest.mark.parametrize("make", [shapes, gradients, bases, bases_inside, data, swapped, modules])
@pytest.mark.parametrize("backend", ["eager", "llvm"])
def test_changes_are_seen(make: Callable[[], Program], backend: str) -> None:
    function, x, changes = make()
    compiled = smelt.compile(function, backend=backend)
    for _ in range(5):
        compiled(x)
    for _ in changes():
        found = [compiled(x) for _ in range(4)]
        expected = function(x)
        for result in found:
            torch.testing.assert_close(result, expected)
            assert result.requires_grad == expected.requires_grad


def inferred() -> torch.Tensor:
    with torch.inference_mode():
        return torch.ones(3)


ODD: dict[str, Callable[[], torch.Tensor]] = {
    "zeros without memory": lambda: torch._efficientzerotensor((3,)),
    "negated": lambda: torch._neg_view(torch.ones(3)),
    "laid out by another library": lambda: torch.ones(3).to_mkldnn(),
    "sparse": lambda: torch.ones(3).to_sparse(),
    "inference": inferred,
}


@pytest.mark.parametrize("kind", ODD)
def test_a_tensor_that_is_more_than_its_memory(kind: str) -> None:
    """Kernels read memory; the first of these has none, and reading it ended the process."""
    compiled = smelt.compile(lambda x: torch.relu(x))
    for _ in range(4):
        compiled(torch.ones(3))
    for _ in range(4):
        found, expected = compiled(ODD[kind]()), torch.relu(ODD[kind]())
        assert found.layout == expected.layout
        assert found.to_dense().equal(expected.to_dense())


def test_a_gradient_that_is_more_than_its_memory() -> None:
    x = torch.ones(3, requires_grad=True)
    compiled = smelt.compile(affine)
    for tangent, expected in ((torch.ones(3), 2.0), (torch._efficientzerotensor((3,)), 0.0)):
        (gradient,) = torch.autograd.grad(compiled(x), x, tangent)
        assert gradient.eq(expected).all()
