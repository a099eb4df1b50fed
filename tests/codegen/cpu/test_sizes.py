"""One piece of machine code for all sizes: kernels over symbols against the reference interpreter; indices past 2³¹."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch

import smelt
from smelt.base.options import Options
from smelt.codegen import compile_kernels
from smelt.codegen.build import CompiledKernel, forget
from smelt.codegen.cpu import schedule
from smelt.ir.check_kernel import check_kernel
from smelt.ir.kernel import Kernel, Role
from smelt.ir.substitute_sizes import resized
from smelt.ir.text import format_kernel
from smelt.symbolic.expressions import Symbol
from tests.codegen.running import call, run
from tests.ir.kernels import COLUMN_SUM, LAYER_NORM, SOFTMAX
from tests.kernel_reference import run_kernel
from tests.kernel_text import parse_kernel

TURNED = """
kernel turned rows(i:s0) cols(j:s1)
  in x: f32[s0*s1]
  out y: f32[s0*s1]
  loop:
    v = load x[i + s0*j]
    p = position s1*i + j
    q = cast p : f32
    n = const s0 : f32
    a = div v, n : f32
    b = add a, q : f32
    store y[s1*i + j] = b
"""
IN_PLACE = """
kernel in_place rows() cols(j:s0*s1 + 1)
  inout x: f32[s0*s1 + 1]
  loop:
    v = load x[j]
    w = add v, v : f32
    store x[j] = w
"""
SHIFTED = """
kernel shifted rows(i:s0) cols(j:s1 - 1)
  in x: f32[s0*s1]
  out y: f32[s0*s1 - s0]
  loop:
    v = load x[s1*i + j + 1]
    w = load x[s1*i + j]
    d = sub v, w : f32
    store y[(s1 - 1)*i + j] = d
"""
ROW_SUMS = """
kernel row_sums rows(k:3, i:s0) cols(j:s1)
  in x: f32[3*s0*s1]
  out y: f32[3*s1]
  out t: f32[s0]
  loop:
    v = load x[s0*s1*k + s1*i + j]
    accumulate sum y[s1*k + j] = v
    s = reduce sum v
  row:
    accumulate max t[i] = s
"""
TEXTS = {
    "softmax": SOFTMAX.format(rows="s0", cols="s1", total="s0*s1"),
    "layer norm": LAYER_NORM.format(rows="s0", cols="s1", total="s0*s1"),
    "column sum": COLUMN_SUM.format(rows="s0", cols="s1", total="s0*s1"),
    "turned": TURNED,
    "in place": IN_PLACE,
    "shifted": SHIFTED,
    "row sums": ROW_SUMS,
}
# Sums of over a thousand f32 go by way of f64 (of powers, eight thousand), and where `s1 - 1` is one its axis is none.
BUILT = {"softmax": 1, "layer norm": 2, "column sum": 2, "turned": 1, "in place": 1, "shifted": 2, "row sums": 2}
SIZES = [(2, 2), (3, 7), (2, 16), (5, 17), (70, 33), (130, 70), (3, 1000), (2, 5000)]


def at(value: Any, sizes: Mapping[str, int]) -> Any:
    return resized(value, lambda size: size.expression.evaluate(lambda symbol: sizes[symbol.text]))


def same_as_reference(kernel: Kernel, compiled: CompiledKernel, sizes: Mapping[str, int]) -> None:
    plain = at(kernel, sizes)
    assert isinstance(plain, Kernel)
    check_kernel(plain, after="the test")
    torch.manual_seed(0)
    given = [torch.randn(buffer.size) for buffer in plain.parameters]
    told = torch.tensor([size.evaluate(lambda symbol: sizes[symbol.text]) for size in compiled.sizes])
    expected = [tensor.clone() for tensor in given]
    run_kernel(plain, expected)
    workspace = at(compiled.per_thread_workspace, sizes)
    assert isinstance(workspace, int)
    for threads in (1, 3):
        mine = [tensor.clone() for tensor in given]
        call(compiled, [*mine, told], threads, workspace)
        for buffer, one, other in zip(plain.parameters, mine, expected, strict=True):
            if buffer.role is not Role.INPUT:
                torch.testing.assert_close(one, other, rtol=2e-6, atol=2e-5)


@pytest.mark.parametrize("name", TEXTS)
def test_one_piece_of_code_for_all_sizes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "GRAIN", 1)  # share out even the smallest
    forget()
    before = smelt.counters["kernels_built"]
    for s0, s1 in SIZES:
        sizes = {"s0": s0, "s1": s1}
        kernel = parse_kernel(TEXTS[name], sizes)
        compiled = compile_kernels([kernel], Options())[kernel.name]
        assert all(fact.holds(lambda symbol, sizes=sizes: sizes[symbol.text]) for fact in compiled.facts)
        same_as_reference(kernel, compiled, sizes)
    assert smelt.counters["kernels_built"] - before == BUILT[name]
    forget()


@pytest.mark.parametrize("name", TEXTS)
def test_the_text_of_a_kernel_over_symbols_reads_back(name: str) -> None:
    sizes = {"s0": 5, "s1": 17}
    kernel = parse_kernel(TEXTS[name], sizes)
    assert parse_kernel(format_kernel(kernel), sizes) == kernel
    shape_env = next(axis.size for axis in kernel.cols).shape_env  # type: ignore[attr-defined]
    assert not shape_env.guards and Symbol("s0", 5) in shape_env.symbols


FAR = """
kernel far rows() cols(i:{count})
  in x: u8[{span}]
  inout y: u8[{span}]
  loop:
    a = load x[{step}*i]
    b = load y[{step}*i]
    c = add a, b : u8
    store y[{step}*i] = c
"""
STEP, COUNT = 2**20, 2**11 + 3  # to 3 MiB past 2³¹


@pytest.mark.parametrize("varying", [False, True])
def test_indices_past_two_to_the_31(varying: bool) -> None:
    """Memory that is never touched is never there: only a page of each MiB is."""
    span = STEP * (COUNT - 1) + 1
    x, y = (torch.empty(span, dtype=torch.uint8) for _ in range(2))
    x[::STEP] = torch.arange(COUNT, dtype=torch.uint8)
    y[::STEP] = 1
    if varying:
        sizes = {"s0": COUNT, "s1": STEP}
        kernel = parse_kernel(FAR.format(count="s0", span="s1*(s0 - 1) + 1", step="s1"), sizes)
        compiled = compile_kernels([kernel], Options())["far"]
        told = torch.tensor([size.evaluate(lambda symbol: sizes[symbol.text]) for size in compiled.sizes])
        call(compiled, [x, y, told])
    else:
        run(parse_kernel(FAR.format(count=COUNT, span=span, step=STEP)), [x, y])
    assert torch.equal(y[::STEP], torch.arange(COUNT, dtype=torch.uint8) + 1)


def test_a_compiled_function_reads_past_two_to_the_31() -> None:
    base = torch.empty(STEP * COUNT, dtype=torch.uint8)
    base[::STEP] = torch.arange(COUNT, dtype=torch.uint8)
    far = base.as_strided((COUNT, 2), (STEP, 0))
    compiled = smelt.compile(lambda x: (x + 1).sum(1))
    assert torch.equal(compiled(far), (far + 1).sum(1))
