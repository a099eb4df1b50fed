"""`smelt doctor` is content where all is there, and says what is missing where it is not."""

import sys

import pytest

import smelt
from smelt.cli import main
from smelt.explain.doctor import examine


def test_all_is_well_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "FAIL" not in out and "ok    self-check" in out and "ok    llvmlite" in out


def test_a_missing_code_generator_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "FAIL  llvmlite" in out and "pip install llvmlite" in out


def test_a_wrong_result_fails_the_self_check() -> None:
    def crooked(model: object, *, backend: str, options: dict[str, object]) -> object:
        compiled = smelt.compile(model, backend=backend, options=options)  # type: ignore[arg-type]
        return (lambda *args: compiled(*args) * 1.001) if backend == "llvm" else compiled

    checks = {check.name: check for check in examine(crooked)}
    assert checks["self-check"].good is False and "WRONG" in checks["self-check"].text
