"""A world in which captures are kept: modules written to files, imported, run compiled, and imported anew.

`Worlds.run(text, …)` is one process, so to speak: the module is a new one, nothing compiled is known, and only what was
kept on the disk is there. Graphs are run by PyTorch, so that what comes out is eager's to the last bit.
"""

import importlib.util
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import smelt
from smelt.base.options import config
from smelt.capture import CompiledRegion
from smelt.capture.persist import deserialize, serialize
from smelt.ir.graph import PersistentCompiler, Traced
from smelt.ir.serialize import CannotStore
from smelt.pipeline.cache.graph_json import dump, has_numbers, load


class Plainly:
    """A backend that finds its graphs again and has PyTorch run them."""

    def __call__(self, traced: Traced) -> Callable[..., tuple[object, ...]]:
        run = traced.plainly()

        def call(*inputs: Any) -> tuple[object, ...]:
            found = run(*inputs)
            return tuple(found) if isinstance(found, tuple | list) else (found,)

        return call

    def environment(self) -> str:
        return "tests"

    def serialize(self, traced: Traced) -> Any:
        try:
            rows = dump(traced.graph)
        except CannotStore:
            return None
        return None if has_numbers(rows) else rows

    def load(self, data: Any, undoing: Any) -> tuple[Callable[..., tuple[object, ...]], Callable[[], Traced]]:
        traced = replace(load(data), undoing=undoing)
        return self(traced), lambda: traced


assert isinstance(Plainly(), PersistentCompiler)


@dataclass
class Ran:
    """What a run yielded, and how many of its captures were loaded, made anew."""

    result: Any
    loaded: int
    graphs: int


@dataclass
class Worlds:
    """Where the modules of a test are written."""

    folder: Path

    def run(self, text: str, arguments: Callable[[ModuleType], tuple[Any, ...]], change: Any = None, **how: Any) -> Ran:
        """`program(*arguments)` of a module with this text, compiled; its result must be plain Python's.

        `change(module)` is what else is different in this process.
        """
        plain, mine = (self._imported(text, change) for _ in range(2))
        wanted = plain.program(*arguments(plain))
        smelt.reset()
        got = CompiledRegion(Plainly(), **how).call(mine.program, *arguments(mine))
        assert_same(got, wanted)
        return Ran(got, smelt.counters["captures_loaded"], smelt.counters["graphs"])

    def _imported(self, text: str, change: Any) -> ModuleType:
        path = self.folder / "kept_world.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location("kept_world", path)
        assert spec is not None and spec.loader is not None
        sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
        module = importlib.util.module_from_spec(spec)
        sys.modules["kept_world"] = module
        spec.loader.exec_module(module)
        sys.dont_write_bytecode = before
        if change is not None:
            change(module)
        return module


def assert_same(got: Any, wanted: Any) -> None:
    assert type(got).__qualname__ == type(wanted).__qualname__
    if isinstance(wanted, torch.Tensor):
        assert torch.equal(got, wanted) and got.requires_grad == wanted.requires_grad
    elif isinstance(wanted, tuple | list):
        assert len(got) == len(wanted)
        for one, other in zip(got, wanted, strict=True):
            assert_same(one, other)
    elif isinstance(wanted, dict):
        assert list(got) == list(wanted)
        for one, other in zip(got.values(), wanted.values(), strict=True):
            assert_same(one, other)
    elif hasattr(wanted, "__dict__"):
        assert_same(vars(got), vars(wanted))
    else:
        assert got == wanted


@pytest.fixture
def worlds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worlds]:
    """Files are all of one age here: what has changed has to be told by guards and digests."""
    monkeypatch.setenv("SMELT_CACHE", "1")
    monkeypatch.setattr(config, "disk_cache_dir", str(tmp_path / "cache"))
    for module in (serialize, deserialize):
        monkeypatch.setattr(module, "stamp_of", lambda file: [1, 1])
    yield Worlds(tmp_path)
    sys.modules.pop("kept_world", None)
