"""The guides on control flow: flags, branches on data, and the three kinds of loops."""

import operator

import torch
from torch import nn

import smelt


def conditional_example(x: torch.Tensor, flag: bool) -> torch.Tensor:
    if flag:
        return x * 2
    else:
        return x + 1


def data_dependent(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return x * 2
    else:
        return x - 1


def fixed_loop(x: torch.Tensor) -> torch.Tensor:
    for _ in range(10):
        x = x + 1
    return x


def dynamic_loop(x: torch.Tensor, n: int) -> torch.Tensor:
    for _ in range(n):
        x = x + 1
    return x


def data_loop(x: torch.Tensor) -> torch.Tensor:
    while x.sum() > 0:
        x = x - 0.1
    return x


class ModelForward(nn.Module):
    """The opening example of the chapter on capture."""

    def __init__(self) -> None:
        super().__init__()
        self.linear1 = nn.Linear(4, 4)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor, use_dropout: bool = True) -> torch.Tensor:
        x = self.linear1(x)
        if use_dropout:
            x = self.dropout(x)
        x = torch.relu(x)
        return x


def test_the_flag_of_the_opening_example_is_a_guard() -> None:
    model = ModelForward().eval()
    compiled = smelt.compile(model, fullgraph=True)
    x = torch.randn(2, 4)
    for flag in (True, False, True):
        torch.testing.assert_close(compiled(x, flag), model(x, flag))
    assert smelt.counters["graphs"] == 2


def test_a_flag_compiles_one_branch_and_again_for_the_other() -> None:
    compiled = smelt.compile(conditional_example, fullgraph=True)
    x = torch.randn(3)
    for flag, graphs in ((True, 1), (True, 1), (False, 2), (True, 2), (False, 2)):
        assert torch.equal(compiled(x, flag), conditional_example(x, flag))
        assert smelt.counters["graphs"] == graphs
    assert smelt.explain(conditional_example)(x, True).ops_per_graph == [[operator.mul]]


def test_a_branch_on_data_breaks_once_and_is_right_both_ways() -> None:
    compiled = smelt.compile(data_dependent)
    for x in (torch.ones(3), -torch.ones(3), torch.ones(3)):
        assert torch.equal(compiled(x), data_dependent(x))
    explanation = smelt.explain(data_dependent)(torch.ones(3))
    assert explanation.graph_break_count == 1
    assert explanation.graph_count == 2
    (reason,) = explanation.break_reasons
    assert "branch" in reason.reason and "torch.where" in reason.hint


def test_ten_fixed_iterations_unroll_into_one_graph() -> None:
    x = torch.randn(3)
    explanation = smelt.explain(fixed_loop, fullgraph=True)(x)
    assert explanation.graph_count == 1
    assert explanation.ops_per_graph == [[operator.add] * 10]
    assert explanation.kernel_count == 1
    torch.testing.assert_close(smelt.compile(fixed_loop)(x), fixed_loop(x))


def test_a_number_of_iterations_from_outside_unrolls_per_number() -> None:
    compiled = smelt.compile(dynamic_loop, fullgraph=True)
    x = torch.randn(3)
    for n in (4, 4, 0, 7, 4):
        torch.testing.assert_close(compiled(x, n), dynamic_loop(x, n))
    assert smelt.counters["recompiles"] == 2  # for 0 and for 7
    assert smelt.explain(dynamic_loop)(x, 4).ops_per_graph == [[operator.add] * 4]


def test_a_while_on_a_tensor_breaks_and_is_right() -> None:
    compiled = smelt.compile(data_loop)
    for start in (0.35, -1.0, 0.85):
        x = torch.full((3,), start)
        torch.testing.assert_close(compiled(x), data_loop(x))
    explanation = smelt.explain(data_loop)(torch.full((3,), 0.35))
    assert explanation.graph_break_count >= 1
    assert all("branch" in reason.reason for reason in explanation.break_reasons)
    assert explanation.graph_count == 2  # the test before the first round, and one round: not one per iteration


class BadForTrace(nn.Module):
    """The guide's model that tracing gets wrong: it would keep the branch it saw first."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor, use_relu: bool) -> torch.Tensor:
        x = self.conv(x)
        if use_relu:
            x = torch.relu(x)
        return x


def test_the_branch_that_tracing_would_freeze_is_taken_anew() -> None:
    model = BadForTrace()
    compiled = smelt.compile(model, fullgraph=True)
    x = torch.randn(1, 3, 8, 8)
    assert (compiled(x, True) >= 0).all()
    without = compiled(x, False)
    assert (without < 0).any()
    torch.testing.assert_close(without, model(x, False))
