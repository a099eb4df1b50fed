"""GPU schedules of kernels of every shape, run on the host, against the reference interpreter."""

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from smelt.codegen.gpu import grid_plan
from smelt.codegen.gpu.cuda_target import describe_cuda
from smelt.ir.kernel import Accumulate, Axis, Buffer, Index, Instruction, Kernel, Load, Role, Stage
from smelt.symbolic.shapes import contiguous_stride, product
from tests.codegen.cpu.test_kernels import PARTIAL, POINTWISE, kernels, pointwise
from tests.codegen.cpu.test_layouts import pointwise_kernels
from tests.codegen.gpu.running import same_as_reference
from tests.ir.kernels import COLUMN_SUM, LAYER_NORM, SOFTMAX, sized
from tests.kernel_text import parse_kernel

SIZES = [(1, 2), (3, 7), (5, 8), (2, 31), (70, 33), (3, 1000), (5, 64), (2, 5000), (300, 2)]


@pytest.mark.parametrize(("rows", "cols"), SIZES)
@pytest.mark.parametrize("text", [SOFTMAX, LAYER_NORM, COLUMN_SUM])
def test_row_kernels(text: str, rows: int, cols: int) -> None:
    same_as_reference(parse_kernel(sized(text, rows, cols)))


def test_a_plan_has_the_reasons_against_other_schedules() -> None:
    made = grid_plan.plan(parse_kernel(sized(SOFTMAX, 64, 1000)), describe_cuda("sm_90"))
    assert [name for name, _ in made.why_not] == [row.name for row in grid_plan.SCHEDULES[:-1]]
    reasons = dict(made.why_not)
    assert reasons["points"] == "it is not pointwise" and reasons["clusters"] == "rows are short"
    few = grid_plan.plan(parse_kernel(sized(SOFTMAX, 2, 1_000_000)), describe_cuda("sm_75"))
    assert len(few.phases) > 1 and "split rows" not in dict(few.why_not)


@pytest.mark.parametrize(("axes", "stride"), POINTWISE)
def test_pointwise_layouts(axes: tuple[int, ...], stride: tuple[int, ...]) -> None:
    for rows in range(len(axes) + 1):
        same_as_reference(pointwise(f"p{rows}", axes, stride, rows, offset=2), (8,))


def partial_fold(rows: tuple[int, ...], named: tuple[int, ...], cols_named: bool) -> Kernel:
    """The output has the named row axes and, if said, the columns."""
    cols = 11
    names = [f"i{number}" for number in range(len(rows))]
    strides = contiguous_stride((*rows, cols))
    kept = [number for number in range(len(rows)) if number in named]
    shape = [rows[number] for number in kept] + ([cols] if cols_named else [])
    out_names = [names[number] for number in kept] + (["j"] if cols_named else [])
    out = Index(tuple(zip(out_names, contiguous_stride(shape), strict=True)))
    body: tuple[Instruction, ...] = (
        Load("x", "x", Index((*zip(names, strides[:-1], strict=True), ("j", 1)))),
        Accumulate("y", "sum", out, "x"),
    )
    buffers = (
        Buffer("x", torch.float32, product(rows) * cols, Role.INPUT),
        Buffer("y", torch.float32, product(shape), Role.OUTPUT),
    )
    axes = tuple(Axis(name, size) for name, size in zip(names, rows, strict=True))
    return Kernel("k", axes, (Axis("j", cols),), buffers, (Stage(True, body),))


@pytest.mark.parametrize(("rows", "named"), PARTIAL)
@pytest.mark.parametrize("cols_named", [True, False])
def test_folds_over_some_rows(rows: tuple[int, ...], named: tuple[int, ...], cols_named: bool) -> None:
    same_as_reference(partial_fold(rows, named, cols_named))


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(kernels(), st.sampled_from([4, 8, 32]))
def test_random_kernels(kernel: Kernel, warp: int) -> None:
    same_as_reference(replace(kernel, name=f"random_{warp}"), (warp,))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(pointwise_kernels(), st.sampled_from([4, 8, 32]))
def test_random_layouts(kernel: Kernel, warp: int) -> None:
    same_as_reference(replace(kernel, name=f"layout_{warp}"), (warp,))
