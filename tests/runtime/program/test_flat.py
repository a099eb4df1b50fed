"""Programs as flat tables: all of a real one is there to read, and an altered one is refused or built; no crash."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

import smelt
from smelt.ir.program import Library
from smelt.ir.table.read import read_program
from smelt.ir.table.records import Allocate, Call, Draws, Drop, Launch
from smelt.ir.table.text import text_of
from smelt.ir.table.write import write_program
from smelt.runtime.program import launch
from smelt.runtime.program.launch import Executable
from smelt.torch_abi.aoti_shims import device_code, dtype_code
from tests.native.test_flat_table import run_apart


class Net(nn.Module):
    """Something of everything: kernels, products by their function and by the dispatcher, a call with a text."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(10, 16)
        self.convolution = nn.Conv1d(16, 16, 3, padding=1)
        self.linear = nn.Linear(16, 100)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.convolution(self.words(words).transpose(1, 2)).transpose(1, 2)
        return self.linear(nn.functional.gelu(x)).log_softmax(-1).sort().values.sum()


def executables(run: Callable[[], object]) -> list[Executable]:
    """Those that a call makes."""
    made: list[Executable] = []
    original = launch.note
    launch.note = made.append  # type: ignore[assignment]
    try:
        run()
    finally:
        launch.note = original
    return made


def of_a_training_step() -> list[Executable]:
    torch.manual_seed(0)
    made = executables(lambda: smelt.compile(Net())(torch.arange(12).reshape(3, 4) % 10).backward())
    assert len(made) == 2
    return made


def test_a_table_says_all_that_a_program_does() -> None:
    for executable in of_a_training_step():
        program, found = executable.program, executable.read()
        assert program is not None
        assert found.name == program.name and found.program.inputs == len(program.inputs)
        assert found.program.arena_bytes == program.arena_bytes
        assert len(found.program.output) == len(program.outputs)
        works = [step for step in found.steps if not isinstance(step, Allocate | Drop)]
        for step, given in zip(works, program.steps, strict=True):
            if isinstance(given, Library):
                assert isinstance(step, Call) and step.name == given.op.name()
            else:
                assert isinstance(step, Launch) and found.kernels[step.kernel].name == given.kernel.name
        assert read_program(*write_program(found, dtype_code, device_code)) == found
        assert all(kernel.name in text_of(found) for kernel in found.kernels)


def alter_all() -> None:
    """In a process of its own: see below."""
    from tests.native.test_flat_table import try_altered

    for executable in of_a_training_step():
        assert executable.run.python_steps == 0
        refused, taken = try_altered(executable.run.table, executable.run.objects, 600, seed=3)
        assert refused > taken > 0, (refused, taken)
    print("all")


def test_altered_tables_of_a_real_program_are_refused_or_built() -> None:
    if not launch.connect():
        pytest.skip("PyTorch's C interface is not used here")
    script = "from tests.runtime.program.test_flat import alter_all; alter_all()"
    assert run_apart(script).split() == ["all"]


def test_results_that_nobody_reads_have_no_place() -> None:
    """So that a program that only moves the host's generator beside its kernels can become a CUDA graph."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return x if torch.rand([]) < 0.0 else x.sin()

    (made,) = executables(lambda: smelt.compile(function)(torch.zeros(3)))
    calls = [step for step in made.read().steps if isinstance(step, Call)]
    assert [(call.results, call.draws) for call in calls] == [((None,), Draws.UNREAD)]
