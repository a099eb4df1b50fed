"""One piece of code for all sizes: GPU schedules over symbols, made for one example and run at others; positions that
need 64 bits."""

from collections.abc import Sequence

import pytest
import torch

from smelt.base.rewrite_budget import RewriteBudget
from smelt.codegen.gpu.cuda_target import describe_cuda
from smelt.codegen.gpu.gpu_generator import CudaGenerator
from smelt.ir.kernel import Kernel
from tests.codegen.cpu.test_sizes import COUNT, FAR, STEP, TEXTS
from tests.codegen.gpu.running import build, module_text, same_at, split_more
from tests.kernel_text import parse_kernel

SIZES = [(2, 2), (3, 7), (5, 17), (70, 33), (3, 1000), (1000, 3)]
WAVES = """
kernel waves rows(i:s0) cols(j:s1)
  in x: f32[s0*s1]
  in w: f32[s0]
  out y: f32[s0*s1]
  row:
    a = load w[i]
  loop:
    v0 = load x[s1*i + j]
    b = sin a : f32
    v1 = mul v0, b : f32
    m = reduce max v1
  loop:
    v2 = load x[s1*i + j]
    c = cos a : f32
    d = sin a : f32
    v3 = fma v2, c, d : f32
    v4 = sub v3, m : f32
    store y[s1*i + j] = v4
"""
ALL = {**TEXTS, "waves": WAVES}
# Of long axes whose size is a multiple of what is read at once, code may rely on that.
MULTIPLES = [(8, 8), (16, 64), (64, 1000), (1000, 16)]


def holding(name: str, example: tuple[int, int], warp: int, at: Sequence[tuple[int, int]] = SIZES) -> None:
    built = build(parse_kernel(ALL[name], dict(zip(("s0", "s1"), example, strict=True))), warp)
    ran = 0
    for s0, s1 in at:
        sizes = {"s0": s0, "s1": s1}
        if all(fact.holds(lambda symbol, sizes=sizes: sizes[symbol.text]) for fact in built.code.facts):
            same_at(built, sizes)
            ran += 1
    assert ran >= (2 if name == "shifted" else len(at))  # of which a size less one is a multiple, or one


@pytest.mark.parametrize("name", ALL)
def test_one_piece_of_code_for_all_sizes(name: str) -> None:
    holding(name, (64, 128), 8)


@pytest.mark.parametrize("name", ALL)
def test_code_for_long_rows_is_right_for_short_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many blocks share a row of the example."""
    split_more(monkeypatch)
    holding(name, (3, 5001), 4)
    holding(name, (8, 5000), 4, MULTIPLES)


@pytest.mark.parametrize("name", ALL)
def test_code_for_many_rows_is_right_for_few(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    split_more(monkeypatch)
    holding(name, (5001, 3), 4)
    holding(name, (5000, 8), 4, MULTIPLES)


def test_sizes_that_are_known_beside_some_that_vary() -> None:
    text = (
        "kernel k rows(i:s0) cols(j:64)\n in x: f32[64*s0]\n out r: f32[s0]\n out c: f32[64]\n out y: f32[64*s0]\n"
        " loop:\n a = load x[64*i + j]\n s = reduce sum a\n accumulate sum c[j] = a\n store y[64*i + j] = a\n row:\n"
        " store r[i] = s"
    )
    built = build(parse_kernel(text, {"s0": 100}), 8)
    for s0 in (2, 3, 64, 100, 5001):
        same_at(built, {"s0": s0})


# Positions.


def positions_of(kernel: Kernel) -> str:
    """The kind of numbers that positions are, in the text for a GPU."""
    generator, chip = CudaGenerator(), describe_cuda("sm_90")
    code = generator.emit("k", generator.schedule(kernel, chip, RewriteBudget(), check=True, of=""), chip)
    text = module_text(code)
    kinds = {line.rsplit(", ", 1)[1].split()[0] for line in text.splitlines() if "getelementptr" in line}
    (found,) = kinds
    return found


def test_positions_have_64_bits_where_they_need_them() -> None:
    span = STEP * (COUNT - 1) + 1
    assert positions_of(parse_kernel(FAR.format(count=COUNT, span=span, step=STEP))) == "i64"
    assert positions_of(parse_kernel(FAR.format(count=64, span=STEP * 63 + 1, step=STEP))) == "i32"
    sizes = {"s0": 64, "s1": STEP}
    assert positions_of(parse_kernel(FAR.format(count="s0", span="s1*(s0 - 1) + 1", step="s1"), sizes)) == "i64"
    many = "kernel k rows() cols(j:{n})\n in x: u8[{n}]\n out y: u8[{n}]\n loop:\n a = load x[j]\n store y[j] = a"
    assert positions_of(parse_kernel(many.format(n=3 << 30))) == "i64"
    assert positions_of(parse_kernel(many.format(n=1 << 29))) == "i32"


@pytest.mark.parametrize("varying", [False, True])
def test_indices_past_two_to_the_31(varying: bool) -> None:
    """Memory that is never touched is never there: only a page of each MiB is."""
    span = STEP * (COUNT - 1) + 1
    x, y = (torch.empty(span, dtype=torch.uint8) for _ in range(2))
    x[::STEP] = torch.arange(COUNT, dtype=torch.uint8)
    y[::STEP] = 1
    if varying:
        sizes = {"s0": COUNT, "s1": STEP}
        built = build(parse_kernel(FAR.format(count="s0", span="s1*(s0 - 1) + 1", step="s1"), sizes))
        told = torch.tensor([size.evaluate(lambda symbol: sizes[symbol.text]) for size in built.code.sizes])
        built.run([x, y, told])
    else:
        build(parse_kernel(FAR.format(count=COUNT, span=span, step=STEP))).run([x, y])
    assert torch.equal(y[::STEP], torch.arange(COUNT, dtype=torch.uint8) + 1)
