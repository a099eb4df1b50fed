"""The report shows runs of lazy tensors as a timeline: what needed each, its line, operators, kernels and time."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from smelt.base.events import collect
from smelt.explain.report_code import Codes
from smelt.explain.report_data import report_data


def program() -> None:
    for size in (5, 5):
        y = (torch.ones(size).to("lazy") + 1) * 2
        float(y.sum())
    z = torch.ones(3, device="lazy") * 3
    print(z)


@pytest.fixture(scope="module")
def runs() -> Any:
    smelt.lazy.enable(background=False)
    smelt.reset()
    with collect() as events:
        program()
    return json.loads(json.dumps(report_data(events, "runs", Codes())))["lazy"]


def test_each_run_has_its_reason_its_line_and_its_size(runs: Any) -> None:
    first = program.__code__.co_firstlineno
    assert [run["reason"] for run in runs] == ["a number is needed", "a number is needed", "it is copied to cpu"]
    assert [run["line"] for run in runs] == [f"{__file__}:{first + at}" for at in (3, 3, 5)]
    assert [run["operators"] for run in runs][:2] == [3, 3]


def test_a_program_that_was_there_has_its_kernels_too(runs: Any) -> None:
    assert [run["how"] for run in runs] == ["compiled", "cached", "compiled"]
    assert [run["kernels"] for run in runs] == [1, 1, 1]


def test_runs_follow_each_other(runs: Any) -> None:
    assert runs[0]["at"] == 0
    for one, other in itertools.pairwise(runs):
        assert one["milliseconds"] > 0 and other["at"] >= one["at"] + one["milliseconds"] - 1e-3


def test_the_page_has_them(tmp_path: Path) -> None:
    smelt.lazy.enable(background=False)
    with smelt.record(tmp_path / "report.html"):
        program()
    found = re.search(r'id="data">(.*?)</script>', (tmp_path / "report.html").read_text(), re.DOTALL)
    assert found is not None and len(json.loads(found[1])["lazy"]) == 3


def test_without_lazy_tensors_there_is_none() -> None:
    with collect() as events:
        smelt.compile(torch.sin)(torch.ones(3))
    assert report_data(events, "none", Codes())["lazy"] == []
