"""A function with five kinds of breaks and three causes of recompiles: each is named with its line; the hints work."""

from typing import Any

import pytest
import torch

import smelt
from smelt.capture.guards.recompiles import hint_for
from smelt.explain.explanation import Explanation


class Counter:
    calls = 0

    def __init__(self) -> None:
        self.count = 0


def troubled(x: torch.Tensor, scale: float) -> torch.Tensor:
    y = torch.sin(x) * scale
    print("a line about", y.shape)  # 1: only Python can print
    if y.sum() > 100:  # 2: a tensor decides
        y = y - 1
    y = y / y.max().item()  # 3: the data of a tensor as a number
    Counter.calls = Counter.calls + 1  # 4: an attribute of a class
    z = torch.cos(y)
    smelt.graph_break()  # 5: asked for
    return torch.exp(z) + y


counter = Counter()


def mended(x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Size]:
    y = torch.sin(x) * scale
    y = torch.where(y.sum() > 100, y - 1, y)
    y = y / y.max()
    counter.count += 1
    z = torch.cos(y)
    return torch.exp(z) + y, y.shape  # the caller prints


FIRST = troubled.__code__.co_firstlineno
CALLS = ((torch.rand(4, 3), 1.0), (torch.rand(4, 3), 2.0), (torch.rand(6, 3), 2.0),
         (torch.rand(6, 3).double(), 2.0))  # fmt: skip


@pytest.fixture(scope="module")
def told() -> Explanation:
    explaining = smelt.explain(troubled)
    for call in CALLS[:-1]:
        explaining(*call)
    return explaining(*CALLS[-1])


def test_each_break_is_named_with_its_cause_and_line(told: Explanation) -> None:
    found = {(record.code, record.line - FIRST) for record in told.break_reasons}
    assert found == {("B002", 2), ("B003", 3), ("B004", 5), ("B005", 6), ("B001", 8)}
    text = told.text(full=True)
    for record in told.break_reasons:
        assert record.file == __file__ and record.hint
        assert f"Reason: {record.code}: {record.reason}" in text
        assert f"{__file__}:{record.line} in troubled" in text
        assert any(line.startswith(f"{record.where}: {record.hint} ({record.code}: ") for line in told.advice)


def test_each_cause_of_a_recompile_is_named_with_its_line(told: Explanation) -> None:
    entered = [record for record in told.recompile_reasons if record.line == FIRST]
    assert [record.reason for record in entered] == [
        "scale: expected 1.0, got 2.0",
        "x: expected shape (4, 3), got (6, 3)",
        "x: expected dtype torch.float32, got torch.float64",
    ]
    assert [record.version for record in entered] == [2, 3, 4] and all(r.file == __file__ for r in entered)
    assert all(record.function == "troubled" and record.file == __file__ for record in told.recompile_reasons)
    text = told.text(full=True)
    hints = ("pass it as a tensor", "smelt.mark_dynamic(x, 0)", "x.to(torch.float32)")
    for record, hint in zip(entered, hints, strict=True):
        assert hint in record.hint
        assert f"Reason: {record.reason}\n    Hint: {record.hint}\n    Function: {__file__}:{FIRST} in troubled" in text


def test_what_to_change_leaves_out_what_goes_with_the_breaks(told: Explanation) -> None:
    assert any(record.resumed for record in told.recompile_reasons)
    assert len(told.advice) == 5 + 3
    resumed = {record.where for record in told.recompile_reasons if record.resumed}
    breaks = {record.where for record in told.break_reasons}
    assert {line.rsplit(": ", 2)[0].split(": ")[0] for line in told.advice} == {*breaks, f"{__file__}:{FIRST}"}
    assert resumed - breaks  # parts behind breaks that begin at lines of their own


def test_following_the_hints_leaves_none() -> None:
    explaining = smelt.explain(mended)
    for x, scale in CALLS:
        x = x.to(torch.float32)
        smelt.mark_dynamic(x, 0)
        told = explaining(x, torch.tensor(scale))
    assert told.graph_count == 1 and told.graph_break_count == 0
    assert told.recompile_reasons == () and told.skipped_frames == () and told.advice == []
    assert "Recompile Count: 0" in str(told) and "Recompile Reasons" not in told.text(full=True)
    assert counter.count == len(CALLS)


def test_both_compute_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    compiled = smelt.compile(mended, fullgraph=True)
    for x, scale in CALLS[:3]:
        torch.testing.assert_close(compiled(x, torch.tensor(scale))[0], troubled(x, scale))


REASONS = {
    "x: expected shape (3, 4), got (5, 4, 1)": "reshape `x`",
    "x: expected shape (3, 4), got (5, 6)": "smelt.mark_dynamic(x, 0), smelt.mark_dynamic(x, 1)",
    "x: expected stride (4, 1), got (1, 3)": "x.contiguous()",
    "x: expected requires_grad False, got True": "x.detach()",
    "self.training: expected True, got False": "train() and eval()",
    "grad mode: expected True, got False": "one grad mode",
    "self.names: expected length 2, got 3": "keep its length",
    "flag: expected True, got False": "a function for each of its values",
    "mode: expected 'a', got 'b'": "a function for each of its values",
    "step: expected 3, got 4": "pass it as a tensor",
    "expected x.shape[0] == y.shape[0], got x.shape[0] = 5, y.shape[0] = 6": "decide it outside",
}


@pytest.mark.parametrize("reason", REASONS)
def test_every_kind_of_cause_has_a_hint(reason: str) -> None:
    assert REASONS[reason] in hint_for(reason)


def kinds() -> Any:
    def f(x: torch.Tensor, flag: bool = True, mode: str = "a", items: tuple[int, ...] = (1, 2)) -> torch.Tensor:
        return x * len(items) if flag and mode == "a" else x

    x = torch.rand(3, 4)
    others = ((x, False), (x, True, "b"), (x, True, "a", (1, 2, 3)), (x.t(),), (x[0],), (x.clone().requires_grad_(),))
    return f, ((x,), *others)


def test_the_hints_are_for_the_reasons_guards_give() -> None:
    f, calls = kinds()
    for call in calls[1:]:
        explaining = smelt.explain(f, backend="eager")
        explaining(*calls[0])
        (record,) = explaining(*call).recompile_reasons
        assert record.hint != "keep what it depends on unchanged", record
