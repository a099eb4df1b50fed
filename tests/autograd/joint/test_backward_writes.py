"""Backwards that write: to an input of the forward, to what was saved, to an output, to the gradient they are given.

The program wrote such a backward itself, for a custom operator or a `torch.autograd.Function`.
"""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt

BACKENDS = ["eager", "aot_eager", "llvm"]
_numbers = itertools.count()


def write_input(ctx: Any, gradient: torch.Tensor) -> Any:
    with torch.no_grad():
        ctx.other.add_(1)
    return gradient * 2, None


def write_saved(ctx: Any, gradient: torch.Tensor) -> Any:
    _, other = ctx.saved_tensors
    other.mul_(0.5).add_(gradient)
    return gradient * 2, None


def write_part(ctx: Any, gradient: torch.Tensor) -> Any:
    ctx.other[1:].add_(gradient[1:])
    return gradient * 2, None


def write_by_values(ctx: Any, gradient: torch.Tensor) -> Any:
    x, other = ctx.saved_tensors
    if x.detach().sum().item() > 0:
        other.add_(1)
    return gradient * 2, None


def write_what_requires_grad(ctx: Any, gradient: torch.Tensor) -> Any:
    with torch.no_grad():
        ctx.x.add_(1)
    return gradient * 2, None


def write_gradient(ctx: Any, gradient: torch.Tensor) -> Any:
    return gradient.mul_(2), None


def write_output(ctx: Any, gradient: torch.Tensor) -> Any:
    ctx.result.detach().zero_()
    return gradient * 2, None


WRITES = [
    write_input,
    write_saved,
    write_part,
    write_by_values,
    write_what_requires_grad,
    write_gradient,
    write_output,
]


def custom_operator(backward: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    def double(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return x * 2

    def keep(ctx: Any, inputs: Any, output: torch.Tensor) -> None:
        ctx.x, ctx.other = inputs
        ctx.result = output
        ctx.save_for_backward(*inputs)

    made: Any = torch.library.custom_op(f"smelt_tests::writes{next(_numbers)}", double, mutates_args=())
    made.register_fake(lambda x, other: torch.empty_like(x))
    made.register_autograd(backward, setup_context=keep)
    return lambda x, other: made(x, other)


def function(backward: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
            ctx.x, ctx.other = x, other
            ctx.save_for_backward(x, other)
            return x * 2

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
            return backward(ctx, *gradients)

    return lambda x, other: Double.apply(x, other)  # type: ignore[no-untyped-call, no-any-return]


def trained(call: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
    x, other = torch.arange(1.0, 5, requires_grad=True), torch.zeros(4)
    found = []
    for _ in range(3):
        result, gradient = call(x, other), torch.arange(4.0)
        result.backward(gradient)  # type: ignore[no-untyped-call]
        assert x.grad is not None
        found += [each.detach().clone() for each in (result, gradient, x, other, x.grad)]
    return found


def check(call: Callable[..., torch.Tensor], compiled: Callable[..., torch.Tensor]) -> None:
    for made, wanted in zip(trained(compiled), trained(call), strict=True):
        torch.testing.assert_close(made, wanted)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("backward", WRITES)
def test_custom_operators(backward: Callable[..., Any], last: bool, backend: str, dynamic: bool | None) -> None:
    double = custom_operator(backward)

    def call(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        made = double(x * 1 if last else x, other)
        return made if last else made.sin() + other

    check(call, smelt.compile(call, backend=backend, dynamic=dynamic))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("backward", [each for each in WRITES if each is not write_output])
def test_functions(backward: Callable[..., Any], backend: str) -> None:
    double = function(backward)

    def call(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return double(x * 1, other) * 3

    check(call, smelt.compile(call, backend=backend))


def test_a_backward_inside() -> None:
    double = custom_operator(write_input)

    def step(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        loss = (double(x, other) * 3).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    outcomes = []
    for each in (step, smelt.compile(step)):
        x, other = torch.arange(1.0, 5, requires_grad=True), torch.zeros(4)
        losses = [each(x, other).item() for _ in range(3)]
        assert x.grad is not None
        outcomes.append([losses, other.tolist(), x.grad.tolist()])
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fake", [False, True])
@pytest.mark.parametrize("breaks", [False, True])
def test_an_implementation_that_is_compiled(
    breaks: bool, fake: bool, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smelt.config, "suppress_errors", False)

    @smelt.compile(dynamic=True)
    def inner(x: torch.Tensor) -> torch.Tensor:
        y = (x * 2).sin() + x.shape[0]
        if breaks:
            smelt.graph_break()
        return y + 1

    def implementation(x: torch.Tensor) -> torch.Tensor:
        return inner(x)

    made: Any = torch.library.custom_op(f"smelt_tests::compiled{next(_numbers)}", implementation, mutates_args=())
    if fake:
        made.register_fake(lambda x: inner(x))

    def call(x: torch.Tensor) -> torch.Tensor:
        return made(x) * x.shape[0]  # type: ignore[no-any-return]

    compiled = smelt.compile(call, backend=backend, dynamic=True)
    for size in (4, 6, 9):
        x = torch.arange(float(size))
        torch.testing.assert_close(compiled(x), ((x * 2).sin() + size + 1) * size)
