"""Pointwise kernels that read along another axis than they write along, tile by tile through shared memory."""

from dataclasses import replace

import pytest
import torch

from smelt.base.options import Options
from smelt.codegen.gpu import transpose_tiles
from smelt.ir.kernel import Kernel
from tests.absent_device.ahead import compile_ahead, spec_like
from tests.codegen.gpu.on_host import OnHost, ptx
from tests.kernel_text import parse_kernel


def turned(rows: int, cols: int, dtype: str = "f32") -> Kernel:
    """Reads across of two arrays, beside one of each other kind."""
    return parse_kernel(f"""
kernel turned rows(i:{rows}) cols(j:{cols})
  in x: {dtype}[{rows * cols}]
  in bias: f32[{cols}]
  in gate: f32[{rows * cols}]
  in other: f32[{rows * cols}]
  out y: f32[{rows * cols}]
  out z: {dtype}[{rows * cols}]
  loop:
    a = load x[i + {rows}*j]
    b = cast a : f32
    c = load bias[j]
    d = load gate[{cols}*i + j]
    e = load other[i + {rows}*j]
    f = add b, c : f32
    g = mul f, d : f32
    h = sub g, e : f32
    k = cast h : {dtype}
    store y[{cols}*i + j] = h
    store z[{cols}*i + j] = k
""")


def channels_last(images: int, channels: int, points: int, dtype: str) -> Kernel:
    total = images * channels * points
    return parse_kernel(f"""
kernel channels_last rows(n:{images}, p:{points}) cols(c:{channels})
  in x: {dtype}[{total}]
  out y: {dtype}[{total}]
  loop:
    v = load x[{channels * points}*n + p + {points}*c]
    store y[{channels * points}*n + {channels}*p + c] = v
""")


def has_tile(made: OnHost) -> bool:
    return isinstance(made.plan.phases[0], transpose_tiles.TransposeTile)


@pytest.mark.parametrize("rows, cols", [(64, 64), (32, 40), (100, 130), (33, 65), (300, 9)])
def test_two_reads_across(rows: int, cols: int) -> None:
    made = OnHost(turned(rows, cols))
    assert has_tile(made)
    made.check()


def test_elements_of_two_sizes() -> None:
    OnHost(turned(48, 96, "bf16")).check(rtol=1e-2, atol=3e-2)


@pytest.mark.parametrize("dtype", ["f64", "f16", "bool", "i64"])
def test_channels_last(dtype: str) -> None:
    made = OnHost(channels_last(2, 33, 70, dtype))
    assert has_tile(made)
    made.check()
    OnHost(channels_last(2, 64, 32, dtype)).check()


def test_large_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transpose_tiles, "_ENOUGH_TILES", 1)
    made = OnHost(channels_last(2, 70, 140, "bf16"))
    tile = made.plan.phases[0]
    assert isinstance(tile, transpose_tiles.TransposeTile) and (tile.height, tile.width) == (64, 64)
    made.check()


def test_sizes_that_vary() -> None:
    kernel = parse_kernel(
        """
kernel turned rows(i:s0) cols(j:s1)
  in x: f32[s0*s1]
  out y: f32[s0*s1]
  loop:
    v = load x[i + s0*j]
    w = add v, v : f32
    store y[s1*i + j] = w
""",
        {"s0": 40, "s1": 50},
    )
    made = OnHost(kernel)
    assert has_tile(made)
    for s0, s1 in [(2, 2), (40, 50), (3, 100), (129, 65)]:
        made.check({"s0": s0, "s1": s1})


def test_short_axes_have_no_tiles() -> None:
    made = OnHost(channels_last(2, 3, 100, "f32"))
    assert not has_tile(made)
    made.check()


def test_what_is_written_is_not_read_across() -> None:
    kernel = parse_kernel("""
kernel in_place rows(i:16) cols(j:16)
  inout x: f32[256]
  out y: f32[256]
  loop:
    v = load x[i + 16*j]
    w = add v, v : f32
    store x[i + 16*j] = w
    store y[i + 16*j] = v
""")
    OnHost(kernel).check()


def test_sixteen_bytes_at_once_on_both_sides() -> None:
    text = ptx(turned(4096, 4096, "bf16"))
    assert text.count("st.global.v4.b32") == 6 and "st.global.b" not in text
    assert text.count("ld.global.v4.b32") + text.count("ld.global.nc.v4.b32") >= 10
    assert text.count("bar.sync") == 1 and "local" not in text


@pytest.mark.parametrize("stride", [(9, 1, 108), (1, 12, 108)])
def test_what_is_scattered_has_no_tile(stride: tuple[int, ...]) -> None:
    """Nothing is stored in order that a tile could be turned for."""
    spec = replace(spec_like((12, 9, 9), torch.int64), stride=stride)
    copied = lambda x: x.index_copy(2, torch.arange(9, device=x.device), x)  # noqa: E731
    made = compile_ahead(copied, [spec], Options(target="sm_90"))
    assert made.generate()
