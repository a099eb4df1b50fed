"""The checks for a GPU, tried on the host: they end in time, say what was left out and why, and keep every log."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests import targets
from tests.campaigns import Campaign
from tests.ops_db import sweep
from tools import gpu_check
from tools.gpu_check import CHECKS, Check, Job, Setup


def setup(out: Path, device: str = "cpu") -> Setup:
    return Setup(device, "cpu", 2, "1/1", 1, 0, 4, 0, "", False, out)


def scripts(**texts: str) -> Callable[[Setup, float], list[Job]]:
    return lambda setup, seconds: [Job(name, [sys.executable, "-c", text]) for name, text in texts.items()]


def test_processes_pass_fail_or_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = scripts(right="print('fine')", wrong="print('no'); exit(3)", hangs="import time; time.sleep(600)")
    monkeypatch.setattr(gpu_check, "CHECKS", {"some": Check("", made), "other": Check("", scripts(last="pass"))})
    monkeypatch.setattr(gpu_check, "GRACE", 1.0)
    monkeypatch.setattr(gpu_check, "build", lambda: None)
    out = tmp_path / "out"
    monkeypatch.setattr(sys, "argv", ["", "some=5", "other=3", "--seconds", "10", "--device", "cpu", "--out", str(out)])
    began = time.monotonic()
    assert gpu_check.main() == 1
    assert time.monotonic() - began < 60  # a busy machine is slow to end what it has started
    summary = (out / "summary.txt").read_text()
    assert "some: 1 of 3 processes passed, 1 failed, 1 not done in time" in summary
    assert "right: passed" in summary and "wrong: failed with status 3" in summary and "hangs: not done" in summary
    assert "== some: wrong: failed with status 3" in summary
    assert (out / "some" / "right.log").read_text() == "fine\n"
    assert "processes failed" in capsys.readouterr().out


def test_what_cannot_run_here_is_left_out_with_the_reason(tmp_path: Path) -> None:
    here, gpu = setup(tmp_path), setup(tmp_path, "cuda")
    assert gpu_check.why_not(CHECKS["ops"], here) is None
    lacking = Check("", scripts(), needs=("no_such_package",)), Check("", scripts(), tool="no_such_tool")
    reasons = [gpu_check.why_not(check, here) for check in lacking]
    assert reasons == ["no_such_package is not installed", "no_such_tool is not on the path"]
    if not torch.cuda.is_available():
        assert gpu_check.why_not(CHECKS["ops"], gpu) == "PyTorch sees no GPU here"


def test_time_is_divided_among_checks() -> None:
    assert gpu_check.chosen(["ops=300", "nn", "gpu"], 510.0) == {"ops": 300.0, "nn": 100.0, "gpu": 100.0}
    with pytest.raises(SystemExit, match="too few"):
        gpu_check.chosen(["ops=300", "nn"], 305.0)
    with pytest.raises(SystemExit, match="there is no check nothing"):
        gpu_check.chosen(["nothing"], 300.0)


def test_every_check_has_processes(tmp_path: Path) -> None:
    for name, check in CHECKS.items():
        jobs = check.jobs(setup(tmp_path), 100.0)
        assert jobs and len({job.name for job in jobs}) == len(jobs), name
        files = [each for job in jobs for each in job.command if each.startswith("tests/")]
        assert all((gpu_check.ROOT / file).exists() for file in files), name


def test_campaigns_and_sweeps_end_when_their_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.monotonic()
    (tmp_path / "for_ever.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert list(Campaign("for_ever", lambda seed: {}, str, ()).outcomes(0, 4, 2, (), seconds=1.0)) == []
    monkeypatch.setattr("tests.ops_db.sweep.WORKER", ("-c", "import time; time.sleep(600)"))
    cases = [sweep.Case("add", "", "float32"), sweep.Case("mul", "", "float32")]
    assert list(sweep.sweep(cases, sweep.Task(), jobs=1, seconds=1.0)) == []
    assert time.monotonic() - began < 60


def test_what_a_process_may_have_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", asked.append)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "")
    targets.share("cpu", 8)
    targets.share("cuda", 1)
    assert asked == []
    targets.share("cuda", 8)
    assert asked == [0.1]
