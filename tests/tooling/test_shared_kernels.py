"""Machine code is made once for all runs of the tests and their processes, and made anew for another text or target."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

import smelt.codegen.build  # noqa: F401  offers the target "cpu"
from smelt.codegen.llvm import compile as engine
from smelt.codegen.loops.builder import Builder
from smelt.device import find
from smelt.ir.loops import Module
from tests.shared_kernels import begin, end, share

TEXT = "define i64 @k0() {\n  ret i64 7\n}\n"


def test_what_llvm_made_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, asked = find("cpu"), list[str]()

    def unshared(text: str, target: object) -> bytes:
        asked.append(text)
        return f"{text} {target}".encode()

    monkeypatch.setattr(engine, "_object", unshared)
    share(tmp_path)
    share(tmp_path)  # twice is once
    made = engine._object(TEXT, target)
    assert engine._object(TEXT, target) == made and asked == [TEXT]
    other = TEXT.replace("7", "8")
    assert engine._object(other, target) != made and asked == [TEXT, other]
    engine._object(TEXT, replace(target, features="+none"))
    assert asked == [TEXT, other, TEXT]
    assert len(list(tmp_path.iterdir())) == 3  # no part of a file stays behind


def test_what_is_shared_can_be_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ctypes

    monkeypatch.setattr(engine, "_object", getattr(engine._object, "unshared", engine._object))
    share(tmp_path)
    b = Builder(find("cpu"))
    b.give(b.const("i64", 7))
    for _ in range(2):
        (built,) = engine.load([Module((b.function("k0", (), "entry", result="i64"),))], find("cpu"))
        assert ctypes.CFUNCTYPE(ctypes.c_int64)(built.address("k0"))() == 7
    assert len(list(tmp_path.iterdir())) == 1


def test_another_way_to_call_llvm_has_code_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = tmp_path / "compile.py"
    changed.write_text("level = 3")
    folder = tmp_path / "kernels"
    folder.mkdir()
    for file in (engine.__file__, str(changed)):
        monkeypatch.setattr(engine, "__file__", file)
        monkeypatch.setattr(engine, "_object", lambda text, target: b"code")
        share(folder)
        engine._object(TEXT, find("cpu"))
    assert len(list(folder.iterdir())) == 2


def test_a_file_that_was_cut_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_object", lambda text, target: b"code")
    share(tmp_path)
    for kept in (0, 10, 34):
        assert engine._object(TEXT, find("cpu")) == b"code"
        (file,) = tmp_path.iterdir()
        file.write_bytes(file.read_bytes()[:kept])
    assert engine._object(TEXT, find("cpu")) == b"code"


def test_what_is_old_is_removed(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    cache = pytest.Cache(tmp_path, pytestconfig, _ispytest=True)
    folder = begin(cache)
    old, new = folder / "old", folder / "new"
    for file in (old, new):
        file.write_bytes(b"code")
    os.utime(old, times=(time.time() - 8 * 24 * 3600,) * 2)
    end(folder)
    assert begin(cache) == folder and list(folder.iterdir()) == [new]


def test_without_a_cache_nothing_is_kept(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for cache in (None, pytest.Cache(tmp_path / "file", pytestconfig, _ispytest=True)):
        folder = begin(cache)
        (folder / "code").touch()
        end(folder)
        assert not folder.exists()
