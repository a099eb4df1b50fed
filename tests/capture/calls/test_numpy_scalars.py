"""Scalars of NumPy's as operands and arguments of PyTorch's operators: numbers of Python's, as PyTorch takes them."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.capture.programs import Captured, compare


def _scaled_in_place(x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    y /= np.sqrt(x.shape[-1])
    return y


def _by_a_condition(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if np.sqrt(16) > 3 and not np.float64(0) else x


PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "in place": _scaled_in_place,
    "condition": _by_a_condition,
    "kinds": lambda x: x * np.float64(2.5) + np.float32(1.5) - np.int64(3) + np.uint8(2) + np.float16(0.1),
    "reflected": lambda x: np.float64(2.5) * x - np.float32(1) / (x + 9) + np.int64(2) ** x,
    "integers": lambda x: x.long() * np.int64(3) + np.float32(0.5),
    "halves": lambda x: (x.half() * np.float64(1.1), np.float32(1.1) * x.bfloat16()),
    "comparison": lambda x: (x > np.float64(0.5)) & (np.float32(1.5) > x),
    "methods": lambda x: x.mul(np.sqrt(2)).clamp(max=np.float64(0.5)),
    "functions": lambda x: torch.full((3,), np.sqrt(2)) + torch.where(x > 0, x, np.float32(3)).sum(),
    "sizes": lambda x: (x.view(np.prod(x.shape)), x.reshape(np.prod(x.shape[:1]), -1), x.sum(np.int64(0))),
    "index": lambda x: x[np.int64(1)],
    "python's math": lambda x: x * math.sqrt(np.float64(3)) * math.floor(np.sqrt(10)) * max(np.sqrt(16), 3),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_numpy_scalars_break_no_graph(name: str) -> None:
    runner = compare(PROGRAMS[name], torch.arange(12.0).reshape(3, 4) / 7)
    assert runner.breaks == [] and len(runner.graphs) == 1


def test_bools_and_complex_numbers_are_left_to_pytorch() -> None:
    compare(lambda x: x.long() * np.bool_(True), torch.randn(3))  # which takes it for a float


class Scale:
    def __init__(self, value: Any) -> None:
        self.value = value


def test_a_scalar_from_outside_is_guarded_by_type_and_value() -> None:
    scale = Scale(np.float32(2.0))
    runner = Captured()

    def program(x: torch.Tensor) -> torch.Tensor:
        return scale.value * x + x * scale.value

    for value in (np.float32(2.0), np.float32(2.0), np.float32(3.0), np.int64(3), 3, -0.0, np.float32(-0.0)):
        scale.value = value
        compare(program, torch.randn(3), runner=runner, calls=1)
    assert runner.breaks == []
    assert len(runner.graphs) >= 4


def test_a_nan_from_outside_is_one_graph() -> None:
    scale = Scale(np.float32("nan"))
    runner = compare(lambda x: x * scale.value, torch.randn(3), calls=3)
    assert runner.breaks == []
