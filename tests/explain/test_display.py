"""An explanation on a terminal, in a notebook and in a REPL."""

import io
import sys
from typing import Any

import pytest
import torch
from rich.console import Console

import smelt
from smelt.cli import main


def troubled(x: torch.Tensor, mode: str) -> torch.Tensor:
    y = x.sin()
    print("a line")
    return y * 2 if mode == "a" else y


@pytest.fixture(scope="module")
def told() -> Any:
    explaining = smelt.explain(troubled)
    explaining(torch.randn(3), "a")
    return explaining(torch.randn(3), "b")


def printed(told: Any, **settings: Any) -> str:
    out = io.StringIO()
    Console(file=out, width=400, **settings).print(told)  # wider than any line, however long the path of this file is
    return out.getvalue()


def test_rich_prints_what_matters(told: Any) -> None:
    text = printed(told)
    assert "2 graphs" in text and "1 breaks" in text
    (record, *_) = told.break_reasons
    assert record.reason in text and record.where in text and f"1. {record.hint}" in text
    (again,) = {record.reason for record in told.recompile_reasons}
    assert "Recompiled behind a graph break: " in text and again in text and again == "mode: expected 'a', got 'b'"
    assert text.index("1. ") < text.index("operators  kernels")  # what to change comes before the tables
    assert "test_display.py:17" in text and "generate" in text and "\x1b" not in text
    assert text.count("call of print") == 1  # though every version breaks there


def test_colours_are_for_terminals(told: Any) -> None:
    assert "\x1b[" in printed(told, force_terminal=True)
    assert "\x1b[3" not in printed(told, force_terminal=True, no_color=True)


def test_show_is_plain_where_there_is_no_terminal(
    told: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told.show()
    assert capsys.readouterr().out == f"{told}\n"

    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    for name in ("NO_COLOR", "CI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    for variable, is_colored in ((None, True), ("NO_COLOR", False)):
        if variable is not None:
            monkeypatch.setenv(variable, "1")
        screen = Screen()
        monkeypatch.setattr(sys, "stdout", screen)
        told.show()
        assert "What to change" in screen.getvalue() and ("\x1b[1;32m" in screen.getvalue()) is is_colored
    monkeypatch.setitem(sys.modules, "rich.console", None)
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    told.show()
    assert screen.getvalue() == f"{told}\n"


def test_a_repl_shows_one_line_and_a_notebook_a_fold(told: Any) -> None:
    assert repr(told) == "<Explanation: 2 graphs, 1 break, 2 kernels; print() for a summary>"
    page = told._repr_html_()
    assert page.startswith("<details><summary>smelt: ") and "mode: expected &#x27;a&#x27;" in page


def test_the_command_prints_all_on_request(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "program.py"
    program.write_text("import torch\ndef example():\n    return torch.sin, (torch.ones(3),)\n")
    assert main(["explain", "--full", f"{program}:example"]) == 0
    assert "Out Guards:" in capsys.readouterr().out
