"""Machine code is made once for all processes of a run of the tests, and made anew for another text or target."""

from dataclasses import replace
from pathlib import Path

import pytest

import smelt.codegen.build  # noqa: F401  offers the target "cpu"
from smelt.codegen.llvm import compile as engine
from smelt.device import find
from tests.shared_kernels import share

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
    for _ in range(2):
        (built,) = engine.load([TEXT], find("cpu"))
        assert ctypes.CFUNCTYPE(ctypes.c_int64)(built.address("k0"))() == 7
    assert len(list(tmp_path.iterdir())) == 1
