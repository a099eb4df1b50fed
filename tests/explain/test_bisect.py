"""`smelt bisect` finds the rewrite that makes a result wrong, and its file shows the fault by itself."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import smelt
from smelt.base.events import collect
from smelt.base.rewrite_budget import Rewrite, RewriteBudget
from smelt.explain.bisect import bisect
from smelt.ops import registry
from tests.explain.faults import swap_subtractions_merged_with_tanh
from tests.fuse.running import fused
from tests.processes import run

X = torch.linspace(-2, 2, 64).reshape(8, 8)


def program(x: torch.Tensor, y: torch.Tensor, layer: torch.nn.Module) -> torch.Tensor:
    z = layer(x).sin() * 2
    smelt.graph_break()
    a = (z.exp() - y).tanh() + 1
    return (a.cos() * y).sum()


ARGUMENTS = (X, X.flip(0).clone().requires_grad_(), torch.nn.Linear(8, 8))


def test_a_right_program_has_no_culprit() -> None:
    assert bisect(program, ARGUMENTS, {}, smelt.compile) is None


def test_the_wrong_fusion_is_found_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    swap_subtractions_merged_with_tanh(monkeypatch)
    culprit = bisect(program, ARGUMENTS, {}, smelt.compile)
    assert culprit is not None and culprit.graph == 1
    assert culprit.rewrite is not None and culprit.rewrite.stage.endswith("fuse, group")
    assert "sub" in culprit.rewrite.what and "tanh" in culprit.rewrite.what
    assert culprit.operators == ("sub", "tanh")
    assert "made wrong by a rewrite of" in str(culprit) and "{tanh}" in str(culprit)


def test_what_is_wrong_without_a_rewrite_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    sin, cos = registry.record_of(torch.ops.aten.sin.default), registry.record_of(torch.ops.aten.cos.default)
    monkeypatch.setitem(registry._records, sin.op, replace(sin, lowering=cos.lowering))
    culprit = bisect(lambda x: x.sin() + 1, (X,), {}, smelt.compile)
    assert culprit is not None and culprit.rewrite is None and culprit.operators == ("sin",)


def test_the_file_runs_alone_and_is_content_without_the_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with monkeypatch.context() as patched:
        swap_subtractions_merged_with_tanh(patched)
        culprit = bisect(program, ARGUMENTS, {}, smelt.compile)
    assert culprit is not None
    file = tmp_path / "repro.py"
    file.write_text(culprit.source)
    ended = run(culprit.source, file=str(file))
    assert ended.returncode == 0, ended.stderr  # in a process of its own nothing is wrong with fusion
    assert "llvm        right" in ended.stdout


def test_what_a_rewrite_was_made_to_is_told_by_name() -> None:
    """Not by everything that it is computed from."""

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        wide = (x * 2 + 1).exp()
        return (wide @ w) + (wide.sin() @ w)

    for budget in range(1, 8):
        with collect() as events:
            fused(f, torch.ones(8, 8), torch.ones(8, 8), budget=budget)
        told = [event.subject.what for event in events if isinstance(event.subject, Rewrite)]
        assert all(len(what) < 80 and "(" not in what for what in told), told


def test_the_last_unit_of_fuel_is_reported() -> None:
    budget = RewriteBudget(2)
    budget.stage = "fuse"
    with collect() as events:
        assert (budget.take("a"), budget.take("b", "c"), budget.take("d")) == (True, True, False)
    assert [event.subject for event in events] == [Rewrite("fuse", "b and c")]
