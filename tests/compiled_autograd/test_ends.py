"""Where a backward ends and what Functions are given: leaves that changed since, results that are no tensors."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.compiled_autograd import enable


def outcome(program: Callable[[], Any]) -> Any:
    try:
        return program()
    except RuntimeError as error:
        return str(error)


def check(program: Callable[[], Any], backend: str = "eager") -> None:
    """As the engine does it, at every one of three times."""
    wanted = outcome(program)
    for _ in range(3):
        with enable(smelt.compile(backend=backend)):
            assert outcome(program) == wanted


def _exchange_data(x: Any) -> None:
    x.data = torch.ones(3)


def _shorten(x: Any) -> None:
    x.data = torch.ones(4)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "set_": lambda x: x.set_(torch.ones(3)),
    "set_ to a storage": lambda x: x.set_(torch.ones(3).untyped_storage(), 0, (3,), (1,)),
    "set_ to nothing": lambda x: x.set_(),
    "data": _exchange_data,
    "data of another shape": _shorten,
    "detach_": lambda x: x.detach_(),
    "requires_grad_": lambda x: x.requires_grad_(False),
    "unsqueeze_": lambda x: x.unsqueeze_(0),
    "mul_": lambda x: x.mul_(2),
    "swap_tensors": lambda x: torch.utils.swap_tensors(x, torch.ones(3, requires_grad=True)),
}

ASKS: dict[str, Callable[[Any, Any], Any]] = {
    "grad": lambda out, x: torch.autograd.grad(out, x),
    "grad, or none": lambda out, x: torch.autograd.grad(out, x, allow_unused=True),
    "backward": lambda out, x: out.backward(),
    "backward to it": lambda out, x: out.backward(inputs=[x]),
    "backward to it twice": lambda out, x: out.backward(inputs=[x, x]),
}


@pytest.mark.parametrize("ask", ASKS)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("recorded", [False, True])
def test_a_tensor_that_changed_since_it_was_used(recorded: bool, change: str, ask: str) -> None:
    for use, computed in itertools.product((lambda x: x * 2, torch.sin), (False, True)):

        def program(use: Any = use, computed: bool = computed) -> Any:
            first = torch.arange(1.0, 4.0).requires_grad_()
            x = first * 1 if computed else first
            out = use(x).sum()
            with torch.set_grad_enabled(recorded):
                CHANGES[change](x)
            found = ASKS[ask](out, x)
            gradient = None if first.grad is None else first.grad.tolist()
            return [each if each is None else each.tolist() for each in found or ()], gradient, x.requires_grad

        check(program)


RESULTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "tensor": lambda x: x * 2,
    "number": lambda x: x.sum(),
    "integers": lambda x: torch.arange(3),
    "none": lambda x: None,
    "int": lambda x: 5,
    "text": lambda x: "text",
    "list": lambda x: [x * 2],
    "no gradient": lambda x: x * 3,
}


@pytest.mark.parametrize("materialize", [True, False])
@pytest.mark.parametrize("other", RESULTS)
def test_gradients_of_results_that_have_none(other: str, materialize: bool) -> None:
    """Zeros for tensors that nobody used, also for those without a gradient; None for what is no tensor."""
    seen: list[Any] = []

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, names: tuple[str, ...]) -> Any:
            ctx.set_materialize_grads(materialize)
            made = [RESULTS[name](x) for name in names]
            marked = [each for each, name in zip(made, names, strict=True) if name == "no gradient"]
            ctx.mark_non_differentiable(*marked)
            return tuple(made)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            seen.append([None if each is None else (each.dtype, each.tolist()) for each in gradients])
            return sum(each for each in gradients if each is not None and each.shape == (3,)) * 2, None

    apply: Any = Function.apply
    for names in (("tensor", other), (other, "tensor"), (other, "tensor", other), ("tensor", other, "none")):

        def program(names: tuple[str, ...] = names) -> Any:
            seen.clear()
            x = torch.ones(3, requires_grad=True)
            apply(x * 1, names)[names.index("tensor")].sum().backward()
            assert x.grad is not None
            return list(seen), x.grad.tolist()

        check(program)
