"""Where tensors lie in memory, all the way: offsets, overlaps and views, on calls after the one that was compiled."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt

BACKENDS = ["aot_eager", "llvm"]


def slices_of_one_memory() -> list[torch.Tensor]:
    memory = torch.arange(60.0)
    return [memory[start : start + 20] for start in (0, 3, 11, 0)]


def scatter(x: torch.Tensor) -> torch.Tensor:
    return torch.as_strided_scatter(x, torch.ones(3), (3,), (2,), 4)


def write_computed(x: torch.Tensor) -> torch.Tensor:
    first, value = x.cos(), x.sin()
    value.as_strided((3,), (2,), 4).mul_(3)
    return first @ value + first


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.as_strided((3, 4), (4, 1), 5) * 2,
        lambda x: x.as_strided((3, 4), (4, 1), 5),
        lambda x: x[2:].as_strided((3, 4), (4, 1), 5) * 2,
        lambda x: x.as_strided((3, 4), (4, 1)) * 2,
        lambda x: torch.as_strided_copy(x, (3,), (2,), 4),
        lambda x: x.clone().as_strided((3, 4), (4, 1), 5) + 1,
        lambda x: (x + 1)[4:].as_strided((3, 4), (4, 1), 2),
        lambda x: x * x.storage_offset(),
        scatter,
        write_computed,
    ],
)
def test_places_counted_from_the_start_of_memory(function: Callable[..., Any], backend: str) -> None:
    compiled = smelt.compile(function, backend=backend)
    for x in slices_of_one_memory():
        torch.testing.assert_close(compiled(x), function(x))


@pytest.mark.parametrize("gradients", [False, True])
def test_other_devices_are_left_to_pytorch(gradients: bool) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).sin().sum(0)

    compiled = smelt.compile(function)
    made = compiled(torch.ones(3, 4, device="meta", requires_grad=gradients))
    assert made.device.type == "meta"
    assert made.shape == (4,)
    if gradients:
        made.sum().backward()

    def moves(x: torch.Tensor) -> torch.Tensor:
        return torch.ones(4, device="meta") * 2 + x.to("meta")

    assert smelt.compile(moves)(torch.ones(4, requires_grad=gradients)).device.type == "meta"
    x = torch.randn(3, 4, requires_grad=gradients)
    torch.testing.assert_close(compiled(x), function(x))
