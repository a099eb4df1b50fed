"""What people read first: a summary with what to change, by the names they gave; the rest on request."""

import functools
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.base.events import collect
from smelt.cli import main
from smelt.explain.report_code import Codes
from smelt.explain.report_data import report_data


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, inputs: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        hidden = self.block(inputs)
        return hidden.relu() * scale


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def bare(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    return wrapper


class Decorated(Model):
    forward = wrapped(wrapped(Model.forward))


class Undeclared(Model):
    forward = bare(Model.forward)


class Inherited(Model):
    pass


def three_breaks(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    print("first")
    total = y.sum()
    if total > 0:
        y = y * 2
    print("again")
    return y + 1


def explained(function: Any, *calls: tuple[Any, ...], **words: Any) -> Any:
    explaining = smelt.explain(function, backend="eager")
    return [explaining(*call, **words) for call in calls][-1]


def test_what_to_change_comes_before_the_rest_and_guards_only_on_request() -> None:
    told = explained(three_breaks, (torch.ones(4),))
    lines = str(told).splitlines()
    heads = [line.partition(":")[0] for line in lines if not line.startswith(" ")]
    assert heads.index("What To Change") < heads.index("Graphs") and len(lines) < 30
    assert not {"Ops per Graph", "Out Guards", "Guards", "Break Reasons"} & set(heads)
    assert "--full" in lines[-2] and "--guards" in lines[-2]
    full, guards = told.text(full=True), told.text(guards=True)
    for head in ("What To Change", "Graphs", "Break Reasons", "Ops per Graph", "Compile Times", "Guards", "Out Guards"):
        assert f"\n{head}:" in full
    assert full.index("\nOps per Graph:") < full.index("\nOut Guards:")
    assert "\nOut Guards:" in guards and "`x` must stay" in guards and "\nOps per Graph:" not in guards


def test_a_large_model_has_a_summary_of_one_screen() -> None:
    model = nn.Transformer(8, 2, 2, 2, 16, dropout=0.0, batch_first=True)
    told = explained(model, (torch.randn(2, 3, 8), torch.randn(2, 3, 8)))
    assert len(str(told).splitlines()) < 24 < 200 < len(told.text(full=True).splitlines())
    assert "Graph 1: Transformer.forward: " in str(told) and max(map(len, str(told).splitlines())) < 200


def test_an_advice_is_given_once_with_all_its_lines_and_the_code_there() -> None:
    told = explained(three_breaks, (torch.ones(4),), (torch.ones(5),))
    start = three_breaks.__code__.co_firstlineno
    moving, deciding, _ = told.advices
    printed, decided = ([(cause.line - start, cause.code) for cause in each.causes] for each in (moving, deciding))
    assert printed == [(2, 'print("first")'), (6, 'print("again")')] and decided == [(4, "total > 0")]
    assert str(told).count(moving.hint) == 1 and f"{__file__}:{start + 4} in three_breaks: total > 0" in str(told)
    assert "`total > 0`" in told.advice[1]


def test_a_break_inside_a_library_is_shown_at_the_line_that_called_it() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch.testing.assert_close(y, y)
        return y.cos()

    (advice, *_) = explained(f, (torch.ones(3),)).advices
    assert all(cause.file == __file__ for cause in advice.causes)
    assert advice.causes[0].line == f.__code__.co_firstlineno + 2


def test_operators_are_printed_by_name() -> None:
    def f(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        rows = torch.nn.functional.embedding(torch.arange(3), table)
        return torch.addmm(x, rows, rows.view(3, 3)) + torch.fft.fft(x).real

    told = explained(f, (torch.ones(3, 3), torch.ones(5, 3)))
    names = told.graph_reports[0].op_names
    assert {"torch.nn.functional.embedding", "torch.arange", "torch.addmm", "Tensor.view", "operator.add"} <= set(names)
    assert "torch.fft.fft" in names
    assert told.to_dict()["graphs"][0]["ops"] == names
    texts = (told.text(full=True), str(told.to_dict()))
    assert not any(re.search(r"<(built-in|function|method)|0x[0-9a-f]{4}", text) for text in texts)


@pytest.mark.parametrize("cls", [Model, Decorated, Undeclared, Inherited])
@pytest.mark.parametrize("by", ["module", "call", "_call_impl"])
def test_a_graph_is_named_by_the_users_module(cls: type[nn.Module], by: str) -> None:
    model = cls()
    function: Any = {"module": model, "call": model.__call__, "_call_impl": model._call_impl}[by]
    told = explained(function, (torch.ones(2, 4),), (torch.ones(3, 4),))
    assert [report.record.function for report in told.graph_reports] == [f"{cls.__name__}.forward"] * 2
    assert [record.function for record in told.recompile_reasons] == [f"{cls.__name__}.forward"]


@pytest.mark.parametrize("cls", [Model, Decorated])
@pytest.mark.parametrize("by", ["module", "call"])
def test_advice_and_guards_name_the_users_argument(cls: type[nn.Module], by: str) -> None:
    model = cls()
    function: Any = model if by == "module" else model.__call__
    told = explained(function, (torch.ones(2, 4),), (torch.ones(3, 4),))
    (record,) = told.recompile_reasons
    assert record.reason == "inputs: expected shape (2, 4), got (3, 4)" and "mark_dynamic(inputs, 0)" in record.hint
    assert record.file == __file__ and record.line == Model.forward.__code__.co_firstlineno
    lines = told.graph_reports[0].guards.lines()
    assert "`inputs` must stay float32 of shape (2, 4), on cpu" in lines
    assert any(line.startswith("`self.block.layers[1].weight` must stay float32") for line in lines) or by == "call"
    told = explained(function, (torch.ones(2, 4),), scale=2.0)
    assert "`scale` must stay 2.0" in told.graph_reports[0].guards.lines()


def test_a_plain_decorated_function_is_named_too() -> None:
    @wrapped
    def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
        return x * factor

    told = explained(scaled, (torch.ones(3), 2.0), (torch.ones(3), 3.0))
    (record,) = told.recompile_reasons
    assert record.reason == "factor: expected 2.0, got 3.0" and record.function.endswith("<locals>.scaled")


def test_lines_that_only_call_submodules_are_captured_lines() -> None:
    model = Model()
    with collect() as events:
        smelt.compile(model, backend="eager")(torch.ones(2, 4))
    start, inner = Model.forward.__code__.co_firstlineno, Block.forward.__code__.co_firstlineno
    (graph,) = report_data(events, "", Codes())["graphs"]
    assert graph["lines"]["0"] == [inner + 2, start + 1, start + 2]


def test_the_command_takes_guards(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "program.py"
    program.write_text("import torch\ndef example():\n    return torch.sin, (torch.ones(3),)\n")
    assert main(["explain", "--guards", f"{program}:example"]) == 0
    printed = capsys.readouterr().out
    assert "\nOut Guards:" in printed and "\nOps per Graph:" not in printed
    assert main(["explain", f"{program}:example"]) == 0
    assert "Guards:" not in capsys.readouterr().out
