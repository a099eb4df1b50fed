"""Rows that do not stay in registers: a maximum and the powers below it in one pass, nothing kept aside."""

import math

import pytest
import torch

from smelt.codegen.gpu.bodies.online_body import OnlineRows
from smelt.codegen.gpu.long_rows import without_scratch
from smelt.ir.check_kernel import check_kernel
from smelt.ir.kernel import Kernel, Role
from tests.codegen.gpu.on_host import OnHost, ptx
from tests.ir.kernels import SOFTMAX, sized
from tests.kernel_text import parse_kernel

LOG_SUM = """
kernel log_sum rows(i:{rows}) cols(j:{cols})
  in x: {dtype}[{total}]
  out y: f32[{rows}]
  loop:
    a = load x[{cols}*i + j]
    v = cast a : f32
    m = reduce max v
  row:
    zero = const 0.0 : f32
    size = abs m : f32
    most = const inf : f32
    is_inf = eq size, most : bool
    finite = where is_inf, zero, m : f32
  loop:
    b = load x[{cols}*i + j]
    w = cast b : f32
    d = sub w, finite : f32
    e = exp d : f32
    s = reduce sum e
  row:
    l = log s : f32
    o = add l, finite : f32
    store y[i] = o
"""


def softmax(rows: int, cols: int) -> Kernel:
    return parse_kernel(sized(SOFTMAX, rows, cols))


def log_sum(rows: int, cols: int, dtype: str = "f32") -> Kernel:
    return parse_kernel(LOG_SUM.format(rows=rows, cols=cols, total=rows * cols, dtype=dtype))


@pytest.mark.parametrize("cols", [3001, 4096, 5000, 9999])
def test_softmax_in_two_passes(cols: int) -> None:
    made = OnHost(softmax(3, cols))
    (phase,) = made.plan.phases
    assert isinstance(phase, OnlineRows) and not phase.unrolled
    assert made.plan.workspace == 0  # nothing is kept aside
    made.check(atol=1e-7)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_log_of_a_sum(dtype: str) -> None:
    made = OnHost(log_sum(3, 9001, dtype))
    assert isinstance(made.plan.phases[0], OnlineRows)
    made.check()


@pytest.mark.parametrize("kernel", [softmax(8, 5000), log_sum(8, 5000)], ids=lambda kernel: str(kernel.name))
def test_numbers_that_are_none(kernel: Kernel) -> None:
    x = torch.randn(8, 5000)
    x[0] = -math.inf
    x[1, :4900] = -math.inf
    x[2, 7] = math.inf
    x[3, 4000] = math.nan
    x[4, 100:] = -math.inf
    x[5] = torch.linspace(-1000, 1000, 5000)
    x[6] = torch.linspace(500, -90000, 5000)
    x[7] = -3e38
    OnHost(kernel).check(given=[x.reshape(-1)], atol=1e-6)


def test_what_is_kept_aside_is_computed_again() -> None:
    kernel = softmax(4, 5000)
    changed = without_scratch(kernel)
    assert not any(buffer.role is Role.SCRATCH for buffer in changed.buffers)
    check_kernel(changed, after="without_scratch")


def test_what_is_read_from_an_updated_array_is_kept() -> None:
    both = "store e[j] = v3\n    store x[5000*i + j] = v3"
    kernel = parse_kernel(sized(SOFTMAX, 4, 5000).replace("in x:", "inout x:").replace("store e[j] = v3", both))
    assert without_scratch(kernel) is kernel
    OnHost(kernel).check(atol=1e-6)


def test_rows_of_any_length() -> None:
    kernel = parse_kernel(SOFTMAX.format(rows="s0", cols="s1", total="s0*s1"), {"s0": 4, "s1": 5000})
    made = OnHost(kernel)
    assert isinstance(made.plan.phases[0], OnlineRows)
    for rows, cols in [(2, 2), (3, 4), (5, 4000), (2, 6004)]:
        if cols % made.plan.phases[0].width == 0:
            made.check({"s0": rows, "s1": cols}, atol=1e-6)


def test_what_a_gpu_is_given() -> None:
    text = ptx(softmax(4096, 65536))
    assert text.count("st.global.v4.b32") >= 1 and "st.global.b32" not in text and "local" not in text
