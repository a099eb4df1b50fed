"""Numbers of tensors that the captured code made of constants: known at capture, where nothing else decides them."""

import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt


def _scale(x: torch.Tensor, number: float) -> Any:
    scale = 2 ** float(torch.tensor(number).log2().round())
    return x * scale, int(-torch.log2(torch.tensor(scale, dtype=torch.float32)).item())


@pytest.mark.parametrize("numbers", [(0.25, 0.5, 0.25, 3.0, 3.1), (8, 9.5, 1)])
def test_number_is_known_and_guarded(numbers: tuple[float, ...]) -> None:
    compiled, x = smelt.compile(_scale, fullgraph=True, backend="eager"), torch.randn(4)
    got, wanted = compiled(x, numbers[0]), _scale(x, numbers[0])
    assert torch.equal(got[0], wanted[0]) and got[1] == wanted[1]
    compiled = smelt.compile(_scale, backend="eager")  # a number that changes becomes an input, and is no constant
    for number in numbers:
        got, wanted = compiled(x, number), _scale(x, number)
        assert torch.equal(got[0], wanted[0]) and got[1] == wanted[1]


def _total(x: torch.Tensor) -> Any:
    return x[: int(torch.tensor([1, 0, 1]).sum())] * torch.arange(4).max().item()


def _branch(x: torch.Tensor) -> Any:
    return x + 1 if torch.tensor([3.0]) > 2 else x - 1


def _listed(x: torch.Tensor) -> Any:
    return x * torch.linspace(0, 1, 5)[3].item() + float(torch.tensor(float("inf"))) * 0


def _half(x: torch.Tensor) -> Any:
    return x * torch.tensor(0.1, dtype=torch.float16).mul(3).item()


@pytest.mark.parametrize("function", [_total, _branch, _listed, _half])
def test_is_whole(function: Callable[..., Any]) -> None:
    x = torch.randn(4)
    compiled = smelt.compile(function, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x), function(x), rtol=0, atol=0, equal_nan=True)


def _written_through_view(x: torch.Tensor) -> Any:
    table = torch.zeros(3)
    first = table[0]
    table += 1
    return x * first.item()


def _written_view(x: torch.Tensor) -> Any:
    table = torch.zeros(3)
    table[1:].fill_(2.0)
    return x * table[1].item()


def _written_data(x: torch.Tensor) -> Any:
    table = torch.ones(())
    table.data.mul_(5)
    return x * table.item()


def _drawn(x: torch.Tensor) -> Any:
    return x * torch.ones(1).bernoulli(0.5).add(torch.rand(1)).item()


def _of_input(x: torch.Tensor) -> Any:
    return x * torch.ones(()).add(x.sum()).item()


@pytest.mark.parametrize("function", [_written_through_view, _written_view, _written_data, _drawn, _of_input])
def test_others_stay_as_they_were(function: Callable[..., Any]) -> None:
    compiled = smelt.compile(function, backend="eager")
    for seed in range(3):
        x = torch.full((4,), float(seed))
        torch.manual_seed(seed)
        got = compiled(x)
        torch.manual_seed(seed)
        assert torch.equal(got, function(x))


def _overflow(x: torch.Tensor) -> Any:
    return x * int(torch.tensor(math.inf))


def test_what_python_refuses_is_refused_at_its_line() -> None:
    with pytest.raises(OverflowError):
        smelt.compile(_overflow, backend="eager")(torch.ones(2))


def test_no_other_compiler_is_loaded() -> None:
    program = "import sys, torch, smelt\nsmelt.compile(lambda x: x * torch.tensor(2.0).item())(torch.ones(2))\n"
    text = program + "print('torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
