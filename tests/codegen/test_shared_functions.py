"""Kernels whose code differs in numbers alone share a body, and compute bit for bit what each computes by itself."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch

from smelt.base import events
from smelt.base.options import Options
from smelt.codegen import build, compile_kernels
from smelt.codegen.shared_functions import MOST, _Number, _words
from smelt.device import find
from smelt.ir.kernel import Kernel
from tests.codegen.running import call
from tests.kernel_reference import run_kernel
from tests.kernel_text import parse_kernel

# The mean of each channel's rows and what is left of them: divides by an extent, to find a channel, and by a float.
NORM = """kernel norm rows(i0:{images}, i1:{channels}) cols(j:{points})
  in x: f32[{total}]
  in scale: f32[{channels}]
  out y: f32[{total}]
  out sums: f32[{channels}]
  row:
    s = load scale[i1]
    n = const {points}.0 : f32
  loop:
    a = load x[{image}*i0 + {points}*i1 + j]
    b = reduce sum a
  row:
    m = div b, n : f32
  loop:
    c = load x[{image}*i0 + {points}*i1 + j]
    d = sub c, m : f32
    e = mul d, s : f32
    store y[{image}*i0 + {points}*i1 + j] = e
  row:
    accumulate sum sums[i1] = b
"""
POINTS = """kernel points rows(i0:{images}, i1:{channels}) cols(j:{points})
  in x: f32[{total}]
  in scale: f32[{channels}]
  out y: f32[{total}]
  loop:
    s = load scale[i1]
    a = load x[{image}*i0 + {points}*i1 + j]
    b = mul a, s : f32
    store y[{image}*i0 + {points}*i1 + j] = b
"""
LINE = """kernel line rows() cols(j:{points})
  in x: f32[{points}]
  out y: f32[{points}]
  loop:
    a = load x[j]
    b = mul a, a : f32
    store y[j] = b
"""
PRODUCT = """kernel product rows(i:{rows}) cols(j:{cols})
  in a: f32[{left}]
  in b: f32[{right}]
  out c: f32[{total}]
  loop:
    v = contract (k:{terms}) a[{terms}*i + k], b[j + {cols}*k] : f32
    store c[{cols}*i + j] = v
"""


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    build.forget()
    yield
    build.forget()


def _image(text: str, images: int, channels: int, points: int) -> Kernel:
    sizes = {"images": images, "channels": channels, "points": points}
    made = text.format(image=channels * points, total=images * channels * points, **sizes)
    return replace(parse_kernel(made), name=f"k{images}_{channels}_{points}")


def _line(points: int) -> Kernel:
    return replace(parse_kernel(LINE.format(points=points)), name=f"k{points}")


def _product(rows: int, cols: int, terms: int) -> Kernel:
    sizes = {"rows": rows, "cols": cols, "terms": terms}
    made = PRODUCT.format(left=rows * terms, right=cols * terms, total=rows * cols, **sizes)
    return replace(parse_kernel(made), name=f"k{rows}_{cols}_{terms}")


def _filled(kernel: Kernel) -> list[torch.Tensor]:
    """Whole numbers: sums of products of them are exact in any order."""
    torch.manual_seed(0)
    return [torch.randint(-9, 10, (buffer.size,)).to(buffer.dtype) for buffer in kernel.parameters]


def _text(kernels: Sequence[Kernel]) -> str:
    with events.collect() as found:
        compile_kernels(kernels, Options(check_specs=True))
    (text,) = [event.text for event in found if event.channel == "llvm"]
    return text


def _hold(kernels: Sequence[Kernel], bodies: int) -> None:
    """So many bodies are built; every kernel computes what it does alone, and what the interpreter says."""
    assert _text(kernels).count(".part(ptr %buffers, ptr %mine") == bodies
    together = compile_kernels(kernels, Options())
    build.forget()
    for kernel in kernels:
        alone = compile_kernels([kernel], Options())
        build.forget()
        expected = _filled(kernel)
        run_kernel(kernel, expected)
        for threads in (1, 2, 3):
            ours, theirs = _filled(kernel), _filled(kernel)
            call(together[kernel.name], ours, threads)
            call(alone[kernel.name], theirs, threads)
            assert all(map(torch.equal, ours, theirs)), kernel.name
            torch.testing.assert_close(ours, expected)


def test_sizes_that_divide_and_floats() -> None:
    _hold([_image(NORM, 2, channels, points) for channels, points in ((40, 640), (24, 896), (112, 768))], 1)


def test_points_of_images() -> None:
    _hold([_image(POINTS, 3, channels, points) for channels, points in ((70, 640), (96, 896), (200, 1152))], 1)


def test_other_code_has_its_own_body() -> None:
    """A last vector that is not whole is code that the others do not have."""
    _hold([_image(POINTS, 3, channels, points) for channels, points in ((70, 640), (96, 896), (80, 641), (90, 897))], 2)


def test_vectors_of_other_lengths_have_a_body_of_their_own() -> None:
    """The nodes are the same; only constants and the lanes of values differ."""
    lanes = find("cpu").vector_bits // 32
    _hold([_line(registers * lanes) for registers in (1, 2, 4, 8)], 3)  # of eight registers, four at a time


def test_products_are_given_all_their_numbers() -> None:
    kernels = [_product(rows, cols, terms) for rows, cols, terms in ((192, 384, 64), (384, 192, 128), (288, 576, 192))]
    _hold(kernels, 1)


def test_one_kernel_alone_is_given_nothing() -> None:
    assert "%num" not in _text([_image(NORM, 2, 40, 784)])


@pytest.mark.parametrize("divisor", [2, 3, 7, 49, 240, 1152, 65537, MOST - 1, MOST // 2 + 1])
def test_a_reciprocal_divides_exactly(divisor: int) -> None:
    itself, reciprocal = _words(_Number("divisor", 1, divisor))
    assert itself == divisor
    numbers = (0, 1, divisor - 1, divisor, 3 * divisor - 1, MOST - divisor, MOST - 2, MOST - 1)
    for number in (each for each in numbers if each < MOST):
        assert number * (reciprocal % (1 << 64)) >> 64 == number // divisor


def test_a_number_that_differs_divides_by_its_reciprocal() -> None:
    assert "mul i128" in _text([_image(POINTS, 3, channels, points) for channels, points in ((70, 640), (96, 896))])
