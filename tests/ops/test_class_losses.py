"""Losses by classes: eager's numbers and errors, and no scatter of a gradient over all classes."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smelt
from smelt.ir.program import Launch, Library, Program
from smelt.ops.decompositions import DECOMPOSITIONS
from tests.fuse.running import fused
from tests.targets import seeded

CLASSES = 5
SHAPES = {"rows": (6, CLASSES), "images": (2, CLASSES, 3, 4), "steps": (2, CLASSES, 3), "one": (CLASSES,)}
WAYS: dict[str, dict[str, Any]] = {
    "mean": {},
    "sum": {"reduction": "sum"},
    "none": {"reduction": "none"},
    "ignoring": {"ignore_index": 2},
    "smoothed": {"label_smoothing": 0.1},
    "weighted": {"weight": torch.tensor([0.5, 1.0, 0.25, 2.0, 0.75])},
    "weighted sum": {"weight": torch.tensor([0.5, 1.0, 0.25, 2.0, 0.75]), "reduction": "sum"},
}


def _given(shape: tuple[int, ...], ignored: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = seeded(5)
    x = torch.randn(shape, generator=generator)
    target = torch.randint(0, CLASSES, (*shape[:1], *shape[2:]) if len(shape) > 1 else (), generator=generator)
    if target.dim():
        target.view(-1)[0] = ignored
    return x, target


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_and_gradients_are_eagers(name: str, way: str, dtype: torch.dtype) -> None:
    options = {key: value.to(dtype) if key == "weight" else value for key, value in WAYS[way].items()}

    def loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x, target, **options)

    x, target = _given(SHAPES[name], options.get("ignore_index", -100))
    x = x.to(dtype).requires_grad_()
    found, expected = smelt.compile(loss, fullgraph=True)(x, target), loss(x, target)
    torch.testing.assert_close(found, expected)
    tangent = torch.randn(expected.shape).to(dtype)
    mine, theirs = (torch.autograd.grad(each, x, tangent)[0] for each in (found, expected))
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("wrong", [CLASSES, -1, 2**40])
def test_a_target_that_is_no_class_raises_what_eager_raises(name: str, wrong: int) -> None:
    x, target = _given(SHAPES[name], -100)
    compiled = smelt.compile(F.cross_entropy, fullgraph=True)
    compiled(x, target)
    target.view(-1)[-1] = wrong
    with pytest.raises(IndexError) as eager:
        F.cross_entropy(x, target)
    with pytest.raises(IndexError) as mine:
        compiled(x, target)
    assert str(mine.value) == str(eager.value) == f"Target {wrong} is out of bounds."


def test_a_derivative_called_by_name_raises_too() -> None:
    x, target, total = torch.randn(4, CLASSES), torch.tensor([0, 9, 2, 1]), torch.tensor(4.0)

    def derivative(x: torch.Tensor, target: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.nll_loss_backward(x.sum(), x, target, None, 1, -100, total) * 2

    with pytest.raises(IndexError, match="Target 9 is out of bounds"):
        smelt.compile(derivative, fullgraph=True)(x, target, total)
    target[1] = 4
    torch.testing.assert_close(smelt.compile(derivative)(x, target, total), derivative(x, target, total))


def test_all_ignored_is_nan_as_in_eager() -> None:
    x, target = torch.randn(4, CLASSES, requires_grad=True), torch.full((4,), -100)
    found = smelt.compile(F.cross_entropy)(x, target)
    assert torch.isnan(found)
    found.backward()
    assert x.grad is not None and torch.equal(x.grad, torch.zeros(4, CLASSES))


def _calls(program: Program) -> list[str]:
    return [str(step.op) for step in program.steps if isinstance(step, Library) and step.unless is None]


def test_a_gradient_is_one_kernel_and_nothing_is_scattered() -> None:
    def derivative(x: torch.Tensor, target: torch.Tensor, grad: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        slope = torch.ops.aten.nll_loss_backward(grad, x, target, None, 1, -100, total)
        return torch.ops.aten._log_softmax_backward_data(slope, x, 1, torch.float32)

    x, target = _given((6, CLASSES), -100)
    args = (x.log_softmax(1), target, torch.tensor(2.0), torch.tensor(5.0))
    program = fused(derivative, *args, decompositions=DECOMPOSITIONS)
    assert _calls(program) == []
    # One checks the targets, one works out what a row's share of the gradient is.
    assert len([step for step in program.steps if isinstance(step, Launch)]) == 3
