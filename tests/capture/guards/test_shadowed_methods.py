"""Attributes of one tensor that hide a method of all tensors, `x.sum = …`: respected whenever they come and go."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt

Tensor = torch.Tensor


def answer(*_: object) -> Tensor:
    return torch.full((3,), 100.0)


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.register_buffer("shift", torch.ones(3))
        self.several = [torch.ones(3), torch.ones(3)]

    def forward(self, x: Tensor) -> Tensor:
        return x.exp() + self.weight.float() + self.shift.exp() + self.several[1].exp()


def both(compiled: Any, plain: Any, *args: Any) -> None:
    torch.testing.assert_close(compiled(*args), plain(*args))


PROGRAMS: list[Callable[[Tensor], Tensor]] = [
    lambda x: x.exp() + 1,
    lambda x: [x][0].exp() + 1,
    lambda x: (lambda y: y.exp())(x) + 1,
    lambda x: getattr(x, "exp")() + 1,  # noqa: B009
    lambda x: torch.stack([each.exp() for each in (x, x)]),
]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("calls", [1, 5])
def test_of_an_argument(program: Any, calls: int) -> None:
    compiled = smelt.compile(program)
    x, hidden = torch.ones(3), torch.ones(3)
    for _ in range(calls):  # guards take their fast path after a few
        both(compiled, program, x)
    hidden.exp = answer  # type: ignore[method-assign]
    both(compiled, program, hidden)
    x.exp = answer  # type: ignore[method-assign]
    both(compiled, program, x)
    del x.exp
    both(compiled, program, x)
    x.other = 3  # type: ignore[attr-defined]
    both(compiled, program, x)


@pytest.mark.parametrize("name", ["weight", "shift", "several"])
def test_of_what_a_module_holds(name: str) -> None:
    model = Scaled()
    compiled, x = smelt.compile(model), torch.ones(3)
    held = model.several[1] if name == "several" else getattr(model, name)
    method = "float" if name == "weight" else "exp"
    for _ in range(5):
        both(compiled, model, x)
    setattr(held, method, answer)
    assert float(model(x).detach().max()) > 100
    both(compiled, model, x)
    delattr(held, method)
    both(compiled, model, x)


def test_properties_come_before_what_the_tensor_holds() -> None:
    x = torch.ones(2, 3)
    x.__dict__["T"] = 5
    both(smelt.compile(lambda x: x.T + 0), lambda x: x.T + 0, x)


def test_a_class_that_answers_for_missing_names() -> None:
    class Answering(torch.Tensor):
        def __getattr__(self, name: str) -> Any:
            raise AttributeError(name)

    def program(x: Tensor) -> Tensor:
        return torch.Tensor(x.exp() + 1)

    compiled, x = smelt.compile(program), torch.ones(3).as_subclass(Answering)
    both(compiled, program, x)
    x.exp = answer  # type: ignore[method-assign]
    both(compiled, program, x)
