"""The text form of kernels reads back as the kernel it shows; programs print as reviewed."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from smelt.base.errors import SpecError
from smelt.ir.kernel import (
    Accumulate,
    Axis,
    Buffer,
    Cast,
    Compute,
    Const,
    Index,
    Kernel,
    Load,
    Position,
    Reduce,
    Role,
    Stage,
    Store,
)
from smelt.ir.text import format_constant, format_index, format_kernel, format_program
from tests.golden import golden
from tests.ir.kernels import COLUMN_SUM, LAYER_NORM, SOFTMAX, sized
from tests.ir.test_check import GOOD, PROGRAM
from tests.kernel_text import REDUCTIONS, parse_index, parse_kernel

NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,5}", fullmatch=True)
SIZES = st.integers(-(2**40), 2**40)
INDICES = st.builds(
    Index, st.lists(st.tuples(NAMES, SIZES.filter(bool)), max_size=3, unique_by=lambda t: t[0]).map(tuple), SIZES
)
DTYPES = st.sampled_from(
    [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
)
CONSTANTS = st.one_of(st.booleans(), st.integers(-(2**63), 2**63), st.floats(allow_nan=False))
INSTRUCTIONS = st.one_of(
    st.builds(Const, NAMES, CONSTANTS, DTYPES),
    st.builds(Load, NAMES, NAMES, INDICES),
    st.builds(Position, NAMES, INDICES),
    st.builds(Compute, NAMES, st.sampled_from(["add", "where", "and"]), st.lists(NAMES, min_size=1).map(tuple), DTYPES),
    st.builds(Cast, NAMES, NAMES, DTYPES),
    st.builds(Store, NAMES, INDICES, NAMES),
    st.builds(Reduce, NAMES, st.sampled_from(REDUCTIONS), NAMES),
    st.builds(Accumulate, NAMES, st.sampled_from(REDUCTIONS), INDICES, NAMES),
)
AXES = st.lists(st.builds(Axis, NAMES, st.integers(0, 2**40)), max_size=3).map(tuple)
KERNELS = st.builds(
    Kernel,
    NAMES,
    AXES,
    AXES,
    st.lists(st.builds(Buffer, NAMES, DTYPES, st.integers(0, 2**40), st.sampled_from(Role)), max_size=3).map(tuple),
    st.lists(st.builds(Stage, st.booleans(), st.lists(INSTRUCTIONS, max_size=4).map(tuple)), max_size=3).map(tuple),
)


@given(KERNELS)
def test_any_kernel_reads_back(kernel: Kernel) -> None:
    assert parse_kernel(format_kernel(kernel)) == kernel


@given(INDICES)
def test_any_index_reads_back(index: Index) -> None:
    assert parse_index(format_index(index)) == index


def test_nan_and_infinities_read_back() -> None:
    for value in ("nan", "inf", "-inf"):
        kernel = parse_kernel(f"kernel k rows() cols()\n row:\n a = const {value} : f32")
        assert format_constant(kernel.stages[0].body[0].value) == value  # type: ignore[union-attr]


@pytest.mark.parametrize("text", [sized(SOFTMAX, 5, 7), sized(LAYER_NORM, 5, 7), sized(COLUMN_SUM, 5, 7), GOOD])
def test_written_kernels_print_as_they_were_written(text: str) -> None:
    assert format_kernel(parse_kernel(text)) == text.strip()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a kernel"),
        ("kernel k rows(i) cols()", "not an axis"),
        ("kernel k rows() cols()\n input x: f32[1]", "not a buffer"),
        ("kernel k rows() cols()\n in x: f31[1]", "not a dtype"),
        ("kernel k rows() cols()\n row:\n frob", "not an instruction"),
        ("kernel k rows() cols()\n row:\n a = const one : f32", "not a constant"),
        ("kernel k rows() cols()\n row:\n a = reduce mean b", "not a reduction"),
        ("kernel k rows() cols()\n row:\n a = load x[?]", "not an index"),
    ],
)
def test_what_is_no_kernel_is_named(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_kernel(text)


def test_gathers_print_as_they_were_written() -> None:
    text = """kernel k rows(i:s0) cols(j:8)
  in x: f32[8*s0]
  in p: i64[s0]
  out y: f32[8*s0]
  loop:
    at = load p[i]
    v = gather x[j] by 8*at below s0
    w = gather x[0] by (s0)*at below 8, 1*at below s0
    store y[8*i + j] = v"""
    assert format_kernel(parse_kernel(text, {"s0": 7})) == text


def test_program_text() -> None:
    golden("ir/program.txt", format_program(PROGRAM))
