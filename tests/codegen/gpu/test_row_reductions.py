"""Folds over rows in the pass that computes what is folded: gradients of norms, groups of rows, long rows."""

import re
from pathlib import Path

import pytest

from smelt.codegen.gpu import grid_plan
from smelt.codegen.gpu.bodies.row_reductions_body import RowReductions
from smelt.codegen.gpu.row_reductions import row_reads
from smelt.ir.kernel import Kernel
from tests.codegen.gpu.on_host import OnHost, ptx
from tests.codegen.gpu.test_ptx import assembled, assembled_here
from tests.ir.kernels import COLUMN_SUM, sized
from tests.kernel_text import parse_kernel

NORM_BACKWARD = """
kernel norm_backward rows(i:{rows}) cols(j:{cols})
  in x: {dtype}[{rows}*{cols}]
  in dy: {dtype}[{rows}*{cols}]
  in w: f32[{cols}]
  in mean: f32[{rows}]
  out dx: {dtype}[{rows}*{cols}]
  out dw: {dtype}[{cols}]
  out db: f32[{cols}]
  out most: f32[1]
  out norm: f32[1]
  row:
    m = load mean[i]
    n = const {cols} : f32
  loop:
    x0 = load x[{cols}*i + j]
    x1 = cast x0 : f32
    x2 = sub x1, m : f32
    g0 = load dy[{cols}*i + j]
    g1 = cast g0 : f32
    w0 = load w[j]
    g2 = mul g1, w0 : f32
    g3 = mul g2, x2 : f32
    s = reduce sum g2
    t = reduce sum g3
    g4 = mul g1, x2 : f32
    accumulate sum dw[j] = g4
    accumulate sum db[j] = g1
    q = mul g1, g1 : f32
    accumulate sum norm[0] = q
  row:
    a = div s, n : f32
    b = div t, n : f32
    accumulate max most[0] = b
  loop:
    y0 = load x[{cols}*i + j]
    y1 = cast y0 : f32
    y2 = sub y1, m : f32
    h0 = load dy[{cols}*i + j]
    h1 = cast h0 : f32
    w1 = load w[j]
    h2 = mul h1, w1 : f32
    h3 = sub h2, a : f32
    h4 = mul y2, b : f32
    h5 = sub h3, h4 : f32
    h6 = cast h5 : {dtype}
    store dx[{cols}*i + j] = h6
"""
GROUP_BACKWARD = """
kernel group_backward rows(n:{n}, g:{g}) cols(c:{c}, p:{p})
  in x: f32[{n}*{g}*{c}*{p}]
  in w: f32[{g}*{c}]
  out y: f32[{n}*{g}*{c}*{p}]
  out dw: f32[{g}*{c}]
  out all: f32[{g}]
  out keep: f32[{p}]
  out any: bool[{c}*{p}]
  loop:
    v = load x[{g}*{c}*{p}*n + {c}*{p}*g + {p}*c + p]
    s = reduce sum v
  loop:
    u = load x[{g}*{c}*{p}*n + {c}*{p}*g + {p}*c + p]
    ww = load w[{c}*g + c]
    d = sub u, s : f32
    e = mul d, ww : f32
    f = lt e, d : bool
    store y[{g}*{c}*{p}*n + {c}*{p}*g + {p}*c + p] = e
    accumulate sum dw[{c}*g + c] = d
    accumulate min keep[p] = e
    accumulate all any[{p}*c + p] = f
    accumulate sum all[g] = e
"""


def _with_sizes(text: str, **sizes: object) -> Kernel:
    given = text.format(**sizes)
    return parse_kernel(re.sub(r"\d+(?:\*\d+)+", lambda found: str(eval(found[0])), given))


def norm(rows: int, cols: int, dtype: str = "f32") -> Kernel:
    return _with_sizes(NORM_BACKWARD, rows=rows, cols=cols, dtype=dtype)


@pytest.fixture
def few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that blocks go through many rows of small kernels."""
    monkeypatch.setattr(grid_plan, "_MULTIPROCESSORS", 1)
    monkeypatch.setattr(grid_plan, "_REGISTER_FILE", 4096)


@pytest.mark.parametrize("rows, cols", [(3, 7), (170, 33), (90, 6), (133, 2), (9, 1000), (70, 64), (300, 256)])
def test_many_rows_a_block(few_blocks: None, rows: int, cols: int) -> None:
    made = OnHost(norm(rows, cols))
    folds = made.plan.phases[0]
    assert isinstance(folds, RowReductions) and (folds.each > 1 or rows < 10)
    made.check(atol=1e-5 * rows)


def test_sums_of_narrow_numbers(few_blocks: None) -> None:
    OnHost(norm(70, 40, "bf16")).check(rtol=1e-2, atol=3e-2)


def test_rows_too_long_for_registers(few_blocks: None) -> None:
    made = OnHost(norm(13, 5000))
    rows = made.plan.phases[0]
    assert isinstance(rows, RowReductions) and not rows.unrolled
    made.check(atol=1e-4)


@pytest.mark.parametrize("n, g, c, p", [(5, 3, 4, 8), (17, 4, 3, 50), (9, 2, 8, 700), (30, 2, 3, 5)])
def test_rows_that_are_kept_are_groups(few_blocks: None, n: int, g: int, c: int, p: int) -> None:
    made = OnHost(_with_sizes(GROUP_BACKWARD, n=n, g=g, c=c, p=p))
    assert isinstance(made.plan.phases[0], RowReductions) and made.plan.phases[0].groups
    made.check(atol=1e-3)


def test_few_long_rows_are_kept_aside() -> None:
    made = OnHost(parse_kernel(sized(COLUMN_SUM, 2, 200_000)))
    assert all(not isinstance(phase, RowReductions) for phase in made.plan.phases)
    made.check()


def test_one_piece_of_code_for_all_sizes(few_blocks: None) -> None:
    kernel = parse_kernel(COLUMN_SUM.format(rows="s0", cols="s1", total="s0*s1"), {"s0": 60, "s1": 24})
    made = OnHost(kernel)
    assert isinstance(made.plan.phases[0], RowReductions)
    for rows, cols in [(2, 2), (3, 7), (60, 24), (200, 33), (5, 1000)]:
        made.check({"s0": rows, "s1": cols})


def test_folds_of_no_rows_are_stored() -> None:
    OnHost(parse_kernel(sized(COLUMN_SUM, 0, 10))).check()


def test_what_a_gpu_is_given() -> None:
    text = ptx(norm(16384, 4096, "bf16"))
    first = text[text.index(".entry k_0") : text.index(".entry k_1")]
    assert first.count("ld.global.v4") + first.count("ld.global.nc.v4") >= 4  # sixteen bytes at once
    assert "local" not in first
    assert "ld.global.nc.b32" not in first or first.count("ld.global.nc.b32") <= 2


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("rows, cols", [(300, 128), (64, 64), (61, 96), (37, 7)])
def test_the_next_row_is_read_while_one_is_computed(
    monkeypatch: pytest.MonkeyPatch, rows: int, cols: int, dtype: str
) -> None:
    monkeypatch.setattr(grid_plan, "_resident", lambda *_: 3)
    monkeypatch.setattr(grid_plan, "_MULTIPROCESSORS", 1)
    made = OnHost(norm(rows, cols, dtype))
    folds = made.plan.phases[0]
    assert isinstance(folds, RowReductions) and folds.prefetches and folds.each > 1
    loose = dtype != "f32"
    made.check(rtol=2e-2 if loose else 1e-5, atol=(1e-2 if loose else 1e-5) * rows)


IN_PLACE = """
kernel in_place rows(i:{rows}) cols(j:{cols})
  inout g: bf16[{rows}*{cols}]
  inout h: bf16[{rows}*{cols}]
  in x: bf16[{rows}*{cols}]
  out dw: f32[{cols}]
  out db: f32[{cols}]
  loop:
    a0 = load g[{cols}*i + j]
    a = cast a0 : f32
    b0 = load h[{cols}*i + j]
    b = cast b0 : f32
    c = add a, b : f32
    x0 = load x[{cols}*i + j]
    x1 = cast x0 : f32
    d = mul c, x1 : f32
    s = reduce sum d
    c0 = cast c : bf16
    store g[{cols}*i + j] = c0
    accumulate sum dw[j] = d
  row:
    n = const {cols} : f32
    t = div s, n : f32
  loop:
    y0 = load x[{cols}*i + j]
    y1 = cast y0 : f32
    e = mul y1, t : f32
    e0 = cast e : bf16
    store h[{cols}*i + j] = e0
    accumulate sum db[j] = e
"""


@pytest.mark.parametrize("rows, cols", [(300, 128), (61, 96), (37, 7)])
def test_reads_the_next_row_of_what_is_updated_in_place(monkeypatch: pytest.MonkeyPatch, rows: int, cols: int) -> None:
    monkeypatch.setattr(grid_plan, "_resident", lambda *_: 3)
    monkeypatch.setattr(grid_plan, "_MULTIPROCESSORS", 1)
    text = IN_PLACE.replace("{rows}*{cols}", str(rows * cols)).format(rows=rows, cols=cols)
    made = OnHost(parse_kernel(text))
    grid = made.plan.phases[0]
    assert isinstance(grid, RowReductions) and grid.prefetches and grid.each > 1
    assert {load.buffer for load in row_reads(grid.kernel)} == {"g", "h", "x"}
    made.check(rtol=2e-2, atol=1e-2 * rows)


def test_rows_that_would_not_fit_are_not_read_ahead(few_blocks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid_plan, "_REGISTERS", 20)
    made = OnHost(norm(300, 256))
    rows = made.plan.phases[0]
    assert isinstance(rows, RowReductions) and not (rows.unrolled and rows.prefetches)
    made.check(atol=3e-3)


@assembled_here
@pytest.mark.parametrize("cols, dtype", [(768, "f32"), (1024, "f32"), (1024, "bf16"), (2048, "bf16"), (4096, "bf16")])
def test_nothing_is_spilled(cols: int, dtype: str, tmp_path: Path) -> None:
    text = ptx(norm(65536, cols, dtype))
    registers, spilled = assembled(text, "sm_90", tmp_path)["k_0"]
    assert not spilled and registers <= 128
