"""The guides on guards: what is assumed of shapes, types, values; what happens when it no longer holds."""

import pytest
import torch
from torch.nn import functional as F

import smelt
from smelt.base.events import collect


def recompiles(events: list[object]) -> list[str]:
    return [event.text for event in events if event.channel == "recompiles"]  # type: ignore[attr-defined]


def dynamic_fn(x: torch.Tensor, threshold: float) -> torch.Tensor:
    if x.sum() > threshold:
        return x * 2
    else:
        return x + 1


def shape_dependent(x: torch.Tensor) -> torch.Tensor:
    if x.shape[0] > 100:
        return x.sum()
    return x.mean()


def value_dependent(x: torch.Tensor, mode: str) -> torch.Tensor:
    if mode == "train":
        return F.dropout(x)
    else:
        return x


def example(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def test_both_branches_on_data_are_right_and_compiled_once_each() -> None:
    compiled = smelt.compile(dynamic_fn)
    high, low = torch.full((5,), 2.0), torch.full((5,), 0.4)
    for x in (high, low, high, low):
        torch.testing.assert_close(compiled(x, 5), dynamic_fn(x, 5))
    assert smelt.counters["graphs"] == 3  # up to the branch, and one for each way


def test_a_branch_on_the_shape_is_no_break() -> None:
    compiled = smelt.compile(shape_dependent, fullgraph=True)
    for rows in (128, 100, 128, 7):
        x = torch.randn(rows)
        torch.testing.assert_close(compiled(x), shape_dependent(x))


def test_type_and_dtype_are_guarded() -> None:
    compiled = smelt.compile(example)
    for x in (torch.randn(4), torch.randn(4).double(), torch.arange(4), torch.randn(4)):
        got = compiled(x)
        assert got.dtype == x.dtype
        assert torch.equal(got, x + 1)
    assert smelt.counters["graphs"] == 3
    assert compiled(4) == 5


def test_a_value_is_guarded() -> None:
    compiled = smelt.compile(value_dependent, fullgraph=True)
    x = torch.ones(1000)
    assert compiled(x, "train").eq(0).any()
    assert torch.equal(compiled(x, "eval"), x)
    assert compiled(x, "train").eq(0).any()


def test_the_same_shape_passes_the_guard_and_another_compiles_again() -> None:
    compiled = smelt.compile(example)
    with collect() as events:
        compiled(torch.randn(10))
        assert smelt.counters["graphs"] == 1
        compiled(torch.randn(10))
        assert smelt.counters["graphs"] == 1 and not recompiles(events)
        x = torch.randn(20)
        assert torch.equal(compiled(x), x + 1)
    assert smelt.counters["graphs"] == 2 and smelt.counters["recompiles"] == 1
    (told,) = recompiles(events)
    assert "x" in told and "10" in told and "20" in told  # which input, what was expected, what came


def test_guards_can_be_seen_in_the_log(capfd: pytest.CaptureFixture[str]) -> None:
    from smelt.base.events import set_printed

    set_printed("guards,recompiles")
    try:
        compiled = smelt.compile(example, backend="eager")
        compiled(torch.randn(10))
        compiled(torch.randn(20))
    finally:
        set_printed("")
    text = capfd.readouterr().err
    assert "x: Tensor float32[10]" in text
    assert "[smelt recompiles]" in text


def test_two_shapes_of_a_matrix() -> None:
    compiled = smelt.compile(example)
    compiled(torch.randn(32, 128))
    compiled(torch.randn(64, 128))
    assert smelt.counters["recompiles"] == 1
