"""The parts of a GPU step: every kernel is counted once, and bars are as long as their steps."""

import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu_steps, gpu_tasks, gpu_time
from benchmarks.plot import THEMES

KERNELS = """\
   2000.0 us    12 x  nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NNT
   1000.0 us     3 x  void cudnn::engines_precompiled::nchwToNhwcKernel<__nv_bfloat16>
    500.0 us     2 x  void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64>>
    250.5 us     7 x  smelt_row_sum_3
    100.0 us     1 x  void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>
     50.0 us     4 x  Memcpy DtoD (Device -> Device)
"""
RESULTS = {"device": "a GPU", "programs": {"gpt2": {"smelt": {"step": 5.0}, "torch.compile": {"step": 10.0}}}}


def test_each_kernel_belongs_to_one_kind_and_the_rest_of_a_step_is_a_gap() -> None:
    parts = gpu_time.split(KERNELS, 5.0)
    expected = {"product": 2.0, "conversion": 1.0, "attention": 0.5, "generated": 0.2505, "eager": 0.1, "copy": 0.05}
    assert parts == pytest.approx(expected | {"gap": 5.0 - sum(expected.values())})


def test_kernels_that_overlap_leave_no_negative_gap() -> None:
    assert gpu_time.split(KERNELS, 1.0)["gap"] == 0.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for way in ("smelt", "torch.compile"):
        (tmp_path / f"gpt2_{way}.txt").write_text(KERNELS)
    return tmp_path


def test_the_table_has_a_row_per_program_and_way(folder: Path) -> None:
    rows = gpu_time.table(gpu_time.parts_of(RESULTS, folder, ["smelt", "torch.compile", "eager"])).splitlines()
    assert len(rows) == 4
    assert {row.count("|") for row in rows} == {len(gpu_time.NAMES) + 4}
    assert rows[2].startswith("| GPT-2 | smelt | 5.00 | 2.00 |")


def test_the_table_of_steps_compares_mode_with_mode() -> None:
    figures = {"eager": 9.0, "smelt": 3.0, "smelt-graphs": 2.0, "torch.compile": 6.0, "torch.compile-graphs": 5.0}
    program = {way: {"step": step, "busy": 1.0, "first": 1.0, "memory": 10.0} for way, step in figures.items()}
    *_, row, mean = gpu_time.step_table({"gpt2": program, "bert": program}, list(figures)).splitlines()
    assert "| 3.00 (1.00) |" in row
    assert [cell.strip() for cell in mean.split("|")[7:10]] == ["3.00", "2.00", "2.50"]


def test_the_table_of_steps_leaves_out_what_failed() -> None:
    program: dict[str, dict[str, Any]] = {"eager": {"step": 2.0}, "smelt": {"error": "out of memory"}}
    *_, row, _ = gpu_time.step_table({"gpt2": program}, ["smelt"]).splitlines()
    assert "| GPT-2 | 2.00 | failed |" in row


def test_bars_are_as_long_as_their_steps(folder: Path) -> None:
    parts = gpu_time.parts_of(RESULTS, folder, ["smelt", "torch.compile"])
    root = ElementTree.fromstring(gpu_time.picture(parts, THEMES["light"], "where the time goes"))
    boxes = root.findall("{http://www.w3.org/2000/svg}rect")[len(gpu_time.NAMES) :]
    widths = [float(box.get("width") or 0) for box in boxes]
    ours, theirs = widths[: len(gpu_time.NAMES)], widths[len(gpu_time.NAMES) :]
    assert sum(theirs) == pytest.approx(2 * sum(ours), rel=0.01)
    assert root[0].text == "where the time goes"


def test_ratios_leave_out_what_failed() -> None:
    failed = {"error": "RuntimeError: no", "first": 0.0}
    found = {"a": {"smelt": {"step": 2.0}, "eager": {"step": 3.0}}, "b": {"smelt": failed, "eager": {"step": 3.0}}}
    assert gpu_steps.ratios(found, "smelt", "eager") == {"a": 1.5}
    assert "failed: RuntimeError: no" in gpu_steps.line("b", "smelt", failed)


_CHILD = """
import json, sys
print("a warning\\nready", flush=True)
sys.stdin.readline()
print("another warning")
print(json.dumps({"eager": {"error": "", "step": 1.0, "host": 0.5, "busy": 0.9, "kernels": 3, "memory": 7.0,
                            "first": 2.0, "off": 0.0}}), flush=True)
"""


@pytest.mark.parametrize(("script", "found"), [(_CHILD, ["a", "b"]), ("print('no')", [])], ids=["measured", "failed"])
def test_processes_are_measured_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch, script: str, found: list[str]
) -> None:
    def started(*given: object) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", script]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    monkeypatch.setattr(gpu_steps, "_started", started)
    written: list[list[str]] = []
    results = gpu_steps.run_all(["a", "b"], ["eager"], 2, None, lambda figures: written.append(list(figures)))
    assert list(results) == found
    assert written == [found[: count + 1] for count in range(len(found))]


def test_names_of_programs_are_names_of_files() -> None:
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in gpu_tasks.TASKS)
