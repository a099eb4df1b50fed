"""Products of few rows by GPU schedules: on the host, a warp as a vector, against float64; node by node; and as PTX."""

import itertools
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from smelt import _native
from smelt.base.rewrite_budget import RewriteBudget
from smelt.codegen.gpu.cuda_target import describe_cuda
from smelt.codegen.gpu.gpu_generator import CudaGenerator
from smelt.codegen.gpu.products.few_rows_body import FewRows, Way
from smelt.codegen.write_module import join
from smelt.ir.check_kernel import check_kernel
from smelt.ir.kernel import Kernel
from smelt.ir.loops.check import check_function
from smelt.ir.text import format_kernel
from tests.codegen.cpu.products.bounds import differences
from tests.codegen.gpu.on_host import ORDERS, OnHost, filled
from tests.codegen.gpu.running import copied
from tests.codegen.gpu.test_ptx import PTXAS, assembled, assembled_here, ptx_of
from tests.kernel_text import parse_kernel
from tests.loop_reference import run_grid


def linear(rows: int, cols: int, terms: int, dtype: str = "f32", *, across: bool = False, x: str = "") -> Kernel:
    """A layer with a bias; `across`: its weights are contiguous along the cols; `x`: the dtype of what it is given."""
    at = f"j + {cols}*k" if across else f"{terms}*j + k"
    x, wide = x or dtype, "f64" if dtype == "f64" else "f32"
    bias = " v1 = load b[j]\n" if x == wide else f" v0 = load b[j]\n v1 = cast v0 : {wide}\n"
    last = " v3 = mul v2, v2" if x == wide else f" v4 = mul v2, v2 : {wide}\n v3 = cast v4"
    return parse_kernel(
        f"kernel linear rows(i:{rows}) cols(j:{cols})\n in x: {x}[{rows * terms}]\n"
        f" in w: {dtype}[{cols * terms}]\n in b: {x}[{cols}]\n out y: {x}[{rows * cols}]\n loop:\n"
        f" p = contract (k:{terms}) x[{terms}*i + k], w[{at}] : {wide}\n{bias} v2 = add p, v1 : {wide}\n"
        f"{last} : {x}\n store y[{cols}*i + j] = v3\n"
    )


def grid_of(built: OnHost) -> FewRows:
    (grid,) = built.plan.phases
    assert isinstance(grid, FewRows)
    return grid


def check(kernel: Kernel, way: Way, warp: int, *, aligned: bool = True) -> None:
    check_kernel(kernel, after="the test")
    built = OnHost(kernel, warp=warp, aligned=aligned)
    assert grid_of(built).way is way
    before = [copied(filled(buffer, seed), aligned) for seed, buffer in enumerate(kernel.parameters)]
    for order in ORDERS:
        after = [copied(each, aligned) for each in before]
        _native.set_simt_order(order, 3)
        try:
            built.run(after, {})
        finally:
            _native.set_simt_order("forward")
        assert not list(differences(kernel, before, after)), format_kernel(kernel)


SIZES = [(1, 20, 600), (2, 33, 296), (3, 50, 1000), (4, 24, 128), (1, 64, 130), (1, 1, 4000)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "f64"])
def test_weights_along_the_terms(sizes: tuple[int, int, int], dtype: str) -> None:
    check(linear(*sizes, dtype), Way.ALONG, 8, aligned=sum(sizes) % 4 > 0)


@pytest.mark.parametrize("sizes", [each for each in SIZES if each[1] > 1], ids=str)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64"])
def test_weights_across_the_terms(sizes: tuple[int, int, int], dtype: str) -> None:
    check(linear(*sizes, dtype, across=True), Way.ACROSS, 4, aligned=sum(sizes) % 4 > 0)


@pytest.mark.parametrize(
    "sizes", [(2, 16, 64), (2, 33, 296), (5, 64, 320), (9, 70, 128), (16, 33, 104), (11, 40, 1032)], ids=str
)
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_matrix_units(sizes: tuple[int, int, int], dtype: str) -> None:
    for aligned in (True, False):
        check(linear(*sizes, dtype), Way.MATRIX, 32, aligned=aligned)


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("x", ["f32", "bf16"])
def test_weights_that_are_integers(x: str, across: bool) -> None:
    check(linear(2, 48, 320, "i8", across=across, x=x), Way.ACROSS if across else Way.ALONG, 8)


def test_what_is_not_there_is_not_read() -> None:
    """Infinite numbers where the first elements are do not enter sums that have nothing there."""
    kernel = linear(2, 24, 129)
    built = OnHost(kernel)
    before = [filled(buffer, seed) for seed, buffer in enumerate(kernel.parameters)]
    before[0][0] = float("inf")
    after = [each.clone() for each in before]
    built.run(after, {})
    y = after[-1].view(2, 24)
    assert not y[0].isfinite().any() and y[1].isfinite().all()


@pytest.mark.parametrize("number", range(10))
def test_random_sizes(number: int) -> None:
    chosen = random.Random(number)
    rows, cols, terms = chosen.randint(1, 4), chosen.randint(1, 90), chosen.randint(130, 900)
    dtype, across = chosen.choice(["f32", "bf16"]), cols > 4 and chosen.random() < 0.5
    check(linear(rows, cols, terms, dtype, across=across), Way.ACROSS if across else Way.ALONG, chosen.choice([4, 8]))


@pytest.mark.parametrize(("kernel", "why"), [
    (linear(17, 64, 128, "bf16"), "it has many rows"),
    (linear(2, 4, 1 << 20, "bf16"), "it has many terms of few cols"),
    (linear(2, 64, 20, "bf16"), "it has few terms"),
], ids=["rows", "terms", "few terms"])  # fmt: skip
def test_why_not(kernel: Kernel, why: str) -> None:
    assert ("few rows", why) in OnHost(kernel, warp=32).plan.why_not


def test_terms_that_the_other_factor_has_apart() -> None:
    """Heads in another order than the weights have them."""
    text = (
        "kernel heads rows() cols(j:24)\n in x: bf16[512]\n in w: bf16[12288]\n out y: f32[24]\n loop:\n"
        " p = contract (h:4, g:2, d:64) x[64*h + 256*g + d], w[512*j + 128*h + 64*g + d] : f32\n store y[j] = p\n"
    )
    check(parse_kernel(text), Way.ALONG, 8)
    check(parse_kernel(text), Way.ALONG, 4, aligned=False)


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("across", [False, True])
def test_weights_are_read_before_earlier_launches_have_ended(across: bool, rows: int, tmp_path: Path) -> None:
    kernel = replace(linear(rows, 4096, 4096, "bf16", across=across), early=("w",))
    text = ptx_of({"k": kernel})
    before, after = text.split("griddepcontrol.wait;")
    assert "griddepcontrol.launch_dependents;" in before
    assert "ld.global" in before and "ld.global" in after and "ld.global.nc" not in text
    if PTXAS is not None:
        assert assembled(text, "sm_90", tmp_path)["k_0"][1] == 0


@pytest.mark.parametrize(("dtype", "across"), [("bf16", False), ("f16", False), ("f32", False), ("bf16", True)])
def test_each_node(dtype: str, across: bool) -> None:
    """What an NVIDIA GPU is given, by the interpreter of the loop form, which reports races."""
    kernel, target, generator = linear(2, 16, 136, dtype, across=across), describe_cuda("sm_90"), CudaGenerator()
    plan = generator.schedule(kernel, target, RewriteBudget(), check=False, of="")
    code = generator.emit("k", plan, target)
    (phase,), (function,) = code.phases, code.functions
    check_function(function)
    before = [filled(buffer, seed) for seed, buffer in enumerate(kernel.parameters)]
    memories = [bytearray(each.view(torch.uint8).numpy().tobytes()) for each in before]
    run_grid(join([code]), function.name, *memories, bytearray(1), blocks=phase.blocks, shared_bytes=phase.shared_bytes)
    after = [torch.frombuffer(memory, dtype=each.dtype).clone() for memory, each in zip(memories, before, strict=True)]
    assert not list(differences(kernel, before, after))


@assembled_here
@pytest.mark.parametrize("chip", ["sm_75", "sm_80", "sm_90", "sm_100"])
def test_ptx_is_assembled_without_spills(chip: str, tmp_path: Path) -> None:
    kernels = {
        f"{dtype}_{rows}_{across}": linear(rows, 4096, 4096, dtype, across=across)
        for dtype, rows, across in itertools.product(("bf16", "f16", "f32", "i8"), (1, 4), (False, True))
    } | {f"{dtype}_{rows}": linear(rows, 4096, 4096, dtype) for dtype, rows in (("bf16", 16), ("f16", 16), ("f32", 8))}
    text = ptx_of(kernels, chip)
    assert ("mma.sync" in text) is (chip != "sm_75")
    found = assembled(text, chip, tmp_path)
    assert {name: spilled for name, (_, spilled) in found.items() if spilled} == {}
    assert {name: used for name, (used, _) in found.items() if used > 128} == {}
