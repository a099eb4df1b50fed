"""Long rows that a cluster of blocks keeps among its registers: read once, folded between blocks."""

import math
import re
from pathlib import Path

import pytest
import torch

from smelt.codegen.gpu import grid_plan, team_reductions
from smelt.codegen.gpu.bodies.online_body import OnlineRows
from smelt.codegen.gpu.long_rows import outputs_as_scratch, recomputed
from smelt.codegen.gpu.simt import Simt
from smelt.ir.check_kernel import check_kernel
from smelt.ir.kernel import Kernel, Role
from tests.codegen.cpu.test_online_softmax import LOG_SOFTMAX
from tests.codegen.gpu.on_host import OnHost, ptx
from tests.codegen.gpu.test_long_rows import log_sum, softmax
from tests.codegen.gpu.test_ptx import assembled, assembled_here
from tests.ir.kernels import LAYER_NORM, SOFTMAX, sized
from tests.kernel_text import parse_kernel

# A softmax whose powers are put aside in the output, as of rows too long for scratch.
ASIDE = """
kernel softmax rows(i:{rows}) cols(j:{cols})
  in x: f32[{total}]
  out y: f32[{total}]
  loop:
    v0 = load x[{cols}*i + j]
    m = reduce max v0
  loop:
    v1 = load x[{cols}*i + j]
    v2 = sub v1, m : f32
    v3 = exp v2 : f32
    store y[{cols}*i + j] = v3
    s = reduce sum v3
  row:
    r = reciprocal s : f32
  loop:
    v4 = load y[{cols}*i + j]
    v5 = mul v4, r : f32
    store y[{cols}*i + j] = v5
"""
FORMS = {"log_softmax": LOG_SOFTMAX, "layer_norm": LAYER_NORM, "aside": ASIDE}


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few rows are enough for the whole chip."""
    monkeypatch.setattr(grid_plan, "_MULTIPROCESSORS", 2)
    monkeypatch.setattr(grid_plan, "_STREAM_TILES", 100)


@pytest.fixture
def small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are read again do not stay there, unless few are under way."""
    monkeypatch.setattr(grid_plan, "_CACHE_BYTES", 1 << 17)
    monkeypatch.setattr(grid_plan, "_CLUSTER_VALUES", 0)


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("form", ["softmax", "log_softmax", "layer_norm", "aside"])
@pytest.mark.parametrize("cols", [3001, 5000, 9999])
def test_a_row_is_read_again_by_blocks_that_share_it(small_cache: None, form: str, cols: int, aligned: bool) -> None:
    text = SOFTMAX if form == "softmax" else FORMS[form]
    made = OnHost(parse_kernel(sized(text, 3, cols)), cluster=8, aligned=aligned)
    (phase,) = made.plan.phases
    assert phase.cluster > 1 and not phase.unrolled and phase.blocks == 3 * phase.cluster
    made.check(atol=1e-6 if form != "layer_norm" else None)


def test_rows_of_any_length_share_blocks(small_cache: None) -> None:
    kernel = parse_kernel(SOFTMAX.format(rows="s0", cols="s1", total="s0*s1"), {"s0": 40, "s1": 5000})
    made = OnHost(kernel, cluster=8)
    assert made.plan.phases[0].cluster > 1
    for rows, cols in [(2, 4), (3, 4000), (2, 6004)]:
        made.check({"s0": rows, "s1": cols}, atol=1e-6)


def test_rows_that_are_read_once_by_a_loop_need_no_other_blocks(small_cache: None) -> None:
    assert OnHost(log_sum(3, 9000), cluster=8).plan.phases[0].cluster == 1


def aside(rows: int, cols: int) -> Kernel:
    return parse_kernel(sized(ASIDE, rows, cols))


@pytest.mark.parametrize("cols, cluster", [(2052, 2), (4096, 2), (4097, 4), (8000, 4), (9999, 8), (16384, 8)])
def test_a_row_is_kept_by_several_blocks(cols: int, cluster: int) -> None:
    made = OnHost(softmax(3, cols), cluster=8)
    (phase,) = made.plan.phases
    assert (phase.cluster, phase.unrolled, phase.blocks) == (cluster, True, 3 * cluster)
    made.check(atol=1e-7)


@pytest.mark.parametrize("aligned", [True, False])
def test_powers_in_an_output_stay_in_registers(aligned: bool) -> None:
    made = OnHost(aside(2, 5000), cluster=8, aligned=aligned)
    assert [phase.cluster > 1 and phase.unrolled for phase in made.plan.phases] == [True]
    made.check()


def test_a_row_too_long_for_all_of_them_is_read_again() -> None:
    made = OnHost(softmax(3, 50_000), cluster=8)
    assert made.plan.phases[0].cluster == 1 and isinstance(made.plan.phases[0], OnlineRows)
    made.check(atol=1e-7)


def test_short_rows_are_a_block_s_own() -> None:
    assert OnHost(softmax(4, 2048), cluster=8).plan.phases[0].cluster == 1


def test_rows_that_are_read_once_anyhow_need_none() -> None:
    sums = "kernel k rows(i:4) cols(j:9000)\n in x: f32[36000]\n out y: f32[4]\n loop:\n a = load x[9000*i + j]\n"
    kernel = parse_kernel(f"{sums} s = reduce sum a\n row:\n store y[i] = s")
    assert all(phase.cluster == 1 for phase in OnHost(kernel, cluster=8).plan.phases)


@pytest.mark.parametrize("kernel", [softmax(8, 5000), aside(8, 5000)], ids=["scratch", "output"])
def test_numbers_that_are_none(kernel: Kernel) -> None:
    x = torch.randn(8, 5000)
    x[0] = -math.inf
    x[1, :4900] = -math.inf
    x[2, 7] = math.inf
    x[3, 4000] = math.nan
    x[4, 100:] = -math.inf
    OnHost(kernel, cluster=8).check(given=[x.reshape(-1)], atol=1e-6)


def test_as_many_rows_as_there_are() -> None:
    kernel = parse_kernel(ASIDE.format(rows="s0", cols=5000, total="s0*5000"), {"s0": 40})
    made = OnHost(kernel, cluster=8)
    assert made.plan.phases[0].cluster > 1
    for rows in (2, 3, 40):
        made.check({"s0": rows}, atol=1e-6)


def test_blocks_that_do_not_wait_for_each_other_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = team_reductions._reduce_cluster

    def hasty(b: Simt, *given: object) -> object:
        monkeypatch.setattr(type(b), "cluster_barrier", lambda self: None)
        return waiting(b, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(team_reductions, "_reduce_cluster", hasty)
    with pytest.raises(AssertionError):
        OnHost(softmax(3, 5000), cluster=8).check(atol=1e-7)


# What is put aside in outputs.


def test_what_an_output_holds_for_a_while_is_scratch() -> None:
    kernel = outputs_as_scratch(aside(4, 5000))
    check_kernel(kernel, after="outputs_as_scratch")
    assert [buffer.name for buffer in kernel.buffers if buffer.role is Role.SCRATCH] == ["y.row"]
    assert not any(buffer.role is Role.SCRATCH for buffer in recomputed(aside(4, 5000)).buffers)


@pytest.mark.parametrize("cols", [5000, 9999])
def test_two_reads_and_a_write_without_clusters(cols: int) -> None:
    made = OnHost(aside(3, cols))
    (phase,) = made.plan.phases
    assert isinstance(phase, OnlineRows) and made.plan.workspace == 0
    made.check(atol=1e-7)


def test_what_is_dear_stays_in_the_output() -> None:
    """Four arrays would have to be read again; the workspace would be as large as the output."""
    more = "".join(
        f"    t{n} = load z{n}[5000*i + j]\n    v2{n} = add v2{n - 1 or ''}, t{n} : f32\n" for n in (1, 2, 3)
    )
    inputs = "".join(f"  in z{n}: f32[15000]\n" for n in (1, 2, 3))
    text = sized(ASIDE, 3, 5000).replace("    v3 = exp v2 :", f"{more}    v3 = exp v23 :")
    made = OnHost(parse_kernel(text.replace("  out y", f"{inputs}  out y")))
    assert made.plan.workspace == 0
    made.check(atol=1e-6)


def test_what_is_left_in_an_output_is_stored() -> None:
    text = sized(ASIDE, 3, 5000).replace("store y[5000*i + j] = v5", "store z[5000*i + j] = v5")
    kernel = parse_kernel(text.replace("  out y: f32[15000]", "  out y: f32[15000]\n  out z: f32[15000]"))
    assert outputs_as_scratch(kernel) is kernel
    OnHost(kernel, cluster=8).check(atol=1e-6)


# What a GPU is given.


@assembled_here
@pytest.mark.parametrize("cols", [50_257, 65_536, 131_072])
def test_registers_and_accesses(cols: int, tmp_path: Path) -> None:
    text = ptx(aside(4096, cols))
    assert ".reqnctapercluster" in text and "ld.shared::cluster" in text
    # All parts of a row wait for each other once for each fold, and once at the end.
    assert len(re.findall(r"barrier\.cluster\.arrive", text)) == 3 == len(re.findall(r"barrier\.cluster\.wait", text))
    ((registers, spilled),) = assembled(text, "sm_90", tmp_path).values()
    assert registers <= 64 and not spilled
    if cols % 4 == 0:
        assert set(re.findall(r"(?:ld|st)\.global\S*", text)) == {"ld.global.nc.v4.b32", "st.global.v4.b32"}


def test_old_chips_have_no_clusters() -> None:
    assert "cluster" not in ptx(softmax(4096, 32_000), "sm_80")
