"""`smelt.explain`: each graph's lines, kernels, saved bytes and guards in words; what to change; the same as data."""

import json
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.base.events import collect
from smelt.explain.guard_words import in_words
from smelt.ir.call_contract import Phase, phase_of
from smelt.ir.provenance import origin_of


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.factor, self.names = nn.Linear(8, 8), 3, ["a", "b"]

    def forward(self, x: torch.Tensor, flag: bool = True) -> torch.Tensor:
        y = self.layer(x) * self.factor
        if flag and len(self.names) == 2:
            y = y.relu()
        print("a break")
        return y.softmax(-1).sum()


@pytest.fixture(scope="module")
def told() -> Any:
    return smelt.explain(Net())(torch.randn(4, 8))


def test_each_graph_says_which_lines_it_covers(told: Any) -> None:
    start = Net.forward.__code__.co_firstlineno
    assert [report.lines[__file__] for report in told.graph_reports] == [[start + 1, start + 3], [start + 5]]
    assert f"covers {__file__}, lines {start + 1}, {start + 3}" in told.text(full=True)


def test_kernels_library_calls_and_saved_bytes_are_those_of_the_graph(told: Any) -> None:
    first, second = told.graph_reports
    assert len(first.library_calls) == 2 and all("mm" in call for call in first.library_calls)
    assert len(first.kernels) == 2 and second.library_calls == [] and told.kernel_count == 4
    assert first.saved_bytes == 32  # one byte an element: relu's mask
    assert all(saved.why for saved in first.saved)


def test_guards_are_sentences(told: Any) -> None:
    lines = told.graph_reports[0].guards.lines()
    assert "`x` must stay float32 of shape (4, 8), on cpu" in lines
    assert "`self.factor` must stay 3" in lines and "`self.names` must keep 2 items" in lines
    assert "`flag` must stay True" in lines and "gradient recording must stay on" in lines
    assert lines[-1].startswith("modules, classes, hooks and globals must stay as they are (")
    assert not any("__" in line for line in lines)


def test_sizes_that_may_change_are_said_to(told: Any) -> None:
    def check(shape: Any, stride: Any) -> tuple[Any, ...]:
        return ((), (("tensor", torch.Tensor, torch.float32, "cpu", shape, stride, True),), (), True, "x")

    assert in_words([check((None, 8), (8, 1))]).values == (
        "`x` must stay float32 of shape (any, 8), on cpu, with gradients",
    )
    assert "strides (1, 4)" in in_words([check((4, 8), (1, 4))]).values[0]


def test_what_to_change_names_the_break_and_the_hint(told: Any) -> None:
    (record,) = told.break_reasons
    assert told.advice == [f'{record.where}: {record.hint} ({record.code}: {record.reason}: `print("a break")`)']
    assert f"What To Change:\n  1. {record.hint}\n     {record.code}: {record.reason}\n" in str(told)
    assert smelt.explain(lambda x: x + 1)(torch.ones(2)).advice == []


def test_it_is_plain_data_too(told: Any) -> None:
    data = json.loads(json.dumps(told.to_dict()))
    assert data["graph_count"] == 2 and data["graphs"][0]["saved_bytes"] == 32
    assert data["break_reasons"][0]["line"] == Net.forward.__code__.co_firstlineno + 4


def test_a_header_is_no_guard(told: Any) -> None:
    assert "guards:" not in told.out_guards and len(told.out_guards) > 20


def test_a_compiled_graph_on_disk_is_explained_all_the_same(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_CACHE", "1")
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path))

    def f(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * 2).sum()

    x = torch.randn(4, requires_grad=True)
    smelt.compile(f)(x).backward()
    assert list(tmp_path.iterdir())
    smelt.reset()
    assert smelt.explain(f)(x).graph_reports[0].halves is not None


def test_every_operator_knows_the_line_it_comes_from() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x @ w)
        return torch.nn.functional.layer_norm(y, (4,)).sum()

    with collect() as events:
        smelt.compile(f)(torch.randn(3, 4), torch.randn(4, 4, requires_grad=True)).backward()
    (joint,) = (event.subject.traced for event in events if event.channel == "joint")  # type: ignore[attr-defined]
    origins = {node.name: origin_of(node) for node in joint.graph.nodes if node.op == "call_function"}
    assert all(origin is not None for origin in origins.values())
    lines = {name: int(origin.place.split("line ")[1].split(",")[0]) for name, origin in origins.items() if origin}
    start = f.__code__.co_firstlineno
    assert lines["mm"] == lines["relu"] == lines["threshold_backward"] == lines["mm_1"] == start + 1
    assert origins["rsqrt"] is not None and origins["rsqrt"].node == "layer_norm" and lines["rsqrt"] == start + 2
    late = [node.name for node in joint.graph.nodes if phase_of(node) is Phase.BACKWARD]
    assert {origin.node for name in late if (origin := origins[name])} == {"matmul", "relu", "layer_norm", "sum_1"}
    assert origins["threshold_backward"] is not None and origins["threshold_backward"].node == "relu"
