"""Operators under `torch.ops`, and functions in modules of C, that the program replaced: PyTorch finds them by name."""

import functools
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import smelt
from tests.capture.guards.test_patched import BACKENDS, World, patched

sin, sin_default = torch.ops.aten.sin, torch.ops.aten.sin.default
arange = functools.lru_cache(torch.arange)


def posing(original: Any, world: World) -> Callable[..., Any]:
    """A function that says it is the original, and does not say what it wraps."""

    def function(*args: Any, **kwargs: Any) -> Any:
        world.log.append(original.__name__)
        return original(*args, **kwargs) + 3

    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        if isinstance(getattr(original, name, None), str):
            setattr(function, name, getattr(original, name))
    return function


def cached(original: Any, world: World) -> Callable[..., Any]:
    return functools.lru_cache(original)


def namespace(original: Any, world: World) -> Any:
    return types.SimpleNamespace(sin=posing(sin, world))


PLACES: dict[str, tuple[Any, str, Any, Callable[[torch.Tensor], torch.Tensor]]] = {
    "a packet": (torch.ops.aten, "sin", posing, lambda x: torch.ops.aten.sin(x) * 2),
    "a packet, and its overload is held": (torch.ops.aten, "sin", posing, lambda x: sin_default(x) * 2),
    "a packet that is held": (torch.ops.aten, "sin", posing, lambda x: sin(x) * 2),
    "a packet, not called": (torch.ops.aten, "sin", posing, lambda x: torch.sin(x) * 2),
    "an overload": (torch.ops.aten.sin, "default", posing, lambda x: torch.ops.aten.sin.default(x) * 2),
    "an overload of a packet": (torch.ops.aten.sin, "default", posing, lambda x: torch.ops.aten.sin(x) * 2),
    "an overload, not called": (torch.ops.aten.sin, "default", posing, lambda x: torch.sin(x) * 2),
    "a namespace": (torch.ops, "aten", namespace, lambda x: torch.ops.aten.sin(x) * 2),
    "a module of C": (torch._C._nn, "linear", posing, lambda x: torch._C._nn.linear(x, x) * 2),
    "a module of C, another name": (torch._C._nn, "linear", posing, lambda x: F.linear(x, x) * 2),
    "functional": (F, "linear", posing, lambda x: F.linear(x, x) * 2),
    "torch": (torch, "matmul", posing, lambda x: torch.matmul(x, x.t()) * 2),
    "a cache": (torch, "sin", cached, lambda x: torch.sin(x) * 2),
    "a cache of numbers": (torch, "arange", cached, lambda x: x * torch.arange(4)),
    "a cache of its own": (torch, "arange", posing, lambda x: x * arange(4)),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("what", PLACES)
def test_what_is_found_is_called(what: str, first: bool, backend: str) -> None:
    owner, name, make, program = PLACES[what]
    world, x = World(), torch.linspace(-1, 1, 12).reshape(3, 4)
    compiled = smelt.compile(program, backend=backend)
    for _ in range(0 if first else 3):
        torch.testing.assert_close(compiled(x), program(x))
    with patched(owner, name, make(getattr(owner, name), world)):
        for _ in range(2):
            wanted, calls = program(x), world.log.copy()
            world.log.clear()
            torch.testing.assert_close(compiled(x), wanted)
            assert world.log == calls
            world.log.clear()
    torch.testing.assert_close(compiled(x), program(x))
