"""`import` inside captured code, of modules that are not loaded yet, and parts that libraries load on demand."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt

x = torch.arange(3.0)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"parts_of_{tmp_path.name}".replace("-", "_")
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").write_text("from .start import *\n")
    (folder / "start.py").write_text(
        "def by_package(x):\n    from . import late\n    return late.twice(x)\n"
        "def by_name(x):\n    from .later import thrice\n    return thrice(x)\n"
        "seen = {}\n"
        "def after_a_write(x):\n    seen['x'] = 1\n    from . import last\n    return x * last.FOUND\n"
        "def absent(x):\n    try:\n        from . import nothing_like_it\n"
        "    except ImportError:\n        return x - 1\n    return x\n"
    )
    (folder / "late.py").write_text("import torch\nONE = torch.ones(1)\ndef twice(x):\n    return x + x * ONE\n")
    (folder / "later.py").write_text("def thrice(x):\n    return x * 3\n")
    (folder / "last.py").write_text("from .start import seen\nFOUND = len(seen)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


@pytest.mark.parametrize(("function", "expected"), [("by_package", 2), ("by_name", 3)])
def test_a_module_is_loaded_while_its_caller_is_captured(package: str, function: str, expected: int) -> None:
    loaded: Any = getattr(__import__(f"{package}.start").start, function)
    compiled = smelt.compile(loaded, backend="eager", fullgraph=True)
    before = smelt.counters["recompiles"]
    torch.testing.assert_close(compiled(x), x * expected)
    torch.testing.assert_close(compiled(x + 1), (x + 1) * expected)
    assert smelt.counters["recompiles"] == before
    assert type(sys.modules.get(f"{package}.late")) in (type(sys), type(None))


def test_what_it_makes_are_tensors_of_the_program(package: str) -> None:
    start: Any = __import__(f"{package}.start").start
    smelt.compile(start.by_package, backend="eager", fullgraph=True)(x)
    assert sys.modules[f"{package}.late"].ONE.tolist() == [1.0]


def test_it_sees_what_was_written_before(package: str) -> None:
    start: Any = __import__(f"{package}.start").start
    explanation = smelt.explain(start.after_a_write, backend="eager")(x)
    assert [reason.code for reason in explanation.break_reasons] == ["B012"]
    assert sys.modules[f"{package}.last"].FOUND == 1


def test_what_cannot_be_imported_is_pythons_to_say(package: str) -> None:
    start: Any = __import__(f"{package}.start").start
    torch.testing.assert_close(smelt.compile(start.absent, backend="eager")(x), x - 1)


def test_a_library_loads_its_parts_when_asked() -> None:
    def exporting(x: torch.Tensor) -> torch.Tensor:
        return x if torch.onnx.is_in_onnx_export() else x + 1

    torch.testing.assert_close(smelt.compile(exporting, backend="eager", fullgraph=True)(x), x + 1)
