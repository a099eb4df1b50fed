"""Schedules broken on purpose are seen: without a barrier, a mask, a neutral element, a step of an exchange, …"""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from smelt.codegen.gpu import grid_plan, team_reductions
from smelt.codegen.gpu.bodies import online_body, row_reductions_body, rows_body
from smelt.codegen.gpu.bodies.points_body import PointsBody
from smelt.codegen.gpu.bodies.row_reductions_body import RowReductionsBody
from smelt.codegen.gpu.bodies.rows_body import RowsBody
from smelt.codegen.gpu.phase_body import PhaseBody
from smelt.codegen.gpu.simt import Simt
from smelt.ir.kernel import Kernel
from tests.codegen.cpu.test_transpose_tiles import turned
from tests.codegen.gpu.running import Order, build, module_text, same_as_reference, split_more
from tests.codegen.gpu.test_ptx import code_of
from tests.ir.kernels import COLUMN_SUM, LAYER_NORM, SOFTMAX, sized
from tests.kernel_text import parse_kernel

ORDERS: tuple[Order, ...] = ("forward", "reverse", "shuffled")
UPDATE = """
kernel update rows(i:3) cols(j:700)
  inout x: f32[2100]
  inout r: f32[3]
  loop:
    a = load x[700*i + j]
    s = reduce sum a
  row:
    old = load r[i]
    new = add old, s : f32
    store r[i] = new
  loop:
    b = load x[700*i + j]
    c = add b, new : f32
    store x[700*i + j] = c
"""
IN_PLACE = (
    "kernel in_place rows() cols(j:1003)\n inout x: f32[1003]\n loop:\n a = load x[j]\n b = add a, a : f32\n"
    " store x[j] = b"
)
COLUMNS = (
    "kernel columns rows(i:300) cols(j:40)\n in x: f32[12000]\n out c: f32[40]\n out d: f32[40]\n loop:\n"
    " a = load x[40*i + j]\n accumulate sum c[j] = a\n accumulate max d[j] = a"
)
KERNELS: dict[str, Kernel] = {
    "softmax": parse_kernel(sized(SOFTMAX, 3, 700)),
    "few cols": parse_kernel(sized(SOFTMAX, 7, 5)),
    "layer norm": parse_kernel(sized(LAYER_NORM, 5, 301)),
    "column sum": parse_kernel(sized(COLUMN_SUM, 70, 333)),
    "short rows": parse_kernel(sized(COLUMN_SUM, 71, 6)),
    "columns": parse_kernel(COLUMNS),
    "update": parse_kernel(UPDATE),
    "in place": parse_kernel(IN_PLACE),
    "turned": turned(70, 90),
}
WARP = 4


def is_wrong(kernel: Kernel) -> bool:
    """In one of the orders at least. A launch that would hang a GPU raises."""
    try:
        same_as_reference(kernel, (WARP,), orders=ORDERS, rtol=1e-5)
    except (AssertionError, RuntimeError):
        return True
    return False


@pytest.mark.parametrize("name", KERNELS)
def test_whole_schedules_are_right(name: str) -> None:
    assert not is_wrong(KERNELS[name])


# Barriers, one after the other.


def barriers(kernel: Kernel) -> int:
    return module_text(build(kernel, WARP).code).count("call void @smelt_simt_barrier")


ALONE, SHARED = 16, 0  # of the parts that threads left, those that each reads by itself
WITH_BARRIERS = [(name, ALONE) for name in ("softmax", "layer norm", "column sum", "columns", "update", "turned")]


@pytest.mark.parametrize("name, parts", [*WITH_BARRIERS, ("column sum", SHARED), ("columns", SHARED)])
def test_every_barrier_is_needed(name: str, parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them left out by itself shows. Blocks go through several rows each, which share what they write to."""
    monkeypatch.setattr(grid_plan, "_resident", lambda *_: 4)
    monkeypatch.setattr(team_reductions, "_MOST_PARTS", parts)
    kernel, whole = KERNELS[name], Simt.barrier
    count = barriers(kernel)
    assert count
    for left_out in range(count):
        seen = 0

        def barrier(b: Simt) -> None:
            nonlocal seen
            if seen != left_out:  # noqa: B023
                whole(b)
            seen += 1

        monkeypatch.setattr(Simt, "barrier", barrier)
        assert is_wrong(kernel), f"barrier {left_out} of {count}"
        monkeypatch.setattr(Simt, "barrier", whole)


# Everything else.


def no_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """All threads store."""
    where = Simt.where
    for name in ("where", "where_stored"):
        monkeypatch.setattr(Simt, name, lambda b, mask: where(b, None))


def no_mask_of_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    folded = RowsBody._folded
    monkeypatch.setattr(RowsBody, "_folded", lambda body, fold, so_far, mask: folded(body, fold, so_far, None))
    monkeypatch.setattr(online_body, "neutral", lambda op, dtype: 3.0)  # what it makes of points that are none


def no_neutral_element(monkeypatch: pytest.MonkeyPatch) -> None:
    start = rows_body.start

    def wrong(b: Any, op: Any, dtype: Any, lanes: int) -> Any:
        return b.const("f32", 1.0, lanes) if start(b, op, dtype, lanes).kind == "f32" else start(b, op, dtype, lanes)

    monkeypatch.setattr(rows_body, "start", wrong)
    monkeypatch.setattr(row_reductions_body, "start", wrong)
    monkeypatch.setattr(online_body, "neutral", lambda op, dtype: 1.0)


def a_step_of_an_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    shuffle = Simt.shuffle_xor
    monkeypatch.setattr(Simt, "shuffle_xor", lambda b, value, by: value if by == 2 else shuffle(b, value, by))


def the_wrong_warp(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every warp leaves its number where the first does."""
    store = Simt.store_shared
    monkeypatch.setattr(Simt, "store_shared", lambda b, first, at, value: store(b, first, b.mul(at, 0), value))


def no_row_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads of rows that are not there count as the first row's."""
    both = RowsBody._both
    monkeypatch.setattr(
        RowsBody, "_both", lambda body, one, other: one if other is body.row_mask else both(body, one, other)
    )


def a_turn_less(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = RowReductionsBody._turns
    monkeypatch.setattr(RowReductionsBody, "_turns", lambda body: body.b.sub(turns(body), 1))


def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PointsBody, "_write_rest", lambda body: None)


def no_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What blocks leave of folds over rows is not put where it is looked for."""
    monkeypatch.setattr(RowReductionsBody, "_base", lambda body, fold: body.b.index(0))


def no_teams(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong: Callable[..., Any] = lambda b, folds, values, team, threads: list(values)  # noqa: E731
    for room in (rows_body, row_reductions_body):
        monkeypatch.setattr(room, "reduce_teams", wrong)


BREAKS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], list[str]]] = {
    "masks of stores": (no_mask, ["in place", "update"]),
    "masks of folds": (no_mask_of_folds, ["softmax", "few cols", "layer norm", "columns"]),
    "neutral elements": (no_neutral_element, ["softmax", "layer norm", "columns", "column sum"]),
    "steps of exchanges": (a_step_of_an_exchange, ["softmax", "few cols", "layer norm"]),
    "places in shared memory": (the_wrong_warp, ["softmax", "layer norm", "columns", "turned"]),
    "rows that are not there": (no_row_mask, ["short rows"]),
    "the last rows of blocks": (a_turn_less, ["column sum"]),
    "points that are left": (no_rest, ["in place"]),
    "parts of folds": (no_parts, ["column sum"]),
    "folds between teams": (no_teams, ["columns"]),
}


CASES = [(broken, name) for broken, (_, names) in BREAKS.items() for name in names]


@pytest.mark.parametrize(("broken", "name"), CASES)
def test_what_is_left_out_shows(broken: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BREAKS[broken][0](monkeypatch)
    monkeypatch.setattr(grid_plan, "_ENOUGH_BLOCKS", 1)  # several points at once
    monkeypatch.setattr(grid_plan, "_resident", lambda *_: 4)  # several rows a block
    assert is_wrong(KERNELS[name])


def test_bounds_of_parts_show(monkeypatch: pytest.MonkeyPatch) -> None:
    split_more(monkeypatch)
    kernel = KERNELS["softmax"]
    assert not is_wrong(kernel)
    cols = RowsBody._cols

    def unbounded(body: RowsBody, number: Any) -> Any:
        before, body.grid = body.grid, replace(body.grid, bounds=())
        try:
            return cols(body, number)
        finally:
            body.grid = before

    monkeypatch.setattr(RowsBody, "_cols", unbounded)
    assert is_wrong(kernel)


def test_alignment_that_is_not_there_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the text: rows of 257 begin anywhere."""
    text = (
        "kernel k rows(i:64) cols(j:256)\n in x: f32[16448]\n out y: f32[64]\n loop:\n a = load x[257*i + j]\n"
        " s = reduce sum a\n row:\n store y[i] = s"
    )
    vectors = r"load <\d x float>"
    assert not re.search(vectors, module_text(code_of("k", parse_kernel(text), "sm_90")))
    monkeypatch.setattr(PhaseBody, "_is_aligned", lambda body, index, further=0: True)
    monkeypatch.setattr("smelt.codegen.gpu.grid_plan.vector_width", lambda kernel, axis, extents: 4)
    assert re.search(vectors, module_text(code_of("k", parse_kernel(text), "sm_90")))
