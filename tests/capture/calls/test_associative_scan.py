"""`associative_scan` in captured code, as state-space models call it: one graph, eager's numbers and gradients."""

from typing import Any

import pytest
import torch
from torch._higher_order_ops.associative_scan import associative_scan

import smelt
from tests.capture.programs import Captured


def add(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return left + right


def recurrence(left: Any, right: Any) -> Any:
    return left[0] * right[0], left[1] * right[0] + right[1]


def _scanned(a: torch.Tensor, b: torch.Tensor, dim: int, reverse: bool) -> torch.Tensor:
    states = associative_scan(recurrence, (a, b), dim, reverse=reverse, combine_mode="generic")[1]
    return states * 2 + associative_scan(add, a, dim, reverse=reverse, combine_mode="generic")


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("length", [1, 2, 7, 8])
def test_scans_break_no_graph(dim: int, reverse: bool, length: int) -> None:
    shape = [length if axis == dim % 3 else 3 for axis in range(3)]
    mine = [torch.rand(shape, requires_grad=True) for _ in range(2)]
    eager = [each.detach().clone().requires_grad_() for each in mine]
    runner = Captured()
    result, expected = runner(_scanned, *mine, dim, reverse), _scanned(*eager, dim, reverse)
    result.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close([result, *(each.grad for each in mine)], [expected, *(each.grad for each in eager)])
    assert runner.breaks == []


def test_another_length_and_another_function() -> None:
    for combine in (add, torch.mul, lambda a, b: torch.maximum(a, b)):
        runner = Captured()
        for length in (4, 6, 9):
            x = torch.rand(length, 3)
            found = runner(associative_scan, combine, x, 0, combine_mode="generic")
            torch.testing.assert_close(found, associative_scan(combine, x, 0, combine_mode="generic"))
        assert runner.breaks == []


def test_compiled_by_llvm() -> None:
    a, b = torch.rand(16, 3), torch.rand(16, 3)
    smelt.reset()
    compiled = smelt.compile(_scanned, fullgraph=True)
    torch.testing.assert_close(compiled(a, b, 0, False), _scanned(a, b, 0, False))
    assert smelt.counters["kernels"] > 0


def test_wrong_arguments_raise_as_in_eager() -> None:
    x = torch.rand(4)
    runner = Captured()
    for given in ((add, x, 3), (add, (), 0), (add, x.reshape(4, 1)[:0], 0)):
        with pytest.raises(Exception) as expected:
            associative_scan(*given, combine_mode="generic")
        with pytest.raises(type(expected.value)) as raised:
            runner(associative_scan, *given, combine_mode="generic")
        assert str(raised.value) == str(expected.value)
