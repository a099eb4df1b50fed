"""The guides on `explain`: what was captured, in counts, operators, guards and times."""

import operator

import torch

import smelt


def my_function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = x + y
    return z * 2


def example_function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    a = x + y
    b = a * 2
    c = torch.sin(b)
    return c


def test_two_operators_are_one_graph_without_a_break() -> None:
    explanation = smelt.explain(my_function)(torch.randn(10), torch.randn(10))
    assert explanation.graph_count == 1
    assert explanation.graph_break_count == 0
    assert explanation.op_count == 2
    assert explanation.break_reasons == ()
    assert explanation.ops_per_graph == [[operator.add, operator.mul]]


def test_the_text_has_the_guides_headings() -> None:
    text = smelt.explain(my_function)(torch.randn(10), torch.randn(10)).text(full=True)
    for line in (
        "Graph Count: 1",
        "Graph Break Count: 0",
        "Op Count: 2",
        "Break Reasons:",
        "Ops per Graph:",
        "  Ops 1:",
        "    operator.add",
        "    operator.mul",
        "Guards:",
        "Compile Times:",
    ):
        assert line in text.splitlines()


def test_the_guards_name_both_tensors_and_the_state_of_the_process() -> None:
    guards = smelt.explain(my_function)(torch.randn(10), torch.randn(10)).out_guards
    assert "x: Tensor float32[10] stride [1] on cpu" in guards
    assert "y: Tensor float32[10] stride [1] on cpu" in guards
    assert "grad mode: == True" in guards
    assert "deterministic algorithms: == False" in guards
    assert "torch function modes: == 0" in guards


def test_three_operators_of_which_one_is_a_torch_function() -> None:
    x, y = torch.randn(10), torch.randn(10)
    torch.testing.assert_close(smelt.compile(example_function)(x, y), example_function(x, y))
    explanation = smelt.explain(example_function)(x, y)
    assert explanation.ops_per_graph == [[operator.add, operator.mul, torch.sin]]
    assert explanation.kernel_count == 1  # all three in one


def test_explain_does_not_use_what_was_compiled_before() -> None:
    x, y = torch.randn(10), torch.randn(10)
    compiled = smelt.compile(my_function)
    compiled(x, y)
    assert smelt.explain(compiled)(x, y).graph_count == 1
