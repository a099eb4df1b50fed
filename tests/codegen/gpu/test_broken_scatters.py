"""Scans and scatters broken on purpose are seen: without a barrier, a turn of shared memory, a carry, an order, …"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from smelt.codegen.gpu import scan_kernels
from smelt.codegen.gpu.scatters import run_reductions, scatter_kernels, stable_sort
from smelt.codegen.gpu.scatters.run_reductions import RunReductionBody
from smelt.codegen.gpu.simt import Simt
from smelt.codegen.gpu.team_scans import TeamScan
from smelt.ir.kernel import Compute, Instruction, Kernel, Scan, Scatter
from tests.codegen.cpu.test_scatters import rows_kernel
from tests.codegen.gpu.on_host import OnHost
from tests.codegen.gpu.test_gpu_scans import along, down, values
from tests.codegen.gpu.test_gpu_scatters import drawn, own_places

WARP = 4
Break = Callable[[pytest.MonkeyPatch], None]


def is_wrong(kernel: Kernel, given: list[torch.Tensor]) -> bool:
    """In one of the orders at least. A launch that would hang a GPU raises."""
    try:
        OnHost(kernel, warp=WARP).check(given=given, rtol=1e-6, atol=1e-6)
    except (AssertionError, RuntimeError):
        return True
    return False


# Scans.


def scan_is_wrong(kernel: Kernel) -> bool:
    x = values(torch.float32, kernel.buffer("x").size)
    return is_wrong(kernel, [x, torch.empty_like(x)])


def no_barrier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Simt, "barrier", lambda b: None)


def no_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """All tiles leave what their warps come to in the same place."""
    whole = TeamScan._along_warps
    monkeypatch.setattr(TeamScan, "_along_warps", lambda scan, b, x, before, n: whole(scan, b, x, before, b.index(0)))


def nothing_carried(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = TeamScan.tile

    def tile(scan: TeamScan, b: Any, points: Any, before: Any, number: Any) -> Any:
        return whole(scan, b, points, scan.fold.nothing(b), number)

    monkeypatch.setattr(TeamScan, "tile", tile)


def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = TeamScan._along_lanes
    monkeypatch.setattr(TeamScan, "_along_lanes", lambda scan, b, x, place, lanes: whole(scan, b, x, place, lanes // 2))


LONG = along(2, 1003, "sum")


@pytest.mark.parametrize("how", [no_barrier, no_turns, nothing_carried, short_steps])
def test_broken_scans(how: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not scan_is_wrong(LONG)
    how(monkeypatch)
    assert scan_is_wrong(LONG)


def test_what_comes_before_a_part_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def alone(scan: Scan, left: str, right: str, out: str, dtype: torch.dtype) -> list[Instruction]:
        return [Compute(out, "maximum", (right, right), dtype)]

    kernel = down(1, 700, 24, "sum")
    assert not scan_is_wrong(kernel)
    monkeypatch.setattr(scan_kernels, "_joined", alone)
    assert scan_is_wrong(kernel)


# Scatters.


def scatter_is_wrong(kernel: Kernel) -> bool:
    return is_wrong(kernel, drawn(kernel, 6, -1))


def in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each point stores, whoever is last."""
    monkeypatch.setattr("smelt.codegen.gpu.grid_plan.any_order_is_right", lambda places: True)


def first_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = scatter_kernels.loop

    def loop(kernel: Kernel, axes: Any, body: Any, extra: Any, name: str) -> Kernel:
        changed = [replace(i, op="min") if isinstance(i, Scatter) and i.op == "max" else i for i in body]
        return whole(kernel, axes, changed, extra, name)

    monkeypatch.setattr(scatter_kernels, "loop", loop)


def ties_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal keys have equal ranks."""

    def wrong(out: str, op: str, args: tuple[str, ...], dtype: torch.dtype) -> Compute:
        return Compute(out, "and" if op == "or" else op, args, dtype)

    monkeypatch.setattr(stable_sort, "Compute", wrong)


def no_carry_between_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    leave = RunReductionBody._leave

    def wrong(body: RunReductionBody, chunk: Any, keys: Any, found: Any, mask: Any) -> None:
        head, tail = found
        leave(body, chunk, keys, (head, body.b.const(tail.kind, 0.0)), mask)

    monkeypatch.setattr(RunReductionBody, "_leave", wrong)


def values_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = RunReductionBody._value
    monkeypatch.setattr(RunReductionBody, "_value", lambda body, at: body.b.fadd(whole(body, at), 1.0))


SUMS, LAST = own_places(1, 300, 5, "sum"), rows_kernel(40, 5, 6, "last")
SCATTERS: list[tuple[Break, Kernel]] = [
    (in_any_order, LAST),
    (first_wins, LAST),
    (ties_count, SUMS),
    (no_carry_between_chunks, SUMS),
    (values_changed, SUMS),
]


@pytest.mark.parametrize(("how", "kernel"), SCATTERS, ids=lambda each: getattr(each, "__name__", ""))
def test_broken_scatters(how: Break, kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_reductions, "_ONE_CHUNK", 8)
    assert not scatter_is_wrong(kernel)
    how(monkeypatch)
    assert scatter_is_wrong(kernel)
