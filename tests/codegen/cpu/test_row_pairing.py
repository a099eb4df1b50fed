"""Rows done two at a time: the kernel means what it meant, and only what gains by it is written so."""

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from smelt.codegen.cpu.row_pairing import paired
from smelt.codegen.cpu.schedule_passes import plan
from smelt.device import find
from smelt.ir.kernel import Kernel, Load
from smelt.ir.text import format_kernel
from tests.codegen.cpu.test_kernels import filled, kernels, same_as_reference
from tests.ir.kernels import COLUMN_SUM, LAYER_NORM, SOFTMAX, sized
from tests.kernel_reference import run_kernel
from tests.kernel_text import parse_kernel


def same_meaning(kernel: Kernel, other: Kernel) -> None:
    given = [filled(buffer, seed) for seed, buffer in enumerate(kernel.parameters)]
    one, two = [t.clone() for t in given], [t.clone() for t in given]
    run_kernel(kernel, one)
    run_kernel(other, two)
    for mine, theirs in zip(one, two, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_what_both_rows_add_to_is_added_to_once() -> None:
    halves = paired(parse_kernel(sized(COLUMN_SUM, 6, 3)))
    assert halves is not None
    assert format_kernel(halves).split("\n")[0] == "kernel column_sum rows(i:3) cols(j:3)"
    assert sum(isinstance(i, Load) for i in halves.instructions()) == 2
    lines = [line.strip() for line in format_kernel(halves).splitlines()]
    assert [line for line in lines if line.startswith("accumulate sum y")] == ["accumulate sum y[j] = v+v'"]
    assert any(line.startswith("v' = load x[3*i + j + 9]") for line in lines)


@pytest.mark.parametrize("text", [COLUMN_SUM, LAYER_NORM, SOFTMAX])
@pytest.mark.parametrize(("rows", "cols"), [(2, 1), (6, 5), (10, 33)])
def test_pairs_mean_the_same(text: str, rows: int, cols: int) -> None:
    kernel = parse_kernel(sized(text, rows, cols))
    halves = paired(kernel)
    assert halves is not None
    same_meaning(kernel, halves)


def test_rows_that_cannot_be_paired() -> None:
    assert paired(parse_kernel(sized(COLUMN_SUM, 5, 4))) is None
    named = "kernel k rows(h:3, i:4) cols(j:5)\n in x: f32[60]\n out y: f32[4]\n loop:\n"
    assert paired(parse_kernel(f"{named} v = load x[20*h + 5*i + j]\n accumulate sum y[i] = v")) is None


@pytest.mark.parametrize("fold", ["sum", "max", "min", "prod"])
def test_folds_of_columns_equal_the_reference(fold: str) -> None:
    target = replace(find("cpu"), pairs_rows=True, prefetch_distance=256)
    kernel = parse_kernel(sized(COLUMN_SUM, 130, 37).replace("accumulate sum", f"accumulate {fold}"))
    assert plan(kernel, target).kernel.row_count == 65
    assert plan(kernel, replace(target, pairs_rows=False)).kernel.row_count == 130
    same_as_reference(kernel)


def test_several_arrays_or_writes_are_read_row_by_row() -> None:
    target = replace(find("cpu"), pairs_rows=True)
    head = "kernel k rows(i:8) cols(j:64)\n in x: f32[512]\n in z: f32[512]\n out w: f32[512]\n out y: f32[64]\n"
    both = " a = load x[64*i + j]\n b = load z[64*i + j]\n c = mul a, b : f32\n accumulate sum y[j] = c"
    written = " c = load x[64*i + j]\n store w[64*i + j] = c\n accumulate sum y[j] = c"
    for body in (both, written):
        assert plan(parse_kernel(head + " loop:\n" + body), target).kernel.row_count == 8


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(kernels())
def test_random_kernels_in_pairs_mean_the_same(kernel: Kernel) -> None:
    halves = paired(kernel)
    if halves is not None:
        same_meaning(kernel, halves)
