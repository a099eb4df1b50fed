"""Programs are timed step by step while somebody asks, and only those made meanwhile."""

from typing import Any

import pytest
import torch

import smelt
from smelt.base.events import collect
from smelt.ir.program import Place, Program, ProgramBuffer
from smelt.ir.tensorspec import TensorSpec
from smelt.runtime.program import profile
from smelt.runtime.program.profile import profiling


def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return ((x @ w).tanh() * 2).softmax(-1)


X, W = torch.randn(64, 64), torch.randn(64, 64)


def test_every_step_of_programs_made_meanwhile_has_a_time() -> None:
    before = smelt.compile(f)
    before(X, W)
    with collect() as events, profiling() as times:
        compiled = smelt.compile(lambda x, w: f(x, w) + 1)
        for _ in range(3):
            compiled(X, W)
            before(X, W)
        (taken,) = times()
    (program,) = (event.subject for event in events if isinstance(event.subject, Program))
    assert taken.program == program.name and taken.calls == 3
    assert len(taken.nanoseconds) == len(program.steps) and all(each > 0 for each in taken.nanoseconds)
    assert taken.between >= 0


def test_a_block_inside_another_takes_nothing_from_it() -> None:
    with profiling() as outer:
        first = smelt.compile(lambda x: x.sin() * 2)
        first(X)
        with profiling() as inner:
            second = smelt.compile(lambda x: x.cos() * 3)
            second(X)
            assert [taken.calls for taken in inner()] == [1]
        first(X)
        second(X)
        assert [taken.calls for taken in outer()] == [2, 2]
    first(X)
    assert [taken.calls for taken in outer()] == [2, 2]  # nobody asks any more


def test_results_are_the_same() -> None:
    plain = smelt.compile(f)(X, W)
    with profiling():
        assert torch.equal(smelt.compile(f)(X, W), plain)


def test_gpus_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a program on a GPU each step is over when the GPU is done."""

    class Executable:
        def __init__(self, device: str) -> None:
            buffer = ProgramBuffer("x", TensorSpec((1,), (1,), torch.float32, torch.device(device)), Place.INPUT)
            self.program, self.run, self.on = Program("p", (buffer,), ("x",), (), (), ()), self, None

        def time(self, on: Any) -> None:
            self.on = on

    asking: list[list[Any]] = [[]]
    waited: list[int] = []
    monkeypatch.setattr(profile, "_asking", asking)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    host, gpu = Executable("cpu"), Executable("cuda:1")
    profile.note(host)
    profile.note(gpu)
    assert host.on is True and callable(gpu.on)
    for recording in (True, False):
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda recording=recording: recording)
        gpu.on()
        assert waited == ([] if recording else [0, 1])
