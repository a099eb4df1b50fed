"""Elements more than 2³¹ places apart: kernels count in 64 bits, by strides, by positions and by indices."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smelt
from tests.codegen.running import run
from tests.fuse.running import fused
from tests.kernel_reference import run_kernel
from tests.kernel_text import parse_kernel

ROWS, APART = 130, 1 << 24

Function = Callable[[torch.Tensor], Any]


@pytest.fixture(scope="module")
def far() -> torch.Tensor:
    """Rows of 40 in memory of which nothing else is ever touched, and which so is hardly any."""
    x = torch.empty((ROWS - 1) * APART + 40, dtype=torch.int8).as_strided((ROWS, 40), (APART, 1))
    x.copy_(torch.arange(ROWS * 40).remainder(97).reshape(ROWS, 40))
    assert (ROWS - 1) * APART > 1 << 31
    return x


FUNCTIONS: dict[str, Function] = {
    "read by rows": lambda x: x + 1,
    "read by columns": lambda x: x.t().contiguous() * 2,
    "summed": lambda x: x.float().sum(1),
    "summed over rows": lambda x: x.float().sum(0),
    "softmax down the columns": lambda x: x.float().softmax(0),
    "scanned": lambda x: x.cumsum(1),
    "scanned down the columns": lambda x: x.cumsum(0),
    "scanned from the end": lambda x: x.flip(0).cumsum(0).flip(0),
    "flipped": lambda x: x.flip(0) + 1,
    "flipped both ways": lambda x: x.flip(0, 1) + 1,
    "padded": lambda x: F.pad(x, (3, 2, 1, 4), value=5) + 1,
    "cropped": lambda x: F.pad(x, (-3, -2, -120, 0)) + 1,
    "rolled": lambda x: x.roll((-5, 7), (0, 1)) + 1,
    "repeated": lambda x: x.repeat(2, 1) + 1,
    "looked up": lambda x: x[torch.tensor([0, ROWS - 1, 64, -2])] + 1,
    "looked up along rows": lambda x: x.gather(1, torch.full((ROWS, 3), 39)) + 1,
    "joined": lambda x: torch.cat([x[64:], x[:66]]) + 1,
    "windows": lambda x: x.unfold(0, 3, 1) + 1,
    "the last alone": lambda x: x[-1, -1] + 1,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_numbers_are_eagers(name: str, far: torch.Tensor) -> None:
    function = FUNCTIONS[name]
    found, expected = smelt.compile(lambda x: function(x), fullgraph=True)(far), function(far)
    assert found.dtype is expected.dtype and found.stride() == expected.stride()
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", ["read by rows", "scanned down the columns", "flipped both ways", "padded", "rolled"])
def test_it_is_a_kernel_that_reads_there(name: str, far: torch.Tensor) -> None:
    (step,) = fused(FUNCTIONS[name], far).steps
    assert any(buffer.size > 1 << 31 for buffer in step.kernel.buffers)


BEYOND = """
kernel beyond rows() cols(j:40)
  in x: f32[40]
  out y: f32[40]
  out z: i64[40]
  loop:
    p = position j + {far}
    low = const {low} : i64
    high = const {high} : i64
    a = ge p, low : bool
    b = lt p, high : bool
    c = and a, b : bool
    v = load x[j]
    n = const -1.0 : f32
    w = where c, v, n : f32
    store y[j] = w
    store z[j] = p
"""


@pytest.mark.parametrize("far", [0, 2**31 - 20, 2**31, 2**32 - 7, 2**40])
@pytest.mark.parametrize("apart", [(3, 30), (-5, 100), (20, 20), (-(2**33), 2**33), (2**33, 2**34), (12, 3)])
def test_positions_are_compared_as_numbers_of_64_bits(far: int, apart: tuple[int, int]) -> None:
    kernel = parse_kernel(BEYOND.format(far=far, low=far + apart[0], high=far + apart[1]))
    x = torch.arange(40.0)
    found, expected = ([x, torch.empty(40), torch.empty(40, dtype=torch.int64)] for _ in range(2))
    run(kernel, found)
    run_kernel(kernel, expected)
    for have, want in zip(found, expected, strict=True):
        assert torch.equal(have, want)
