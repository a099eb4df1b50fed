"""What sweeps of the operator database found wrong in generated code, each as the smallest call that showed it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.ops_db.comparing import compare
from tests.targets import seeded


def _random(*shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0, grad: bool = False) -> torch.Tensor:
    generator = seeded(0)
    made = torch.randn(shape, generator=generator, dtype=torch.float64) * scale
    return made.to(dtype).requires_grad_(grad)


CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "a scaled sum rounds once": (lambda x, y: torch.add(x, y, alpha=-3.125), (_random(400), _random(400) * 0.32)),
    "a scaled difference rounds once": (lambda x, y: torch.sub(x, y, alpha=3.125), (_random(400), _random(400) * 0.32)),
    "addcmul rounds once": (torch.addcmul, (_random(400), _random(400), -torch.ones(400) - 1e-4)),
    "the slope of tanh near one": (torch.tanh, (_random(400, scale=4.0, grad=True),)),
    "the slope of tanh in float64": (torch.tanh, (_random(400, dtype=torch.float64, scale=4.0, grad=True),)),
    "the slope of gelu": (lambda x: F.gelu(x, approximate="tanh"), (_random(400, scale=4.0, grad=True),)),
    "1/6 in float64 is that of float32": (F.hardsigmoid, (_random(40, dtype=torch.float64, grad=True),)),
    "statistics are added up in float64": (
        lambda x: torch.native_batch_norm(x, None, None, None, None, True, 0.1, 0.5)[1],
        (torch.cat([_random(7, 3), -_random(7, 3), torch.full((1, 3), 1e-3)]),),
    ),
    "so are variances": (
        lambda x: torch.var_mean(x, dim=0),
        (torch.cat([_random(7, 3), -_random(7, 3), torch.full((1, 3), 1e-3)]),),
    ),
    "images stay channels-last": (
        lambda x, w: F.conv2d(x, w).relu(),
        (_random(2, 4, 6, 6, grad=True), _random(8, 4, 3, 3).contiguous(memory_format=torch.channels_last)),
    ),
    "strides of nonzero_static": (lambda x: torch.nonzero_static(x, size=3), (_random(4, 5),)),
}


@pytest.mark.parametrize("name", CALLS)
def test_agrees_with_eager(name: str) -> None:
    function, args = CALLS[name]
    found = compare(function, args, {})
    assert found.wrong == [] and found.fallbacks == []


def test_parts_that_share_memory_in_secret_are_eagers() -> None:
    found = compare(lambda x: torch.unsafe_chunk(x, 2), (_random(4, 5),), {})
    assert found.wrong == [] and "aliases" in found.fallbacks[0]
