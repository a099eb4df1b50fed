"""What reports and explanations say of kernels for a GPU: their grids, and what these take of it."""

import json
import re
from typing import Any

import pytest
import torch

import smelt
from smelt import codegen
from smelt.base.events import collect
from smelt.base.options import Options
from smelt.explain import kernel_usage
from smelt.explain.kernel_usage import moved_bytes, usage_lines
from smelt.explain.report_code import Codes
from smelt.explain.report_data import report_data
from smelt.runtime.cuda.driver import CudaDevice
from smelt.runtime.cuda.image import CudaCode, FunctionUsage
from tests.absent_device.ahead import compile_ahead, spec_like
from tests.targets import on_target

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


def norm(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 2, -1).sum(0)


def for_gpu() -> Any:
    found = compile_ahead(norm, [spec_like((4096, 1024))], Options(target="sm_90"))
    found.generate()
    return found.forward


def test_where_the_gpu_is_not_here_grids_are_told() -> None:
    codegen.forget()
    program = for_gpu()
    (kernel,) = program.kernels
    lines = usage_lines(kernel)
    told = re.compile(r"k0_\w+_\d: \d+ blocks? of \d+ threads(; \d+ bytes of shared memory)?$")
    assert lines and all(map(told.match, lines))
    codegen.forget()
    assert usage_lines(kernel) == []


def used(code: Any, symbol: str, device: int, threads: int, shared_bytes: int) -> FunctionUsage:
    assert symbol.startswith("k0_") and device == 1 and threads % 32 == 0
    return FunctionUsage(40, 12, 128, 2)


def test_what_its_driver_says(monkeypatch: pytest.MonkeyPatch) -> None:
    (kernel,) = for_gpu().kernels
    old = CudaDevice(0, "old", (8, 6), 32, 84, 1536, 16)
    new = CudaDevice(1, "new", (9, 0), 32, 132, 2048, 32)
    monkeypatch.setattr(kernel_usage, "devices", lambda: (old, new))
    monkeypatch.setattr(CudaCode, "usage", used)
    lines = usage_lines(kernel)
    assert lines and all("; 40 registers, " in line and "12 bytes spilled per thread" in line for line in lines)
    threads = [int(found[1]) for line in lines if (found := re.search(r"of (\d+) threads;", line))]
    wanted = [f"; 2 blocks on a multiprocessor, {200 * each // 2048} % of its threads" for each in threads]
    assert len(threads) == len(lines) and all(map(str.endswith, lines, wanted)), (lines, wanted)


def test_bytes_that_a_step_moves() -> None:
    program = for_gpu()
    (step,) = program.steps
    assert moved_bytes(program, step) == 4 * (4096 * 1024 + 1024)


def test_the_report_has_them() -> None:
    with on_target("simt-host"):
        with collect() as events:
            smelt.compile(norm)(torch.randn(64, 128))
        data = json.loads(json.dumps(report_data(events, "softmax", Codes())))
        text = smelt.explain(norm)(torch.randn(64, 128)).text(full=True)
    (step,) = data["graphs"][0]["programs"][0]["steps"]
    assert step["target"] == "simt-host" and step["bytes"] == 4 * (64 * 128 + 128) and step["grids"]
    assert all(line in text for line in step["grids"])


def test_kernels_for_a_cpu_have_no_grids() -> None:
    with collect() as events:
        smelt.compile(norm)(torch.randn(64, 128))
    data = report_data(events, "softmax", Codes())
    (step,) = data["graphs"][0]["programs"][0]["steps"]
    assert step["target"] == "cpu" and "grids" not in step
