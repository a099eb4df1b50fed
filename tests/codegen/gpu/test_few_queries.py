"""Attention of few queries by GPU schedules: on the host, a warp as a vector, against the interpreter of kernels."""

from pathlib import Path

import pytest
import torch

from smelt.codegen.gpu.attention.few_queries import few_queries
from smelt.codegen.gpu.attention.parts_body import KeyParts
from smelt.ir.check_kernel import check_kernel
from smelt.ir.kernel import Kernel
from smelt.ir.text import format_kernel
from tests.codegen.gpu.on_host import OnHost, filled
from tests.codegen.gpu.test_ptx import assembled, assembled_here, ptx_of
from tests.kernel_text import parse_kernel
from tests.simt_host.warps import describe_host_warps

Sizes = tuple[int, int, int, int, int]


def attention(sizes: Sizes, dtype: str = "f32", *, masked: bool = False) -> Kernel:
    """Of so many batches, heads of keys, queries for each, keys, and numbers of a key."""
    batch, heads, shared, keys, width = sizes
    query, line = shared * width, keys * width
    of_query, of_key = f"{heads * query}*b + {query}*g + {width}*r", f"{heads * line}*b + {line}*g + {width}*j"
    mask = f" in m: f32[{batch * keys}]\n" if masked else ""
    added = f" mk = load m[{keys}*b + j]\n u = add t, mk : f32\n" if masked else ""
    return parse_kernel(
        f"kernel attention rows(b:{batch}, g:{heads}, r:{shared}) cols(j:{keys})\n"
        f" in q: {dtype}[{batch * heads * query}]\n in k: {dtype}[{batch * heads * line}]\n"
        f" in v: {dtype}[{batch * heads * line}]\n{mask} out y: {dtype}[{batch * heads * query}]\n loop:\n"
        f" s = contract (e:{width}) q[{of_query} + e], k[{of_key} + e] : f32\n c = const 0.125 : f32\n"
        f" t = mul s, c : f32\n{added} p = softmax {'u' if masked else 't'}\n"
        f" weighted sum (d:{width}) y[{of_query} + d] = p * v[{of_key} + d] : f32\n"
    )


def check(built: OnHost, dtype: str, given: list[torch.Tensor] | None = None) -> None:
    wide = dtype == "f32"
    built.check(rtol=1e-4 if wide else 2e-2, atol=1e-5 if wide else 2e-2, given=given or [])


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize(
    "sizes", [(1, 2, 4, 100, 16), (2, 3, 1, 33, 32), (1, 2, 2, 1000, 64), (1, 1, 3, 700, 8)], ids=str
)
def test_against_the_interpreter(sizes: Sizes, dtype: str) -> None:
    for masked, warp in ((False, 8), (True, 32)):
        kernel = attention(sizes, dtype, masked=masked)
        check_kernel(kernel, after="the test")
        built = OnHost(kernel, warp=warp, aligned=not masked)
        first = built.plan.phases[0]
        assert isinstance(first, KeyParts) and len(built.plan.phases) == 1 + (first.parts > 1)
        check(built, dtype)


def test_keys_without_weight_do_not_count() -> None:
    """Whole parts, and the first of what a lane sees; and a query that sees nothing finds zeros."""
    kernel = attention((2, 1, 2, 1500, 16), masked=True)
    given = [filled(buffer, seed) for seed, buffer in enumerate(kernel.parameters)]
    given[3][:1300] = given[3][1450:1500] = float("-inf")
    given[3][1500:] = float("-inf")
    built = OnHost(kernel)
    first = built.plan.phases[0]
    assert isinstance(first, KeyParts) and first.parts > 2
    check(built, "f32", given)


def test_any_number_of_keys() -> None:
    """Compiled once, in as many parts as suit the first number."""
    text = format_kernel(attention((1, 2, 4, 640, 16), masked=True))
    for number, size in (("j:640", "j:s0"), ("10240*g", "16*s0*g"), ("[20480]", "[32*s0]"), ("[640]", "[s0]")):
        text = text.replace(number, size)
    kernel = parse_kernel(text, {"s0": 640})
    built = OnHost(kernel)
    for keys in (2, 127, 640, 1000, 4099):
        built.check({"s0": keys}, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("sizes", "dtype", "why"),
    [
        ((1, 1, 9, 40, 16), "f32", "it has many queries"),
        ((1, 1, 1, 40, 24), "f32", "the width is no power of two, or keys do not lie side by side"),
    ],
)
def test_why_not(sizes: Sizes, dtype: str, why: str) -> None:
    assert few_queries(attention(sizes, dtype), describe_host_warps("test", 8)) == why


@assembled_here
@pytest.mark.parametrize("chip", ["sm_75", "sm_90"])
def test_ptx_is_assembled_without_spills(chip: str, tmp_path: Path) -> None:
    kernels = {
        f"{dtype}_{shared}_{width}": attention((1, 8, shared, 4096, width), dtype, masked=True)
        for dtype, shared, width in (("bf16", 4, 128), ("bf16", 1, 128), ("f16", 4, 64), ("f32", 4, 64))
    }
    found = assembled(ptx_of(kernels, chip), chip, tmp_path)
    assert {name: spilled for name, (_, spilled) in found.items() if spilled} == {}
    assert {name: used for name, (used, _) in found.items() if used > 160} == {}
