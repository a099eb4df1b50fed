"""The guides on graph breaks: where a graph ends, why, and that the answer stays right."""

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import smelt

SEEN: list[torch.Tensor] = []


def line_of(function: Callable[..., Any], offset: int) -> int:
    """The number of a line of the function, counted from its `def`."""
    return function.__code__.co_firstlineno + offset


def example_with_break(x: torch.Tensor) -> torch.Tensor:
    a = x + 1
    b = a * 2
    print(b.shape)
    c = b - 1
    return c


def function_with_break(x: torch.Tensor) -> torch.Tensor:
    a = x + 1
    b = a * 2
    print(f"sum: {b.sum()}")
    c = b - 1
    return c


def function_no_break(x: torch.Tensor) -> torch.Tensor:
    a = x + 1
    b = a * 2
    c = b - 1
    return c


def function_with_breaks(x: torch.Tensor) -> torch.Tensor:
    a = x + 1
    print("Debug:", a.shape)
    b = a * 2
    return b


def bad_example(x: torch.Tensor) -> torch.Tensor:
    a = x + 1
    print(a.shape)
    b = a * 2
    print(b.shape)
    c = b - 1
    return c


def many_breaks(x: torch.Tensor) -> torch.Tensor:
    x = x + 1
    print(x)
    x = x * 2
    print(x)
    x = x - 1
    return x


def test_print_in_the_middle_gives_two_graphs_and_one_break(capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.randn(4, 4)
    explanation = smelt.explain(example_with_break)(x)
    assert capsys.readouterr().out == "torch.Size([4, 4])\n"
    assert explanation.graph_count == 2
    assert explanation.graph_break_count == 1
    assert explanation.ops_per_graph == [[operator.add, operator.mul], [operator.sub]]
    (reason,) = explanation.break_reasons
    assert "print" in reason.reason
    assert f"test_graph_breaks.py:{line_of(example_with_break, 3)}" in reason.stack[-1]
    assert "print" in str(explanation) and "Hint" in explanation.text(full=True)


def test_print_of_a_formatted_tensor_is_one_break_too(capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.randn(4, 4)
    compiled = smelt.compile(function_with_break, fullgraph=False)
    torch.testing.assert_close(compiled(x), function_no_break(x))
    text = capsys.readouterr().out
    assert float(text.removeprefix("sum: ")) == pytest.approx(float(((x + 1) * 2).sum()))
    explanation = smelt.explain(function_with_break)(x)
    assert explanation.graph_count == 2
    assert explanation.graph_break_count == 1
    assert explanation.ops_per_graph == [[operator.add, operator.mul, "sum"], [operator.sub]]
    (reason,) = explanation.break_reasons
    assert "print" in reason.reason
    assert f"test_graph_breaks.py:{line_of(function_with_break, 3)}" in reason.stack[-1]


def test_printing_another_number_each_time_compiles_nothing_new(capsys: pytest.CaptureFixture[str]) -> None:
    compiled = smelt.compile(function_with_break)
    for _ in range(12):
        x = torch.randn(3)
        torch.testing.assert_close(compiled(x), function_no_break(x))
    assert len(capsys.readouterr().out.splitlines()) == 12
    assert smelt.counters["graphs"] == 2 and smelt.counters["recompiles"] == 0


def test_without_the_print_it_is_one_graph() -> None:
    explanation = smelt.explain(function_no_break, fullgraph=True)(torch.randn(4))
    assert (explanation.graph_count, explanation.graph_break_count, explanation.op_count) == (1, 0, 3)


def test_explain_shows_the_two_graphs(capsys: pytest.CaptureFixture[str]) -> None:
    explanation = smelt.explain(function_with_breaks)(torch.randn(10))
    assert capsys.readouterr().out == "Debug: torch.Size([10])\n"
    assert explanation.ops_per_graph == [[operator.add], [operator.mul]]


def test_two_prints_are_three_graphs_and_two_breaks(capsys: pytest.CaptureFixture[str]) -> None:
    for function in (bad_example, many_breaks):
        explanation = smelt.explain(function)(torch.randn(2))
        assert explanation.graph_count == 3
        assert explanation.graph_break_count == 2
        assert [len(ops) for ops in explanation.ops_per_graph] == [1, 1, 1]
        assert all("print" in reason.reason for reason in explanation.break_reasons)


def test_many_breaks_are_still_right(capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.randn(3)
    expected = many_breaks(x)
    printed = capsys.readouterr().out
    assert torch.equal(smelt.compile(many_breaks)(x), expected)
    assert capsys.readouterr().out == printed


def appends_to_a_global(x: torch.Tensor) -> torch.Tensor:
    a = x + 1
    SEEN.append(a)
    return a * 2


def test_appending_to_a_global_list_happens_and_needs_no_break() -> None:
    SEEN.clear()
    x = torch.randn(3)
    compiled = smelt.compile(appends_to_a_global)
    for times in (1, 2, 3):
        torch.testing.assert_close(compiled(x), (x + 1) * 2)
        assert len(SEEN) == times
    assert all(torch.equal(seen, x + 1) for seen in SEEN)
    assert smelt.counters["graph_breaks"] == 0


def goes_through_numpy(x: torch.Tensor) -> torch.Tensor:
    a = x + 1
    array = a.numpy()
    return torch.from_numpy(array * 2) - 1


def test_numpy_is_followed_and_the_answer_is_right() -> None:
    x = torch.randn(3)
    torch.testing.assert_close(smelt.compile(goes_through_numpy, fullgraph=True)(x), (x + 1) * 2 - 1)
    assert smelt.explain(goes_through_numpy)(x).graph_break_count == 0


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))
        self.bias = nn.Parameter(torch.randn(3))

    def forward(self, x: torch.Tensor, attr_name: str) -> torch.Tensor:
        value: torch.Tensor = getattr(self, attr_name)
        return x * value


def test_an_attribute_by_name_needs_no_break() -> None:
    model = Named()
    compiled = smelt.compile(model, fullgraph=True)
    x = torch.randn(3)
    torch.testing.assert_close(compiled(x, "weight"), x * model.weight)
    torch.testing.assert_close(compiled(x, "bias"), x * model.bias)


def loops_as_often_as_a_tensor_says(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    x = x * 2
    for _ in range(n.item()):  # type: ignore[arg-type]
        x = x + 1
    return x


def test_item_breaks_and_the_rest_is_compiled() -> None:
    x = torch.randn(3)
    compiled = smelt.compile(loops_as_often_as_a_tensor_says)
    for n in (3, 0, 5, 3):
        torch.testing.assert_close(compiled(x, torch.tensor(n)), x * 2 + n)
    explanation = smelt.explain(loops_as_often_as_a_tensor_says)(x, torch.tensor(3))
    assert explanation.graph_break_count == 1
    assert "item" in explanation.break_reasons[0].reason
    # The first one has the product, and the copy that the number is taken from.
    assert [len(ops) for ops in explanation.ops_per_graph] == [3, 3]


def test_fullgraph_refuses_the_break_and_names_print() -> None:
    with pytest.raises(smelt.GraphBreakError, match="print"):
        smelt.compile(function_with_breaks, fullgraph=True)(torch.randn(2))
