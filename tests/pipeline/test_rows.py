"""The rows of the compiler's tables: the printed map, and optional rows switched off by the budget."""

import copy
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt
from smelt.base import row as rows_module
from smelt.base.errors import SpecError
from smelt.base.events import collect
from smelt.base.rewrite_budget import Rewrite, RewriteBudget
from smelt.base.row import BudgetUse, Row
from smelt.codegen import forget
from smelt.codegen.cpu import schedule_passes, shared_bodies
from smelt.codegen.cpu import target as cpu
from smelt.codegen.cpu.schedule import LoopSchedule
from smelt.device import limits_of, register
from smelt.explain.bisect import bisect
from smelt.fuse import fusion_passes
from smelt.ir.kernel import Compute, Kernel, Stage
from smelt.ir.program import Launch, Program
from smelt.pipeline.stage_map import stage_map, tables
from tests.golden import golden

TABLES = tables()
OPTIONAL = [
    row
    for rows in TABLES.values()
    for row in rows
    if isinstance(row, Row) and row.budget_use is not BudgetUse.NOTHING
]


def test_the_map() -> None:
    golden("pipeline/stage_map.txt", stage_map())


def test_every_row_says_why_and_rows_fit_together() -> None:
    for title, rows in TABLES.items():
        assert all(row.name and row.why for row in rows)
        if not title.startswith("trace") and not title.endswith("that takes it"):
            assert all(one.gives == other.takes for one, other in itertools.pairwise(rows)), title


@pytest.fixture
def everything_pays() -> Iterator[None]:
    """A target that each of the schedule's rewrites is worth making for."""
    forget()
    all_of_it = replace(
        cpu.describe_host(), pairs_rows=True, hoist_loads_over_stores=True, nontemporal_min_bytes=1024,
        prefetch_distance=256, prefetch_next_row=True, vector_registers=32, unroll_light=8,
    )  # fmt: skip
    limits = limits_of("cpu")
    register("cpu", lambda: all_of_it, limits=replace(limits, recomputes=True))
    yield
    register("cpu", cpu.describe_host, limits=limits)
    forget()


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.gate, self.up, self.down = nn.Linear(32, 512), nn.Linear(32, 512), nn.Linear(512, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.silu(self.gate(x)) * self.up(x))


def train(compile: Callable[..., Any]) -> list[torch.Tensor]:
    model = Gated()
    opt = torch.optim.SGD(model.parameters(), lr=1e-2)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(x).square().mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        return loss

    loss = compile(step)(torch.linspace(-1, 1, 64 * 32).reshape(64, 32))
    return [loss.detach(), *(parameter.detach() for parameter in model.parameters())]


def image(size: int, *shape: int) -> torch.Tensor:
    return torch.linspace(-3, 3, size).sin().reshape(shape)


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "siblings and products": (
        lambda x: (torch.relu(x.double() @ x.double() + 1), x.sin(), x.exp()),  # by the library: it is float64
        (image(4096, 64, 64),),
    ),
    "softmax of long rows": (lambda x: torch.softmax(x, -1), (image(60000, 3, 20000),)),
    "softmax of rows": (lambda x: torch.softmax(x, -1), (image(16384, 16, 1024),)),
    "columns": (lambda x: (x * x).sum(0), (image(65536, 256, 256),)),
    "shares of columns": (lambda x: (h := x.sin().exp()) / h.sum(0), (image(65536, 256, 256),)),
    "sigmoid": (lambda x: x.sigmoid(), (image(1 << 18, 1 << 18),)),
    "transpose": (lambda x: x.t().contiguous() * 2, (image(1 << 16, 256, 256),)),
    "padding": (lambda x: F.pad(x, (3, 2)) + 1, (image(4000, 40, 100),)),
    "two lengths": (lambda x, y: (x.sin() * 2, y.sin() * 2), (image(1024, 1024), image(4096, 4096))),
    "sums of one call": (lambda x: [part.sum(0) for part in torch.sort(x)], (image(4096, 64, 64),)),
    "one launch": (lambda x, y: (x.sin() * 2, y.sin() * 2), (image(1024, 1024), image(4096, 4096))),
}
TARGETS = {"one launch": "simt-host"}  # other than the host


def compiling(name: str, **options: Any) -> Callable[..., Any]:
    return partial(smelt.compile, options={"target": TARGETS.get(name, ""), **options})


def outcome(name: str, compile: Callable[..., Any]) -> Any:
    if name == "training":
        return train(compile)
    function, arguments = FUNCTIONS[name]
    return compile(function)(*arguments)


def rewrites_before(name: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The optional rows of a compilation, each with how many rewrites come before its first."""
    firsts: dict[str, int] = {}
    take = RewriteBudget.take

    def noted(self: RewriteBudget, *what: object) -> bool:
        firsts.setdefault(self.stage.rpartition(", ")[2], self.taken)
        return take(self, *what)

    with monkeypatch.context() as patched:
        patched.setattr(RewriteBudget, "take", noted)
        outcome(name, compiling(name, max_rewrites=1 << 20))
    return {row.name: firsts[row.name] for row in OPTIONAL if row.name in firsts}


ONLY_ON_GPUS = {"side by side", "overlap launches"}  # tests/fuse/test_short_launches.py
ONLY_IN_TRAINING = ("rematerialize", "hoist updates", "write in place")


@pytest.mark.parametrize("name", [*FUNCTIONS, "training"])
def test_without_any_one_row_results_are_right(
    name: str, everything_pays: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The budget ends right before the first rewrite of each row, then right after it, which is reported."""
    expected = outcome(name, lambda function: function)
    for each, first in rewrites_before(name, monkeypatch).items():
        if name == "training" and each not in ONLY_IN_TRAINING:
            continue  # the others have them too; compiling is what these tests take time for
        for budget in (first, first + 1):
            smelt.reset()
            with collect() as events:
                found = outcome(name, compiling(name, max_rewrites=budget, check_specs=True))
            torch.testing.assert_close(found, expected)
        last = [event.subject for event in events if isinstance(event.subject, Rewrite)]
        assert any(rewrite.stage.endswith(f", {each}") for rewrite in last), (each, last)


def test_every_optional_row_is_among_them(everything_pays: None, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {each for name in [*FUNCTIONS, "training"] for each in rewrites_before(name, monkeypatch)}
    assert seen | ONLY_ON_GPUS == {row.name for row in OPTIONAL}


def other_numbers(kernel: Kernel) -> Kernel:
    """The kernel with its multiplications and sines made something else."""
    swapped = {"mul": "add", "sin": "cos", "exp": "sin", "add": "sub", "sigmoid": "tanh"}

    def changed(stage: Stage) -> Stage:
        body = (replace(i, op=swapped.get(i.op, i.op)) if isinstance(i, Compute) else i for i in stage.body)
        return Stage(stage.loop, tuple(body))

    return replace(kernel, stages=tuple(map(changed, kernel.stages)))


def break_row(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """From now on whatever a row rewrites computes other numbers."""

    def wrong(row: Row) -> Row:
        def run(value: Any, context: Any) -> Any:
            found = row.run(value, context)
            if isinstance(found, LoopSchedule) and found is not value:
                return replace(found, kernel=other_numbers(found.kernel))
            if isinstance(found, Program) and found.steps != value.steps:
                steps = [
                    replace(new, kernel=replace(other_numbers(new.kernel), name=f"{new.kernel.name}_other"))
                    if isinstance(new, Launch) and new != old
                    else new
                    for new, old in zip(found.steps, value.steps, strict=True)
                ]
                return replace(found, steps=tuple(steps))
            if isinstance(found, list) and found:  # families of kernels
                return [replace(family, body=other_numbers(family.body)) for family in found]
            return found

        return replace(row, run=run) if row.name == name else row

    tables = (
        (schedule_passes, "SCHEDULE"), (shared_bodies, "MODULE"), (fusion_passes, "GROUP"), (fusion_passes, "MEMORY"),
    )  # fmt: skip
    for module, table in tables:
        monkeypatch.setattr(module, table, tuple(map(wrong, getattr(module, table))))


BREAKABLE = {
    "online softmax": "softmax of long rows",
    "known signs": "softmax of rows",
    "prefetch next row": "softmax of rows",
    "pair rows": "columns",
    "prefetch": "columns",
    "unroll": "sigmoid",
    "transpose tiles": "transpose",
    "contiguous runs": "padding",
    "share bodies": "two lengths",
    "reuse in place": "siblings and products",
}


@pytest.mark.parametrize("name", BREAKABLE)
def test_bisect_names_a_broken_row(name: str, everything_pays: None, monkeypatch: pytest.MonkeyPatch) -> None:
    function, arguments = FUNCTIONS[BREAKABLE[name]]
    break_row(monkeypatch, name)
    culprit = bisect(function, arguments, {}, smelt.compile)
    assert culprit is not None and culprit.rewrite is not None
    assert culprit.rewrite.stage.endswith(f", {name}"), culprit


def test_a_form_that_breaks_its_rules_is_told_with_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(ordered: Any, context: Any) -> Any:
        found = fusion_passes.sort(ordered)
        return replace(found, order=(*found.order, found.order[-1]))

    table = tuple(replace(row, run=twice) if row.name == "sort" else row for row in fusion_passes.GROUP)
    monkeypatch.setattr(fusion_passes, "GROUP", table)
    compiled = smelt.compile(lambda x: x.sin(), options={"check_specs": True, "fallback": False})
    with pytest.raises(SpecError, match="after sort: a group is missing, or there twice"):
        compiled(torch.randn(4))


def test_a_row_without_fuel_is_not_run() -> None:
    ran: list[str] = []

    def run(value: int, context: object) -> int:
        ran.append("row")
        return value + 1

    rows = [Row("one", "number", "number", run, "", budget_use) for budget_use in BudgetUse]
    budget = RewriteBudget(1)
    assert rows_module.run_rows(0, rows, None, budget, "test") == 3 and budget.left == 0
    assert rows_module.run_rows(0, rows, None, budget, "test") == 2 and len(ran) == 5
    assert copy.copy(rows[0]) == rows[0]
