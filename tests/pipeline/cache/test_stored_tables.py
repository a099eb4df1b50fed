"""Flat tables out of the disk cache: run as they were stored, those with other native calls apart."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import smelt
from smelt.base.options import Options
from smelt.ir.program import Program
from smelt.pipeline.cache.keys import environment_key
from smelt.runtime.cache import CacheStore
from smelt.runtime.program import launch
from smelt.runtime.program.launch import Executable
from tests.layout import needs_layout


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CacheStore]:
    """The cache switched on, in a directory of its own."""
    monkeypatch.delenv("SMELT_CACHE", raising=False)
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path))
    smelt.reset()
    yield CacheStore(tmp_path, 1 << 30)
    smelt.reset()


class Layers(torch.nn.Module):
    """Kernels, products, an operator by the dispatcher, arguments that are Python's: a dtype, lists, names."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv1d(8, 8, 3)
        self.linear = torch.nn.Linear(8, 70)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(self.convolution(x).transpose(1, 2)).softmax(-1)
        return y.sort(-1).values.cumsum(1, dtype=torch.float64).sum()


def train() -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = Layers()
    smelt.reset()
    result = smelt.compile(model, options={"fallback": False})(torch.randn(3, 8, 12))
    result.backward()
    return [result.detach(), *(parameter.grad for parameter in model.parameters() if parameter.grad is not None)]


@pytest.fixture
def flattened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The programs that are flattened from here on, by name."""
    names: list[str] = []
    original = launch.flatten

    def noting(program: Program, *rest: Any) -> Any:
        names.append(program.name)
        return original(program, *rest)

    monkeypatch.setattr(launch, "flatten", noting)
    return names


def test_a_stored_table_is_run_as_it_is(
    cache: CacheStore, monkeypatch: pytest.MonkeyPatch, flattened: list[str]
) -> None:
    made: list[Executable] = []
    monkeypatch.setattr(launch, "note", made.append)
    expected = train()
    assert len(flattened) == 2
    flattened.clear()
    assert all(map(torch.equal, train(), expected))
    assert smelt.counters["cache_hits"] == 2 and not flattened
    for compiled, executable in zip(made[:2], made[2:], strict=True):
        assert compiled.program is not None and executable.program is None
        again = launch.flatten(compiled.program, kernels_of(executable), executable.read().program.consuming)
        assert again.table == executable.flat.table
        assert [str(each) for each in again.objects] == [str(each) for each in executable.run.objects]


def kernels_of(executable: Executable) -> dict[str, Any]:
    return {kernel.name: kernel.object for kernel in executable.read().kernels}


@needs_layout
def test_programs_with_and_without_native_calls_are_stored_side_by_side(
    cache: CacheStore, monkeypatch: pytest.MonkeyPatch, flattened: list[str]
) -> None:
    """As of processes with and without SMELT_NO_LAYOUT."""
    expected = train()
    with monkeypatch.context() as patched:
        for name in ("smelt.torch_abi.boxed_calls.connect", "smelt.pipeline.cache.keys.connect"):
            patched.setattr(name, lambda: False)
        flattened.clear()
        found = train()
        assert smelt.counters["cache_hits"] == 0 and len(flattened) == 2
        assert all(torch.allclose(one, other) for one, other in zip(found, expected, strict=True))
        assert all(map(torch.equal, train(), found)) and smelt.counters["cache_hits"] == 2
    assert all(map(torch.equal, train(), expected)) and smelt.counters["cache_hits"] == 2


class Seen(TorchDispatchMode):
    """Sees every operator, and changes none."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_a_mode_has_files_of_its_own() -> None:
    """Under one no native call is tried, so that tables may have fewer of them."""
    without = environment_key(Options())
    with Seen():
        assert environment_key(Options()) != without
    assert environment_key(Options()) == without
