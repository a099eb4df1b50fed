"""Exceptions in a backward on the lazy device: eager's exception comes out of the call, and later steps are eager's."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

STEPS = range(6)
FAILS = (3, 4)
"""Steps that fail: the first backwards run in the engine and are recorded, later ones repeat."""


def _raise(error: BaseException) -> Callable[..., Any]:
    def hook(*_: Any) -> Any:
        raise error

    return hook


class Derivative(torch.autograd.Function):
    """Twice its operand, with a backward that a case writes."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, backward: Callable[[torch.Tensor], Any]) -> torch.Tensor:
        ctx.backward = backward
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        result = ctx.backward(gradient)
        return result if isinstance(result, tuple) else (result, None)


def _nested(gradient: torch.Tensor) -> torch.Tensor:
    """A backward inside a hook, whose own hook raises."""
    with torch.enable_grad():
        x = torch.ones(3, device=gradient.device, requires_grad=True)
        y = x * x
        y.register_hook(_raise(ValueError("nested")))
        y.sum().backward()
    return gradient


def _caught(gradient: torch.Tensor) -> torch.Tensor:
    with pytest.raises(ValueError, match="nested"):
        _nested(gradient)
    return gradient * 3


Install = Callable[[nn.Linear, torch.Tensor], Any]


def _on_hidden(hook: Callable[[torch.Tensor], Any]) -> Install:
    return lambda layer, hidden: hidden.register_hook(hook)


def _on_node(method: str) -> Install:
    return lambda layer, hidden: getattr(hidden.grad_fn, method)(_raise(ValueError("a node's hook")))


CASES: dict[str, Install] = {
    "a tensor's hook": _on_hidden(_raise(ValueError("a tensor's hook"))),
    "a leaf's hook": lambda layer, hidden: layer.weight.register_hook(_raise(ValueError("a leaf's hook"))),
    "a hook after accumulation": lambda layer, hidden: layer.weight.register_post_accumulate_grad_hook(
        _raise(ValueError("after accumulation"))
    ),
    "a node's hook": _on_node("register_hook"),
    "a node's hook before it runs": _on_node("register_prehook"),
    "an interruption": _on_hidden(_raise(KeyboardInterrupt())),
    "an exit": _on_hidden(_raise(SystemExit(3))),
    "another shape": _on_hidden(lambda gradient: gradient[:1]),
    "no tensor": _on_hidden(lambda gradient: 3),
    "an operator": _on_hidden(lambda gradient: gradient @ torch.ones(7, 7, device=gradient.device)),
    "a nested backward": _on_hidden(_nested),
    "a nested backward, caught": _on_hidden(_caught),
}


def _outcomes(device: str, step: Callable[[int, nn.Linear, torch.Tensor], None]) -> list[Any]:
    """What each step raises, and the gradients after it."""
    torch.manual_seed(0)
    layer, outcomes = nn.Linear(4, 5).to(device), []
    x = torch.arange(8.0).reshape(2, 4).to(device)
    for number in STEPS:
        layer.zero_grad()
        raised: Any = None
        try:
            step(number, layer, x)
        except BaseException as error:
            raised = type(error), str(error), type(error.__cause__)
        gradients = [None if leaf.grad is None else leaf.grad.cpu().clone() for leaf in layer.parameters()]
        outcomes.append((raised, gradients))
    return outcomes


def _compare(step: Callable[[int, nn.Linear, torch.Tensor], None], fails: bool = True) -> None:
    for number, (eager, lazy) in enumerate(zip(_outcomes("cpu", step), _outcomes("lazy", step), strict=True)):
        assert lazy[0] == eager[0]
        assert (eager[0] is not None) == (fails and number in FAILS)
        torch.testing.assert_close(lazy[1], eager[1])


@pytest.mark.parametrize("name", CASES)
def test_hooks_that_raise(name: str) -> None:
    def step(number: int, layer: nn.Linear, x: torch.Tensor) -> None:
        hidden = layer(x)
        handle = CASES[name](layer, hidden) if number in FAILS else None
        try:
            hidden.tanh().square().sum().backward()
        finally:
            if handle is not None:
                handle.remove()

    _compare(step, fails=name != "a nested backward, caught")


BACKWARDS: dict[str, Callable[[torch.Tensor], Any]] = {
    "an exception": _raise(ValueError("in a backward")),
    "an interruption": _raise(KeyboardInterrupt()),
    "too many gradients": lambda gradient: (gradient, None, gradient),
    "another shape": lambda gradient: gradient[:1, :2],
    "no tensor": lambda gradient: 3,
    "an operator": lambda gradient: gradient @ torch.ones(7, 7, device=gradient.device),
}


@pytest.mark.parametrize("name", BACKWARDS)
def test_derivatives_that_raise(name: str) -> None:
    def step(number: int, layer: nn.Linear, x: torch.Tensor) -> None:
        hidden = layer(x)
        if number in FAILS:
            hidden = Derivative.apply(hidden, BACKWARDS[name])
        hidden.tanh().square().sum().backward()

    _compare(step)


def test_a_backward_after_one_that_raised() -> None:
    def step(number: int, layer: nn.Linear, x: torch.Tensor) -> None:
        hidden = layer(x)
        loss = hidden.tanh().square().sum()
        if number in FAILS:
            handle = hidden.register_hook(_raise(ValueError("once")))
            with pytest.raises(ValueError, match="once"):
                loss.backward(retain_graph=number == FAILS[0])
            handle.remove()
            loss.backward()
            assert number == FAILS[0], "the first backward freed what the second one needs"
        else:
            loss.backward(retain_graph=True)
            loss.backward()

    eager, lazy = _outcomes("cpu", step), _outcomes("lazy", step)
    assert [raised for raised, _ in lazy] == [raised for raised, _ in eager]
    assert eager[FAILS[0]][0] is None and "a second time" in eager[FAILS[1]][0][1]
    torch.testing.assert_close([gradients for _, gradients in lazy], [gradients for _, gradients in eager])
