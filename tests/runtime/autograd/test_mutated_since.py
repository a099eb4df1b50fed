"""Tensors written between forward and backward: refused where eager refuses them, which is per result."""

from typing import Any

import pytest
import torch

import smelt


def two(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> Any:
    return x * w, (x.sin() * v).exp()


@pytest.mark.parametrize("backend", ["aot_eager", "llvm"])
@pytest.mark.parametrize("result", [0, 1])
@pytest.mark.parametrize("written", ["x", "w", "v", "first", "second"])
def test_only_what_a_result_needs_may_not_be_written(written: str, result: int, backend: str) -> None:
    if (written, result) == ("second", 1):
        pytest.skip("eager keeps the result of exp and refuses; here it is computed again from what was not written")
    assert outcome(smelt.compile(two, backend=backend), written, result) == outcome(two, written, result)


def outcome(f: Any, written: str, result: int, size: int = 3) -> Any:
    torch.manual_seed(0)
    x, w, v = (torch.randn(size, requires_grad=True) for _ in range(3))
    first, second = f(x, w, v)
    {"x": x, "w": w, "v": v, "first": first, "second": second}[written].detach().add_(1)
    try:
        (first, second)[result].sum().backward()
    except RuntimeError as error:
        return str(error).split(":")[0]
    found = [tensor.grad for tensor in (x, w, v)]
    return [None if gradient is None else [round(each, 4) for each in gradient.tolist()] for gradient in found]


@pytest.mark.parametrize("backend", ["aot_eager", "llvm"])
@pytest.mark.parametrize("result", [0, 1])
@pytest.mark.parametrize("written", ["x", "w", "v", "first", "second"])
def test_so_where_sizes_differ_from_call_to_call(written: str, result: int, backend: str) -> None:
    if (written, result) == ("second", 1):
        pytest.skip("eager keeps the result of exp and refuses; here it is computed again from what was not written")
    compiled = smelt.compile(two, backend=backend, dynamic=True)
    for size in (3, 5):
        assert outcome(compiled, written, result, size) == outcome(two, written, result, size)


def test_a_result_with_many_sizes_is_written_after_a_break() -> None:
    def broken(c: torch.Tensor) -> torch.Tensor:
        first, second = c.sin() * c, torch.logsumexp(c, [0])
        smelt.graph_break()
        second[::2] = 2
        return first

    compiled = smelt.compile(broken)
    for size in (7, 6, 5):
        values = torch.rand(size, size)
        there, here = (values.clone().requires_grad_() for _ in range(2))
        broken(there).sum().backward()
        compiled(here).sum().backward()
        torch.testing.assert_close(here.grad, there.grad)


def test_a_second_derivative_needs_it_all() -> None:
    compiled = smelt.compile(two, backend="aot_eager")
    x, w, v = (torch.randn(3, requires_grad=True) for _ in range(3))
    first, _ = compiled(x, w, v)
    v.detach().add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(first.sum(), x, create_graph=True)
