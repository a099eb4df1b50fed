"""Programs are timed step by step while somebody asks, and only those made meanwhile."""

import contextlib
from typing import ClassVar

import pytest
import torch

import smelt
from smelt.base.events import collect
from smelt.ir.program import Program
from smelt.ir.table.records import Allocate, Call, Drop, Launch, ProgramTable, Ref
from smelt.runtime.program import profile
from smelt.runtime.program.profile import profiling
from tests.program_tables import Launched, tensor
from tests.program_tables import program as program_table


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


class Event:
    """Of a GPU on which time passes by events alone: 2 µs from one to the next."""

    made: ClassVar[list["Event"]] = []

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream: str) -> None:
        assert stream == "stream of 1"
        self.made.append(self)

    def elapsed_time(self, other: "Event") -> float:
        return 0.002 * (self.made.index(other) - self.made.index(self))

    def synchronize(self) -> None:
        assert self is self.made[-1]


def on_gpu_but_the_last(program: ProgramTable) -> list[bool]:
    """All kernels and calls but the last of them."""
    timed = [isinstance(step, Launch | Call) for step in program.steps]
    last = len(timed) - 1 - timed[::-1].index(True)
    return [each and place < last for place, each in enumerate(timed)]


@pytest.mark.parametrize("recording", [False, True])
def test_steps_on_a_gpu_are_timed_by_its_own_clock(recording: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU is kept busy until all is launched. Not while a CUDA graph is recorded, which waiting would end."""
    slept: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: recording)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", slept.append)
    monkeypatch.setattr(torch.cuda, "current_stream", "stream of {}".format)
    monkeypatch.setattr(torch.cuda, "device", lambda gpu: contextlib.nullcontext())
    monkeypatch.setattr(profile, "_gpus", lambda program: {1})
    monkeypatch.setattr(profile, "_steps_on_gpu", on_gpu_but_the_last)
    monkeypatch.setattr(Event, "made", [])
    with profiling() as times:
        compiled = smelt.compile(f)
        for _ in range(2):
            compiled(X, W)
        (taken,) = times()
    assert taken.calls == 2 and len(taken.nanoseconds) > 1 and len(slept) == (0 if recording else 2)
    assert (set(taken.nanoseconds[:-1]) == {2 * 2000}) is not recording
    assert taken.nanoseconds[-1] > 2 * 2000  # of the host, by its clock


def test_several_gpus_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    monkeypatch.setattr(profile, "_steps_on_gpu", lambda program: [True] * len(program.steps))
    monkeypatch.setattr(profile, "_gpus", lambda program: {1, 0})
    with profiling() as times:
        smelt.compile(f)(X, W)
        (taken,) = times()
    assert waited[:2] == [0, 1] and taken.calls == 1 and all(each > 0 for each in taken.nanoseconds)


def test_which_steps_are_on_a_gpu() -> None:
    values = tuple(tensor("", torch.float32, torch.device(name), (1,), (1,)) for name in ("cpu", "cuda:1", "cuda:1"))
    steps = (
        Call("aten::sin", torch.sin, (Ref(0),), results=(0,)),
        Allocate(1),
        Call("aten::_to_copy", torch.sin, ([Ref(0)],), results=(1,)),
        Call("aten::sin", torch.sin, ([None, (Ref(1),)],), results=(None,)),
        Launched("k0", None, (0, 2)),
        Launched("k1", None, (0,)),
        Drop((1,)),
    )
    program = program_table(steps, (), values)
    assert profile._steps_on_gpu(program) == [False, False, True, True, True, False, False]
    assert profile._gpus(program) == {1}
