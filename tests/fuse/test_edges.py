"""Shapes and layouts at the edge: nothing, one, gaps, overlaps, offsets; outputs that are views; constants; budget."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from smelt.base import events
from smelt.base.options import Options
from smelt.base.rewrite_budget import RewriteBudget
from smelt.fuse import build_program, why_not_fuse
from smelt.fuse.fusion_graph import lower
from smelt.fuse.greedy_fusion import form_groups
from smelt.fuse.groups import Group
from smelt.fuse.lowering.values import FusionKind, FusionValue
from smelt.fuse.target_choice import TargetChoice
from smelt.ir.program import Library, Operand, Place
from smelt.ir.tensorspec import TensorSpec
from smelt.ops.decompositions import DECOMPOSITIONS
from tests.fuse.running import assert_same, compare, fused, traced
from tests.kernel_reference import run_program


def fold_and_spread(x: torch.Tensor) -> Any:
    return x - x.amax(-1, keepdim=True), (x * 2).sum(0), x.mean()


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(4, 6),
        torch.randn(1, 6),
        torch.randn(4, 1),
        torch.randn(1, 1),
        torch.randn(6, 4).t(),
        torch.randn(1, 6).expand(4, 6),
        torch.randn(4, 1).expand(4, 6),
        torch.randn(9, 13)[1::2, 2::3],
        torch.randn(100)[7:31].view(4, 6),
        torch.randn(30).as_strided((4, 6), (2, 1)),
        torch.randn(2, 3, 4),
        torch.randn(2, 3, 4).permute(2, 0, 1),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(5),
        torch.randn(5).bfloat16(),
    ],
    ids=lambda x: f"{tuple(x.shape)}:{x.stride()}",
)
@pytest.mark.parametrize("budget", [-1, 0, 1, 3])
def test_layouts(x: torch.Tensor, budget: int) -> None:
    assert_same(fold_and_spread, x, budget=budget)


def test_no_dimensions() -> None:
    assert_same(lambda x: (x * 2 + 1, x.sum(), x.reshape(1, 1) + torch.ones(3, 1)), torch.tensor(3.0))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 4)])
def test_no_elements(shape: tuple[int, ...]) -> None:
    def nothing(x: torch.Tensor) -> Any:
        return x + 1, x.sum(), x.sum(-1), x.sum(0), x.relu().reshape(-1)

    assert_same(nothing, torch.randn(shape))


def test_no_elements_beside_some() -> None:
    assert_same(lambda x, y: (x.relu().sum(0) + y, y * 2), torch.randn(0, 3), torch.randn(3))


def test_outputs_that_are_views() -> None:
    def views(x: torch.Tensor) -> Any:
        y = x * 2
        return y.t(), y[1:], x, x.t(), y.unsqueeze(0).expand(2, -1, -1)

    program = assert_same(views, torch.randn(3, 4))
    assert all(isinstance(out, Operand) for out in program.outputs)
    assert len(program.kernels) == 1


def test_the_same_output_twice_is_one_buffer() -> None:
    program = assert_same(lambda x: (lambda y: (y, y))(x + 1), torch.randn(3))
    assert program.outputs[0] == program.outputs[1]


def test_splits_are_views() -> None:
    def gates(x: torch.Tensor) -> torch.Tensor:
        a, b, c = x.split(4, 1)
        d, e = c.unbind(0)[:2]
        return torch.sigmoid(a) * b + d - e

    x = torch.randn(3, 12)
    program = fused(gates, x, decompositions=DECOMPOSITIONS)
    compare(run_program(program, [x]), [gates(x)])
    assert len(program.steps) == 1


def test_a_view_no_strides_describe_is_copied() -> None:
    assert_same(lambda x: torch.relu(x).t().reshape(-1) + 1, torch.randn(3, 4))


def test_library_results_and_operands() -> None:
    def mixed(x: torch.Tensor, w: torch.Tensor) -> Any:
        values, indices = torch.sort(x * 2, dim=1)
        return values + 1, indices * 2, (torch.relu(x).t() @ w).cumsum(0)

    assert_same(mixed, torch.randn(3, 4), torch.randn(3, 5))


def test_a_library_view_keeps_its_memory_alive() -> None:
    def bits(x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x)
        seen = y.view(torch.int32)
        z = torch.sin(x @ x)
        return torch.cos(z @ z).sum() + seen

    program = assert_same(bits, torch.randn(6, 6))
    assert any(isinstance(step, Library) and step.op is torch.ops.aten.view.dtype for step in program.steps)
    assert program.buffer("relu").place is Place.ARENA
    leaving = assert_same(lambda x: torch.relu(x).view(torch.int32), torch.randn(6))
    assert leaving.buffer("relu").place is Place.FRESH


def test_as_strided_counts_from_the_storage() -> None:
    def restrided(x: torch.Tensor, w: torch.Tensor) -> Any:
        y = torch.relu(x @ w)  # lies in the arena, behind x @ x
        picked = (y * 1).as_strided((3, 1), (5, 1), 1)
        return torch.sin(x @ x) @ w, picked.t() @ w[:3], x.as_strided((2,), (1,), 5) + 1

    program = assert_same(restrided, torch.randn(8, 4)[1:5], torch.randn(4, 4))
    assert not any(isinstance(step, Library) and "as_strided" in str(step.op) for step in program.steps)
    outside = torch.randn(8, 4)[2:4]
    assert_same(lambda x: x.as_strided((3, 4), (4, 1), 0) * 2, outside)


def test_constants() -> None:
    table = torch.arange(4.0)
    program = assert_same(lambda x: x * table, torch.randn(3, 4))
    assert len(program.constants) == 1


def test_random_numbers_keep_their_order() -> None:
    def draws(x: torch.Tensor) -> Any:
        a = torch.rand_like(x)
        b = torch.randn_like(x)
        return b * 2, a + x

    program = fused(draws, torch.randn(3))
    names = [str(step.op) for step in program.steps if isinstance(step, Library)]
    assert names == ["aten.rand_like.default", "aten.randn_like.default"]


def test_positions() -> None:
    def masks(x: torch.Tensor) -> Any:
        n = torch.arange(6)
        causal = torch.where(n[None, :] <= n[:, None], x, float("-inf"))
        return causal, x.triu(1), x.t().tril().t(), n.view(2, 3).t() + 1

    assert_same(masks, torch.randn(6, 6))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_floats_meet_their_stored_copies(dtype: torch.dtype) -> None:
    def where_largest(x: torch.Tensor, w: torch.Tensor) -> Any:
        y = x * w
        return (y == y.amax()).sum(), y == y.amax(-1, keepdim=True)

    x, w = torch.randn(300, 40).to(dtype), torch.randn(40).to(dtype)
    found = run_program(fused(where_largest, x, w), [x, w])
    assert int(found[0]) >= 1 and bool(found[1].any(-1).all())  # type: ignore[call-overload, attr-defined]


def test_folds_of_every_kind_of_dims() -> None:
    def folds(x: torch.Tensor) -> Any:
        y = x * 2
        return y.sum(1), y.sum((0, 2)), y.amax((1, 2)), y.amin((0, 1)), y.sum(2, keepdim=True), y.prod(), y.mean(0)

    x = torch.randn(3, 4, 5, dtype=torch.float64)
    assert_same(folds, x)
    assert_same(folds, x.permute(2, 0, 1))
    assert_same(folds, x, budget=0)


def test_rows_within_rows() -> None:
    """A fold of two dims on top of rows folded over one: the same points cut twice."""

    def nested(x: torch.Tensor) -> Any:
        y = x - x.mean(-1, keepdim=True)
        return y, (y * y).sum((-1, -2)), torch.softmax(y.reshape(6, 20), -1)

    assert_same(nested, torch.randn(2, 3, 4, 5, dtype=torch.float64))


def _groups(fn: Callable[..., Any], *args: torch.Tensor) -> Any:
    lowered = lower(traced(fn, *args))
    return form_groups(lowered, TargetChoice(), RewriteBudget(-1)), {value.name: value for value in lowered.values}


def test_reasons_in_words() -> None:
    groups, values = _groups(lambda x: x.sum(0) * x.mm(x).relu(), torch.randn(4, 4))
    reason = "multiplies 4×4×4, which is too little for a kernel to be worth it"
    assert why_not_fuse(groups, values["mm"], values["relu"]) == f"mm is a library call: it {reason}"
    assert "only after all rows" in str(why_not_fuse(groups, values["sum_1"], values["mul"]))
    assert why_not_fuse(groups, values["mul"], values["relu"]) is None
    groups, values = _groups(lambda x: (lambda e: (e, x.sin() + e))(x.t().exp()), torch.randn(4, 4))
    assert "other points" in str(why_not_fuse(groups, values["exp"], values["add"]))


def test_reasons_are_reported() -> None:
    with events.collect() as collected:
        build_program(traced(lambda x: x.sum(0) + x, torch.randn(4, 4)), "p", Options())
    texts = [event.text for event in collected if event.channel == "fusion"]
    assert any("are not fused" in text for text in texts)
    assert "k0_sum computes {sum_1}" in texts


def test_fuel_bounds_the_number_of_fusions() -> None:
    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            x = torch.sin(x)
        return x

    counts = [len(fused(chain, torch.randn(4), budget=budget).steps) for budget in range(7)]
    assert counts == [6, 5, 4, 3, 2, 1, 1]


def test_the_same_graph_gives_the_same_program() -> None:
    graph = traced(fold_and_spread, torch.randn(4, 6))
    assert build_program(graph, "p", Options()) == build_program(graph, "p", Options())


@pytest.mark.parametrize("dims", [0, 1, (0, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_a_mean_of_equals_is_their_equal(dims: Any, dtype: torch.dtype) -> None:
    x = torch.full((6, 7), 0.25, dtype=dtype)
    assert_same(lambda x: (x > x.mean(dims, keepdim=True), x.mean(dims)), x)


def test_a_mean_of_many_large_halves_does_not_overflow() -> None:
    assert_same(lambda x: x.mean(0), torch.full((64, 3), 6e4, dtype=torch.float16))


def test_nothing_waits_for_a_mask_nor_a_mask_for_anything() -> None:
    """Coins are tossed into planned memory; what they are tossed like only lends its shape."""

    def dropped(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
        y = (x @ weight + bias).relu()
        return y * torch.bernoulli(torch.empty_like(y), 0.5)

    args = torch.randn(4, 8), torch.randn(8, 16), torch.randn(16)
    program = fused(dropped, *args)
    assert [type(step).__name__ for step in program.steps] == ["Library", "Library", "Launch"]
    tossed = [step for step in program.steps if isinstance(step, Library)][1]
    assert (tossed.op, tossed.args, tossed.into) == (torch.ops.aten.bernoulli_.float, (), ("self",))
    outcomes = []
    for run in (lambda: run_program(program, args)[0], lambda: dropped(*args)):
        torch.manual_seed(0)
        outcomes.append(run())
    torch.testing.assert_close(*outcomes)


def test_values_and_groups_are_printed_by_name_alone() -> None:
    """They name each other: written out in full, forty values in a row would fill the memory."""
    spec = TensorSpec.of(torch.ones(2))
    values = [FusionValue(0, "x", FusionKind.LEAF, spec, 2)]
    for number in range(1, 41):
        value = FusionValue(number, f"v{number}", FusionKind.POINTWISE, spec, 2, users=[values[-1]] * 2)
        values.append(value)
    group = Group(1, members=values[-1:])
    group.successors.add(Group(2, members=values[:1], predecessors={group}))
    assert (repr(values[-1]), repr(group)) == ("v40", "{v40}")
