"""Mistakes on the lazy device: raised at the line that makes them, in PyTorch's words, or naming that line."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn


def x() -> torch.Tensor:
    return torch.arange(6.0, device="lazy").reshape(2, 3) + 1


AT_ONCE: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "shapes of a product": (lambda: x() @ x(), RuntimeError, "mat1 and mat2 shapes cannot be multiplied"),
    "shapes of a sum": (lambda: x() + x().t(), RuntimeError, "must match the size of tensor b"),
    "another device": (lambda: x() + torch.ones(2, 3), RuntimeError, "Expected all tensors to be on the same device"),
    "an index of a row": (lambda: x()[5], IndexError, "index 5 is out of bounds for dimension 0 with size 2"),
    "a dimension": (lambda: x().sum(4), IndexError, "Dimension out of range"),
    "a view": (lambda: x().view(4), RuntimeError, "is invalid for input of size 6"),
    "a dtype": (lambda: x() @ x().t().int(), RuntimeError, "expected m1 and m2 to have the same dtype"),
    "cat": (lambda: torch.cat([x(), x().t()]), RuntimeError, "Sizes of tensors must match"),
    "a linear layer": (lambda: nn.Linear(4, 2, device="lazy")(x()), RuntimeError, "cannot be multiplied"),
    "a convolution": (
        lambda: nn.functional.conv1d(x()[None], torch.ones(1, 3, 2, device="lazy")),
        RuntimeError,
        "to have 3 channels, but got 2 channels instead",
    ),
    "a number of many": (lambda: x().item(), RuntimeError, "a Tensor with 6 elements cannot be converted to Scalar"),
    "a truth of many": (lambda: bool(x()), RuntimeError, "Boolean value of Tensor with more than one value"),
    "in place, other shape": (
        lambda: x().add_(torch.ones(3, 2, 3, device="lazy")),
        RuntimeError,
        "doesn't match the broadcast shape",
    ),
    "in place, other dtype": (lambda: x().int().add_(1.5), RuntimeError, "cast to the desired output type Int"),
    "a leaf in place": (lambda: x().requires_grad_().add_(1), RuntimeError, "leaf Variable that requires grad"),
    "numpy": (lambda: x().numpy(), TypeError, "can't convert lazy:0 device type tensor to numpy"),
    "gradient of many": (lambda: x().requires_grad_().exp().backward(), RuntimeError, "only for scalar outputs"),
}


@pytest.mark.parametrize("name", AT_ONCE)
def test_at_the_line(name: str) -> None:
    make, kind, words = AT_ONCE[name]
    with pytest.raises(kind, match=words.replace("(", r"\(")) as caught:
        make()
    lines = [frame.frame.code.path for frame in caught.traceback]
    assert any(str(path) == __file__ for path in lines[1:])


def _line() -> int:
    return sys._getframe(1).f_lineno


def test_an_index_out_of_range_names_its_line() -> None:
    index = torch.tensor([[9], [0]], device="lazy")
    found, line = torch.gather(x(), 1, index), _line()
    later = found + 1
    before = x() * 2
    with pytest.raises((RuntimeError, IndexError), match=f"test_errors.py:{line}"):
        later.tolist()
    with pytest.raises(RuntimeError, match="was not computed"):
        later.tolist()
    assert (x() + 1).sum().item() == 27.0
    del before


def test_a_class_out_of_range_names_its_line() -> None:
    target = torch.tensor([1, 7], device="lazy")
    loss, line = nn.functional.cross_entropy(x(), target), _line()
    with pytest.raises((RuntimeError, IndexError), match=f"test_errors.py:{line}"):
        loss.item()


def test_division_of_integers_by_zero_names_its_line() -> None:
    ones = torch.ones(2, dtype=torch.int64, device="lazy")
    found, line = ones // (ones - 1), _line()
    with pytest.raises(RuntimeError, match=f"(?s)ZeroDivisionError.*test_errors.py:{line}"):
        found.tolist()


def test_what_was_recorded_before_an_error_is_there() -> None:
    a = x()
    a.add_(1)
    bad = a[torch.tensor([5], device="lazy")]
    a.add_(100)
    with pytest.raises(IndexError):
        bad.tolist()
    assert a.tolist() == [[2.0, 3.0, 4.0], [5.0, 6.0, 7.0]]


def test_saved_tensors_that_were_written() -> None:
    weight = x().requires_grad_()
    y = weight.exp()
    out = y.sum()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


OVERLAPPING: dict[str, Callable[[torch.Tensor], Any]] = {
    "an expanded tensor": lambda x: x[:3].expand(2, 3).add_(1),
    "an expanded tensor in a list": lambda x: torch._foreach_add_([x[:3].expand(2, 3)], 1.0),
    "a copy to an expanded tensor": lambda x: x[:3].expand(2, 3).copy_(torch.ones(2, 3, device=x.device)),
    "an expanded tensor as out": lambda x: torch.mul(x[:3], 2, out=x[:3].expand(2, 3)),
    "windows": lambda x: x[1:].add_(x[:-1]),
    "a copy of a window": lambda x: x[1:].copy_(x[:-1]),
    "a window as out": lambda x: torch.add(x[1:], 1, out=x[:-1]),
    "the transpose": lambda x: x[:4].view(2, 2).mul_(x[:4].view(2, 2).t()),
    "an operand as out of another shape": lambda x: torch.add(x, torch.ones(2, 8, device=x.device), out=x),
}


@pytest.mark.parametrize("name", OVERLAPPING)
def test_writes_that_eager_refuses_raise_at_the_call_and_lose_nothing(name: str) -> None:
    messages = []
    for device in ("cpu", "lazy"):
        x = torch.arange(8.0).to(device)
        x.mul_(2)
        with pytest.raises(RuntimeError) as raised:
            OVERLAPPING[name](x)
        messages.append(str(raised.value))
        assert (x + 1).tolist() == [2.0 * number + 1 for number in range(8)]
    assert messages[0] == messages[1]


def test_an_expanded_tensor_is_filled_as_in_eager() -> None:
    x = torch.arange(4.0).to("lazy")
    x[:3].expand(2, 3).fill_(7)
    assert x.tolist() == [7.0, 7.0, 7.0, 3.0]
