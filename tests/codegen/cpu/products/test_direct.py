"""Convolutions by channel, computed directly: every stride, padding and dilation, all rests of vectors and rows."""

from collections.abc import Sequence

import pytest
import torch

from smelt.codegen.cpu.products import direct
from smelt.codegen.cpu.products.plan import PRODUCTS
from smelt.codegen.cpu.products.problem import problem_of
from smelt.device import find
from smelt.ir.kernel import (
    Axis,
    Buffer,
    Cast,
    Compute,
    Contract,
    Factor,
    Index,
    Instruction,
    Kernel,
    Load,
    Role,
    Stage,
    Store,
)
from tests.codegen.cpu.products.running import guarded
from tests.codegen.cpu.products.written import BF16, F16, F32, F64, compiled_by, filled, product, same_as_reference
from tests.codegen.running import call

Pair = tuple[int, int]


def index(offset: int, **strides: int) -> Index:
    return Index(tuple((name, stride) for name, stride in strides.items() if stride), offset)


def by_channel(
    size: Pair,
    taps: Pair,
    *,
    step: Pair = (1, 1),
    padding: Pair = (1, 1),
    dilation: Pair = (1, 1),
    turned: bool = False,
    dtype: torch.dtype = F32,
    batch: int = 2,
    channels: int = 3,
    in_place: bool = False,
) -> Kernel:
    """y[n, c] = bias[c] + Σ w[c] · x[n, c] in windows; `turned` as in the gradient: taps from the last to the first."""
    spans = [d * (k - 1) for d, k in zip(dilation, taps, strict=True)]
    oh, ow = (
        (n + 2 * p - span - 1) // s + 1 for n, p, span, s in zip(size, padding, spans, step, strict=True)
    )
    (h, w), (kh, kw), (dh, dw) = size, taps, (-d if turned else d for d in dilation)
    starts = [(span if turned else 0) - p for span, p in zip(spans, padding, strict=True)]
    plane, total = h * w, F64 if dtype is F64 else F32
    image = index(
        starts[0] * w + starts[1],
        n=channels * plane, c=plane, oh=step[0] * w, ow=step[1], kh=dh * w, kw=dw,
    )  # fmt: skip
    bounds = [
        (index(first, **{out: s, k: d}), extent)
        for first, out, k, s, d, extent in (
            (starts[0], "oh", "kh", step[0], dh, h), (starts[1], "ow", "kw", step[1], dw, w)
        )
    ]  # fmt: skip
    if padding == (0, 0):
        bounds = []
    place = index(0, n=channels * oh * ow, c=oh * ow, oh=ow, ow=1)
    weights = Factor("w", index(0, c=kh * kw, kh=kw, kw=1))
    body: list[Instruction] = [
        Contract("p", (Axis("kh", kh), Axis("kw", kw)), weights, Factor("x", image, tuple(bounds)), total),
        Load("b", "bias", index(0, c=1)),
        Compute("v", "add", ("p", "b"), total),
    ]
    value = "v"
    if in_place:
        body += [Load("o", "y", place), Compute("s", "add", ("v", "o"), total)]
        value = "s"
    if dtype is not total:
        body.append(Cast("narrow", value, dtype))
        value = "narrow"
    body.append(Store("y", place, value))
    points = batch * channels
    buffers = (
        Buffer("w", dtype, channels * kh * kw, Role.INPUT),
        Buffer("x", dtype, points * plane, Role.INPUT),
        Buffer("bias", total, channels, Role.INPUT),
        Buffer("y", dtype, points * oh * ow, Role.INOUT if in_place else Role.OUTPUT),
    )
    rows, cols = (Axis("n", batch), Axis("c", channels)), (Axis("oh", oh), Axis("ow", ow))
    return Kernel(f"by_channel_{h}_{w}_{kh}_{kw}", rows, cols, buffers, (Stage(True, tuple(body)),))


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Share out even the smallest product between threads."""
    monkeypatch.setattr(direct, "_GRAIN", 1)


def test_every_width_and_height(busy: None) -> None:
    same_as_reference([by_channel((5, w), (3, 3)) for w in (*range(2, 18), 31, 32, 33)], "direct", threads=(1, 3))
    same_as_reference([by_channel((h, 9), (3, 3)) for h in range(1, 9)], "direct", threads=(1, 3))


WINDOWS = [  # taps, steps, padding, dilation
    ((1, 5), (1, 1), (0, 2), (1, 1)),
    ((5, 1), (1, 1), (2, 0), (1, 1)),
    ((3, 3), (1, 1), (0, 0), (1, 1)),
    ((3, 3), (2, 3), (0, 0), (1, 1)),
    ((7, 7), (1, 1), (3, 3), (1, 1)),
    ((3, 5), (1, 1), (4, 1), (1, 1)),
    ((2, 4), (1, 2), (1, 3), (1, 1)),
    ((3, 3), (2, 2), (1, 1), (1, 1)),
    ((3, 3), (3, 3), (2, 0), (1, 1)),
    ((3, 2), (1, 1), (2, 2), (2, 3)),
    ((3, 3), (2, 2), (2, 2), (2, 2)),
]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("taps", "step", "padding", "dilation"), WINDOWS)
def test_windows(taps: Pair, step: Pair, padding: Pair, dilation: Pair, turned: bool, busy: None) -> None:
    sizes = [(17, 19), (8, 40), (23, 66)]
    kernels = [
        by_channel(size, taps, step=step, padding=padding, dilation=dilation, turned=turned) for size in sizes
    ]
    same_as_reference(kernels, "direct", threads=(1, 2))


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("dtype", [F32, F64, BF16, F16])
def test_types(dtype: torch.dtype, in_place: bool, busy: None) -> None:
    if in_place and dtype not in (F32, F64):
        return
    sizes = [(6, 7), (9, 33), (5, 16)]
    for step in ((1, 1), (2, 2)):
        kernels = [by_channel(size, (3, 3), step=step, dtype=dtype, in_place=in_place) for size in sizes]
        same_as_reference(kernels, "direct")


@pytest.mark.parametrize("in_place", [False, True])
def test_blocks_of_rows(monkeypatch: pytest.MonkeyPatch, in_place: bool, busy: None) -> None:
    """A copy of the image so small that it has to be made several times, with a rest."""
    monkeypatch.setattr(direct, "_IMAGE_BYTES", 2048)
    sizes = [(19, 21), (33, 40), (50, 10)]
    kernels = [by_channel(size, (3, 3), step=step, in_place=in_place) for size in sizes for step in ((1, 1), (2, 2))]
    same_as_reference(kernels, "direct", threads=(1, 2, 7))


def test_many_taps_are_written_row_by_row(busy: None) -> None:
    same_as_reference([by_channel((20, 30), (11, 11), padding=(5, 5))], "direct")


def run_guarded(kernels: Sequence[Kernel], *, at_start: bool) -> None:
    """Reading past an end of a buffer ends the process."""
    for kernel, compiled in zip(kernels, compiled_by(kernels, "direct"), strict=True):
        given = [filled(buffer, seed) for seed, buffer in enumerate(kernel.parameters)]
        call(compiled, [guarded(len(each), each.dtype, at_start=at_start).copy_(each) for each in given], 2)


@pytest.mark.parametrize("at_start", [False, True])
def test_nothing_outside_is_read(at_start: bool, busy: None) -> None:
    for step in ((1, 1), (2, 2), (3, 1)):
        for padding in ((1, 1), (0, 0)):
            kernels = [by_channel((6, w), (3, 3), step=step, padding=padding, batch=1) for w in (4, 7, 16, 33, 34, 35)]
            run_guarded(kernels, at_start=at_start)


def test_what_is_refused() -> None:
    target = find("cpu")
    for kernel in (product(3, 9, 7), by_channel((20, 30), (13, 13), padding=(6, 6)), product(8, 8, 300)):
        assert direct.why_not(problem_of(kernel), target) is not None
    assert PRODUCTS.plan(by_channel((28, 28), (3, 3)), target).schedule.name == "direct"


def test_taps_far_apart_are_not_copied_with_all_between_them() -> None:
    target = find("cpu")
    for apart in ((5000, 1), (1, 5000), (700, 700)):
        size = (20 + 2 * apart[0], 20 + 2 * apart[1])
        for padding in ((0, 0), (1, 1)):
            far = by_channel(size, (3, 3), dilation=apart, padding=padding, batch=1, channels=1)
            made = direct.direct_convolution(problem_of(far), target)
            assert isinstance(made, str) or made.workspace.size < 1 << 21
    refused = by_channel((1420, 1420), (3, 3), dilation=(700, 700), padding=(0, 0))
    assert "would not be read" in str(direct.why_not(problem_of(refused), target))
    long = by_channel((1, 1 << 20), (1, 5), padding=(0, 2), batch=1, channels=1)  # all of which is read
    assert direct.why_not(problem_of(long), target) is None
