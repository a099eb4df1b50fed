"""`torch.func` inside captured functions: `functional_call` is followed, some transforms break by their own code."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, jvp, vmap

import smelt
from tests.capture.contexts import every_backend, same

X = torch.arange(15.0).reshape(5, 3) / 7


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.Tanh(), nn.Linear(4, 2, bias=False)))


MODEL = network()


def weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    return {name: torch.randn_like(tensor).requires_grad_() for name, tensor in MODEL.named_parameters()}


def called(state: Any, x: Any) -> Any:
    return functional_call(MODEL, state, (x,)).sin() + MODEL(x)


def one_argument(state: Any, x: Any) -> Any:
    return functional_call(MODEL, state, x)


def inner_step(state: Any, x: Any) -> Any:
    loss = functional_call(MODEL, state, (x,)).square().mean()
    faster = {name: tensor * 0.9 for name, tensor in state.items()}
    return loss + functional_call(MODEL, faster, (x,)).sum()


def some_and_buffers(state: Any, x: Any) -> Any:
    return functional_call(MODEL, ({"0.weight": state["0.weight"]}, {"0.bias": state["0.bias"] * 2}), (x,))


def left_by_exception(state: Any, x: Any) -> Any:
    try:
        functional_call(MODEL, state, (x, "one too many"))
    except TypeError:
        return MODEL(x)


@every_backend
@pytest.mark.parametrize("function", [called, one_argument, inner_step, some_and_buffers])
def test_functional_call(function: Any, backend: str) -> None:
    before = dict(MODEL.named_parameters())
    same(function, weights(), X, backend=backend)
    assert all(tensor is before[name] for name, tensor in MODEL.named_parameters())


def test_functional_call_that_raises_puts_the_tensors_back() -> None:
    compiled = smelt.compile(left_by_exception, backend="eager")
    for _ in range(2):
        assert torch.equal(compiled(weights(), X), MODEL(X))


@every_backend
def test_functional_call_writes_the_buffers_it_is_given(backend: str) -> None:
    model = nn.BatchNorm1d(3)
    compiled = smelt.compile(lambda state, x: functional_call(model, state, (x,)), backend=backend, fullgraph=True)
    mine, theirs = ({name: tensor.clone() for name, tensor in model.named_buffers()} for _ in range(2))
    for _ in range(3):
        torch.testing.assert_close(compiled(mine, X), functional_call(model, theirs, (X,)))
    torch.testing.assert_close(mine, theirs)
    assert int(model.num_batches_tracked) == 0


def test_weights_that_become_tied_are_noticed() -> None:
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    state = {"0.weight": torch.eye(3)}
    compiled = smelt.compile(lambda x: functional_call(model, state, (x,)), backend="eager")
    for _ in range(2):
        torch.testing.assert_close(compiled(X), functional_call(model, state, (X,)))
    model[1].weight = model[0].weight
    torch.testing.assert_close(compiled(X), X)
    assert torch.equal(functional_call(model, state, (X,)), X)


def test_names_that_the_module_lacks_are_pytorchs_to_refuse() -> None:
    def f(x: Any, strict: bool = True) -> Any:
        return functional_call(MODEL, {"nothing": x}, (x,), strict=strict)

    assert torch.equal(smelt.compile(f, backend="eager")(X, False), f(X, False))
    with pytest.raises(Exception) as expected:
        f(X)
    with pytest.raises(type(expected.value)) as got:
        smelt.compile(f, backend="eager")(X)
    assert str(got.value) == str(expected.value)


def differentiated(x: Any) -> Any:
    return grad(lambda y: (y.sin() * 2).sum())(x * 2) * 3


def mapped(x: Any) -> Any:
    return vmap(lambda row: row.sum() * row)(x + 1) - 1


def pushed(x: Any) -> Any:
    return jvp(torch.sin, (x * 1,), (torch.ones_like(x),))[1] * 2


@every_backend
@pytest.mark.parametrize("function", [differentiated, mapped, pushed])
def test_transforms_are_captured(function: Any, backend: str) -> None:
    same(function, X, backend=backend, tolerance=1e-6)


def functionalized(x: Any) -> Any:
    return torch.func.functionalize(torch.sin)(x * 2) * 3


def test_other_transforms_break_and_are_right() -> None:
    smelt.reset()
    compiled = smelt.compile(functionalized)
    for _ in range(2):
        torch.testing.assert_close(compiled(X), functionalized(X))
    assert smelt.counters["graphs"] >= 1
    with pytest.raises(smelt.GraphBreakError, match=r"B025: torch\.func"):
        smelt.compile(functionalized, fullgraph=True)(X)
