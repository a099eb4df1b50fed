"""`torch.jit.script` of what smelt compiled: TorchScript takes the function as it was written."""

from typing import Any

import pytest
import torch

import smelt


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).relu()


class Outer(torch.nn.Module):
    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + 1


class Decorated(torch.nn.Module):
    @smelt.compile
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin()


def plain(x: torch.Tensor) -> torch.Tensor:
    return x + 1


MAKERS = {
    "a module": lambda: smelt.compile(Net()),
    "inside of another": lambda: Outer(smelt.compile(Net())),
    "a method": Decorated,
    "a function": lambda: smelt.compile(plain),
}


@pytest.mark.parametrize("called_before", [False, True])
@pytest.mark.parametrize("name", MAKERS)
def test_it_is_scripted_as_it_was_written(name: str, called_before: bool) -> None:
    made, x = MAKERS[name](), torch.randn(2, 3)
    if called_before:
        made(x)
    torch.testing.assert_close(torch.jit.script(made)(x), made(x))
