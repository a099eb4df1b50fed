"""Function transforms of torch.func inside compiled functions, under fullgraph=True: values, gradients, one graph."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.func import functional_call, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, vjp, vmap

import smelt
from tests.capture.contexts import every_backend, same

_LAYER = torch.nn.Linear(3, 2)
_SCALE = torch.randn(3, requires_grad=True)


def _energy(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * x).sum()


_OUTSIDE = {
    "grad": grad(_energy),
    "grad_and_value": grad_and_value(_energy),
    "vmap": vmap(lambda row: row.softmax(-1) * row.sum()),
    "jacrev": jacrev(torch.sin),
    "jacfwd": jacfwd(torch.sin),
    "hessian": hessian(_energy),
    "nested": vmap(grad(_energy)),
}


def by_grad(x: torch.Tensor) -> Any:
    return grad(lambda t: (t.sin() * t).sum())(x) * 2


def by_grad_of_closure(x: torch.Tensor) -> Any:
    return grad(lambda t: (t * _SCALE).exp().sum())(x.detach()) + x


def by_grad_of_several(x: torch.Tensor) -> Any:
    (a, b), aux = grad(lambda t, u, s: ((t * u).sum() * s, {"sum": t + u}), argnums=(0, 1), has_aux=True)(x, x * 2, 3)
    return a + b, aux["sum"]


def by_grad_of_trees(x: torch.Tensor) -> Any:
    found = grad(lambda p, t: (p["w"] * t + p["b"][0]).pow(2).sum())({"w": x * 2, "b": [x + 1]}, x)
    return found["w"] - found["b"][0]


def by_value(x: torch.Tensor) -> Any:
    found, value = grad_and_value(lambda t: t.exp().sum())(x)
    return found + value


def twice(x: torch.Tensor) -> Any:
    return grad(lambda t: grad(lambda u: (u**3).sum())(t).sum())(x)


def without_grad(x: torch.Tensor) -> Any:
    with torch.no_grad():
        return grad(lambda t: (t.sin() if torch.is_grad_enabled() else t).sum())(x)


def mapped(x: torch.Tensor) -> Any:
    return vmap(lambda row: row.softmax(-1) * row.sum())(x)


def mapped_along(x: torch.Tensor) -> Any:
    return vmap(lambda a, b, c: (a * b, a.sum() + c), in_dims=(1, None, 0), out_dims=(1, 0))(x, x[:, 0], x[0])


def mapped_trees(x: torch.Tensor) -> Any:
    return vmap(lambda d, s: {"y": d["a"] @ d["b"] * s}, in_dims=({"a": 0, "b": None}, None))({"a": x, "b": x[0]}, 2.0)


def mapped_linear(x: torch.Tensor) -> Any:
    return vmap(_LAYER)(x).relu()


def mapped_twice(x: torch.Tensor) -> Any:
    return vmap(lambda a: vmap(lambda b: (a * b).sum())(x))(x)


def per_sample(x: torch.Tensor) -> Any:
    def loss(params: Any, sample: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return ((functional_call(_LAYER, params, (sample,)) - target) ** 2).sum()

    params = {name: value.detach() for name, value in _LAYER.named_parameters()}
    found = vmap(grad(loss), in_dims=(None, 0, 0))(params, x, x[:, :2])
    return found["weight"], found["bias"]


def with_jacrev(x: torch.Tensor) -> Any:
    return jacrev(lambda t: t.sin() * t.sum())(x[0])


def with_jacrev_of_several(x: torch.Tensor) -> Any:
    (a, b), (c, d) = jacrev(lambda t, u: (t * u, t.sum() * u), argnums=(0, 1))(x[0], x[1])
    return a + b, c + d


def with_jacfwd(x: torch.Tensor) -> Any:
    return jacfwd(lambda t: t.sin() * t.sum())(x[0])


def with_hessian(x: torch.Tensor) -> Any:
    return hessian(_energy)(x[0])


def with_vjp(x: torch.Tensor) -> Any:
    value, pull = vjp(lambda t, u: (t.sin() * u, t.sum()), x, x + 1)
    a, b = pull((torch.ones_like(value[0]), x[0, 0]))
    return value[0], a, b


def with_jvp(x: torch.Tensor) -> Any:
    return jvp(lambda t, u: t.sin() * u, (x, x + 1), (torch.ones_like(x), x))


FUNCTIONS = [
    by_grad,
    by_grad_of_closure,
    by_grad_of_several,
    by_grad_of_trees,
    by_value,
    twice,
    without_grad,
    mapped,
    mapped_along,
    mapped_trees,
    mapped_linear,
    mapped_twice,
    per_sample,
    with_jacrev,
    with_jacrev_of_several,
    with_jacfwd,
    with_hessian,
    with_vjp,
    with_jvp,
]


@every_backend
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_a_transform_is_part_of_the_graph(function: Callable[..., Any], requires_grad: bool, backend: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 3, requires_grad=requires_grad)
    same(function, x, backend=backend, tolerance=1e-5, exact=backend == "eager")


@every_backend
@pytest.mark.parametrize("name", _OUTSIDE)
def test_what_was_transformed_outside_is_followed(name: str, backend: str) -> None:
    transformed: Any = _OUTSIDE[name]
    torch.manual_seed(0)
    x = torch.randn(3) if name == "hessian" else torch.randn(4, 3)
    same(lambda t: transformed(t), x, backend=backend, tolerance=1e-5, exact=backend == "eager")


def test_dynamic_sizes() -> None:
    compiled = smelt.compile(by_grad, fullgraph=True, dynamic=True)
    batched = smelt.compile(mapped, fullgraph=True, dynamic=True)
    for rows in (4, 6, 9):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(compiled(x), by_grad(x))
        torch.testing.assert_close(batched(x), mapped(x))


def test_a_transformed_function_may_be_returned() -> None:
    def function(x: torch.Tensor) -> Any:
        return grad(_energy), x * 2

    made, _ = smelt.compile(function, fullgraph=True, backend="eager")(torch.ones(3))
    x = torch.randn(3)
    torch.testing.assert_close(made(x), grad(_energy)(x))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: vmap(lambda t: t + torch.rand(3), randomness="different")(x),
        lambda x: vmap(lambda t: print(t.sum()) or t)(x),
        lambda x: vmap(lambda t: t[t > 0].sum() if t.sum() > 0 else t.sum())(x.abs()),
    ],
)
def test_what_cannot_be_followed_breaks_the_graph(function: Callable[..., Any]) -> None:
    x = torch.randn(4, 3)
    with pytest.raises(smelt.SmeltError, match="B0"):
        smelt.compile(function, fullgraph=True)(x)


def test_errors_are_those_of_pytorch() -> None:
    def function(x: torch.Tensor) -> Any:
        return grad(lambda t: t.sin())(x)

    x = torch.randn(3)
    with pytest.raises(RuntimeError) as expected:
        function(x)
    with pytest.raises(RuntimeError) as found:
        smelt.compile(function)(x)
    assert str(found.value) == str(expected.value)


def test_writes_of_the_function_are_not_lost() -> None:
    def function(x: torch.Tensor, log: list[int]) -> Any:
        def noted(t: torch.Tensor) -> torch.Tensor:
            log.append(1)
            return t.sin().sum()

        return grad(noted)(x)

    x, log = torch.randn(3), [0]
    torch.testing.assert_close(smelt.compile(function)(x, log), x.cos())
    assert log == [0, 1]
