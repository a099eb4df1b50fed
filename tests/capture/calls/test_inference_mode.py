"""`torch.inference_mode` inside captured functions: what is made in it is an inference tensor, as in eager."""

from typing import Any

import pytest
import torch

import smelt
from tests.capture.contexts import every_backend, same

X = torch.arange(6.0).reshape(2, 3) / 3


def weight() -> torch.Tensor:
    return torch.linspace(-1, 1, 3, requires_grad=True)


def block(x: Any, w: Any) -> Any:
    with torch.inference_mode():
        y = x * w + 1
        return y, y.sum(), torch.is_inference_mode_enabled(), torch.is_grad_enabled()


@torch.inference_mode()
def decorated(x: Any, w: Any) -> Any:
    return (x * w).sin()


def calls_decorated(x: Any, w: Any) -> Any:
    y = x * 2
    return decorated(y, w), torch.is_inference_mode_enabled()


def used_after(x: Any, w: Any) -> Any:
    with torch.inference_mode():
        scale = (x * w).amax()
    return x * scale.clone() + w


def views(x: Any, w: Any) -> Any:
    with torch.inference_mode():
        y = x * 2
        z = y.view(-1)[1:]
    return y, z, z.view(-1)


def nested(x: Any, w: Any) -> Any:
    with torch.inference_mode():
        with torch.inference_mode(), torch.no_grad():
            y = x + w
        with torch.enable_grad():
            z = y * w
    return y, z


def switched_off(x: Any, w: Any) -> Any:
    with torch.inference_mode(mode=False):
        return x * w


def left_by_exception(x: Any, w: Any) -> Any:
    try:
        with torch.inference_mode():
            y = x * w
            raise ValueError("out")
    except ValueError:
        return y.exp().clone() * w, torch.is_inference_mode_enabled()


@every_backend
@pytest.mark.parametrize(
    "function",
    [block, decorated, calls_decorated, used_after, views, nested, switched_off, left_by_exception],
)
def test_as_eager(function: Any, backend: str) -> None:
    same(function, X, weight(), backend=backend)


def views_of_what_an_operator_makes_inside(x: Any, w: Any) -> Any:
    pooled = torch.nn.functional.avg_pool1d(x[None], 2)  # a squeezed average over images
    return pooled, x * w


@every_backend
@pytest.mark.parametrize("function", [block, decorated, nested, views_of_what_an_operator_makes_inside])
def test_inside_inference_mode(function: Any, backend: str) -> None:
    with torch.inference_mode():
        same(function, X, weight(), backend=backend)


def writes_inside(x: Any, w: Any) -> Any:
    total = torch.zeros(2, 3)
    with torch.inference_mode():
        total.add_(x)
    return total * w


@every_backend
def test_writing_to_an_ordinary_tensor_inside(backend: str) -> None:
    same(writes_inside, X, weight(), backend=backend)


def both_kinds(x: Any, w: Any) -> Any:
    with torch.inference_mode():
        y = x * 2
    return y, x * w


def broken(x: Any, w: Any) -> Any:
    with torch.inference_mode():
        y = x * 2
        smelt.graph_break()
        z = y + w
    return z, y


@every_backend
@pytest.mark.parametrize("function", [both_kinds, broken])
def test_breaks_are_right(function: Any, backend: str) -> None:
    smelt.reset()
    compiled = smelt.compile(function, backend=backend)
    for _ in range(2):
        got, expected = compiled(X, weight()), function(X, weight())
        for one, other in zip(got, expected, strict=True):
            assert torch.equal(one, other) and one.is_inference() == other.is_inference()
            assert one.requires_grad == other.requires_grad
        assert not torch.is_inference_mode_enabled() and torch.is_grad_enabled()
    assert smelt.counters["graph_breaks"]


def recorded(x: Any, w: Any) -> Any:
    with torch.inference_mode():
        y = x * 2
    return y * w


def written(x: Any, w: Any) -> Any:
    with torch.inference_mode():
        y = x * 2
    return y.add_(1)


@pytest.mark.parametrize("function", [recorded, written])
def test_what_eager_refuses_is_refused(function: Any) -> None:
    compiled = smelt.compile(function, backend="aot_eager")
    with pytest.raises(RuntimeError) as expected:
        function(X, weight())
    for _ in range(2):
        with pytest.raises(RuntimeError) as got:
            compiled(X, weight())
        assert str(got.value) == str(expected.value)
    with pytest.raises(smelt.GraphBreakError, match="B021"):
        smelt.compile(function, backend="eager", fullgraph=True)(X, weight())
