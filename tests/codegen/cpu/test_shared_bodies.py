"""Kernels that differ in their length alone share a body, and compute what each computes by itself."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch

from smelt.base import events
from smelt.base.options import Options
from smelt.codegen import build, compile_kernels
from smelt.codegen.cpu.shared_bodies import families
from smelt.ir.kernel import Kernel
from tests.codegen.running import call
from tests.ir.kernels import COLUMN_SUM, SOFTMAX, sized
from tests.kernel_reference import run_kernel
from tests.kernel_text import parse_kernel

UPDATE = """kernel update rows() cols(j:{n})
  in rate: f64[1]
  in gradient: f32[{n}]
  inout weight: f32[{n}]
  row:
    v0 = load rate[0]
    v1 = cast v0 : f32
  loop:
    v2 = load gradient[j]
    v3 = mul v2, v1 : f32
    v4 = load weight[j]
    v5 = sub v4, v3 : f32
    store weight[j] = v5
"""
NORM = """kernel norm rows() cols(j:{n})
  in x: f32[{n}]
  out y: f32[1]
  loop:
    v0 = load x[j]
    v1 = mul v0, v0 : f32
    v2 = reduce sum v1
  row:
    v3 = sqrt v2 : f32
    store y[0] = v3
"""


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    build.forget()
    yield
    build.forget()


def _of(text: str, lengths: Sequence[int]) -> list[Kernel]:
    return [replace(parse_kernel(text.format(n=n)), name=f"k{n}") for n in lengths]


def _filled(kernel: Kernel, seed: int) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    return [torch.randn(buffer.size, dtype=torch.float64).to(buffer.dtype) for buffer in kernel.parameters]


def _hold(kernels: Sequence[Kernel], bodies: int) -> None:
    """So many bodies are built, and every kernel computes what the interpreter says."""
    with events.collect() as found:
        compiled = compile_kernels(kernels, Options(check_specs=True))
    (text,) = [event.text for event in found if event.channel == "llvm"]
    assert text.count(".part(ptr %buffers, ptr %mine") == bodies
    for seed, kernel in enumerate(kernels):
        for threads in (1, 2, 3):
            ours, theirs = _filled(kernel, seed), _filled(kernel, seed)
            run_kernel(kernel, theirs)
            call(compiled[kernel.name], ours, threads)
            torch.testing.assert_close(ours, theirs)


def test_lengths_of_cols() -> None:
    _hold(_of(UPDATE, (64, 65, 127, 256, 1000, 70_001)), 1)


def test_a_length_that_the_body_is_not_right_for_has_its_own() -> None:
    """Long sums are added up in parts."""
    _hold(_of(NORM, (64, 65, 127, 256, 1000, 70_001)), 2)


def test_numbers_of_rows() -> None:
    _hold([replace(parse_kernel(sized(SOFTMAX, n, 13)), name=f"k{n}") for n in (2, 6, 300)], 1)
    build.forget()
    _hold([replace(parse_kernel(sized(COLUMN_SUM, n, 40)), name=f"k{n}") for n in (5, 64, 2000)], 1)


def test_two_kinds_are_two_families() -> None:
    found = families([*_of(UPDATE, (64, 256)), *_of(NORM, (100, 300, 500))])
    assert [sorted(family.lengths) for family in found] == [[0, 1], [2, 3, 4]]


def test_what_is_short_or_has_no_relative_is_built_alone() -> None:
    assert families(_of(UPDATE, (8, 16, 256))) == []
    kernels = [*_of(UPDATE, (8, 16)), *_of(NORM, (256,))]
    kernels[0] = replace(kernels[0], name="short")
    _hold(kernels, 3)


def test_other_operations_are_other_kernels() -> None:
    assert families([*_of(UPDATE, (64,)), *_of(UPDATE.replace("mul v2", "add v2"), (128,))]) == []


def test_built_kernels_are_counted_by_bodies() -> None:
    before = events.counters["kernels_built"]
    compile_kernels(_of(UPDATE, (64, 128, 256)), Options())
    assert events.counters["kernels_built"] - before == 1


def test_a_family_stays_together_where_modules_are_built_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine bodies in three modules, each in a thread of its own; what they compute is the interpreter's."""
    monkeypatch.setattr("smelt.codegen.write_module._WORTH_A_THREAD", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    others = [replace(parse_kernel(sized(SOFTMAX, 4, n)), name=f"s{n}") for n in range(8, 16)]
    kernels = [*_of(UPDATE, (64, 100, 1000)), *others]
    _hold(kernels, 9)
    compiled = compile_kernels(kernels, Options())
    assert len({id(each.built) for each in compiled.values()}) == 3
    assert len({id(compiled[kernel.name].built) for kernel in kernels[:3]}) == 1
