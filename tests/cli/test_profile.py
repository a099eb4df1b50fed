"""`smelt profile`: kernels of an artifact with their times."""

import ctypes
import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from smelt.cli import main
from smelt.cli.profile_cmd import Call, Launch, measure, table, trace
from smelt.deploy.runtime import Model, Session, TensorAt


def softmax_twice(x: torch.Tensor) -> torch.Tensor:
    return (torch.softmax(x, 1) @ torch.ones(8, 8)).softmax(0)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = {"x": {0: smelt.Dimension("rows", 1, 512)}}
    artifact = smelt.export(softmax_twice, (torch.randn(4, 8),), dynamic=rows, name="twice")
    return Path(artifact.save(tmp_path_factory.mktemp("profile") / "m.smelt"))


def test_a_table_and_a_trace_have_each_kernel(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "trace.json"
    assert main(["profile", str(path), "--size", "rows=64", "--calls", "5", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("twice, twice for ") and "us a call, median of 5" in printed
    events: list[dict[str, Any]] = json.loads(out.read_text())["traceEvents"]
    kernels = {event["name"] for event in events if event["cat"] == "kernel"}
    assert kernels and all(f"  {kernel}\n" in printed for kernel in kernels)
    calls = [event for event in events if event["cat"] == "call"]
    assert len(calls) == 5 and calls[0]["ts"] == 0
    for event in events:
        assert event["ph"] == "X" and event["dur"] >= 0
        begin, end = event["ts"], event["ts"] + event["dur"]
        assert sum(call["ts"] <= begin and end <= call["ts"] + call["dur"] for call in calls) == 1


def test_measuring_changes_no_results_and_ends(path: Path) -> None:
    session = Session(Model(path), 1)
    x = torch.randn(16, 8)
    inputs = [TensorAt("float32", (16, 8), None, x.data_ptr())]
    launches: list[tuple[str, int, int]] = []
    begin = time.time_ns()
    session.profile(lambda *launch: launches.append(launch))
    session.run(inputs)
    found = torch.empty(16, 8)
    ctypes.memmove(found.data_ptr(), session.output(0).address, 16 * 8 * 4)
    torch.testing.assert_close(found, softmax_twice(x))
    assert launches and all(begin <= first <= last <= time.time_ns() for _, first, last in launches)
    count = len(launches)
    session.profile(None)
    session.run(inputs)
    assert len(launches) == count
    calls, alone = measure(session, inputs, 3)
    assert [len(call.launches) for call in calls] == [count] * 3 and alone > 0


def test_tables_sum_the_launches_of_a_kernel() -> None:
    calls = [Call(0, 100_000, (Launch("a", 0, 10_000), Launch("b", 20_000, 50_000), Launch("a", 60_000, 80_000)))]
    assert [line.split() for line in table(calls)] == [
        ["us", "share", "launches", "kernel"],
        ["30.0", "50.0%", "2", "a"],
        ["30.0", "50.0%", "1", "b"],
        ["60.0", "100.0%", "3", "all", "kernels"],
    ]
    assert len(trace(calls, "f")["traceEvents"]) == 4  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--size", "cols=3"], "'cols=3' is no size; write NAME=SIZE with a name of rows"),
        (["--size", "rows"], "is no size"),
        (["--size", "rows=1000"], "must be from 1 to 512"),
        (["--entry", "other"], "there is no entry point 'other'; choose from twice"),
        (["--calls", "0"], "--calls is 1 or more"),
    ],
)
def test_wrong_arguments_are_explained(
    path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["profile", str(path), *arguments]) == 2
    assert message in capsys.readouterr().err
