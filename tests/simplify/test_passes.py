"""Each simplify pass on a small graph: the golden text shows before and after, and both compute the same."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

from smelt.base.rewrite_budget import RewriteBudget
from smelt.ir.graph import GraphLevel, Traced, check_graph, format_graph
from smelt.ir.tensorspec import TensorSpec, set_spec, tensor_spec
from smelt.meta.fake_tensor import Recorder
from smelt.simplify import (
    PASSES,
    compose_views,
    draw_masks,
    drop_dead,
    fold_constants,
    fold_identities,
    place_scalars,
    share_common,
)
from tests.golden import golden

aten = torch.ops.aten
Function = Callable[..., Any]


def recorded(function: Function, *inputs: torch.Tensor) -> Traced:
    """The pure graph of `function` on tensors like `inputs`."""
    recorder = Recorder()
    fakes = [recorder.placeholder(f"x{number}", TensorSpec.of(tensor)) for number, tensor in enumerate(inputs)]
    with recorder:
        result = function(*fakes)
    recorder.output(result if isinstance(result, tuple | list) else (result,))
    return Traced(recorder.graph, GraphLevel.PURE, recorder.constants)


def copied(traced: Traced) -> Traced:
    graph = fx.Graph()
    returned = graph.graph_copy(traced.graph, {})
    graph.output(returned)
    return Traced(graph, traced.level, traced.constants)


def simplified(traced: Traced, budget: RewriteBudget | None = None) -> Traced:
    budget = budget or RewriteBudget()
    for name, run, _ in PASSES:
        traced = run(traced, budget)
        check_graph(traced.graph, traced.level, after=name)
    return traced


def targets(traced: Traced) -> list[Any]:
    return [node.target for node in traced.graph.nodes if node.op == "call_function"]


def assert_same(before: Traced, after: Traced, *inputs: torch.Tensor) -> None:
    """Bit for bit, layouts included: no rewrite here may round differently."""
    torch.manual_seed(0)
    expected, state = before.to_module()(*inputs), torch.get_rng_state()
    torch.manual_seed(0)
    found = after.to_module()(*inputs)
    assert torch.equal(state, torch.get_rng_state())
    assert len(expected) == len(found)
    for want, have in zip(expected, found, strict=True):
        assert (want.shape, want.stride(), want.dtype) == (have.shape, have.stride(), have.dtype)
        numbers = ~want.isnan()
        assert torch.equal(numbers, ~have.isnan()) and torch.equal(want[numbers], have[numbers])
        if want.is_floating_point():
            assert torch.equal(torch.signbit(want[numbers]), torch.signbit(have[numbers])), "a zero changed its sign"


ODD = torch.tensor([0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1.5, -2.5, 1e-40])


def _identities(x: torch.Tensor) -> Any:
    y = aten.clone.default(aten.mul.Tensor(aten.detach.default(x), 1.0))
    y = aten.sub.Tensor(aten.add.Tensor(y, -0.0), 0.0)
    return aten.exp.default(aten.div.Tensor(aten.neg.default(aten.neg.default(y)), 1))


def _casts(x: torch.Tensor) -> Any:
    wide = aten._to_copy.default(aten._to_copy.default(x, dtype=torch.float32), dtype=torch.float64)
    back = aten._to_copy.default(aten._to_copy.default(x, dtype=torch.float32), dtype=torch.bfloat16)
    return aten.exp.default(wide), aten.exp.default(aten._to_copy.default(back, dtype=torch.bfloat16))


def _joins(x: torch.Tensor, nothing: torch.Tensor) -> Any:
    alone = aten.cat.default([nothing, x], 1)
    turned = aten.cat.default([nothing, aten.permute.default(x, [1, 0]), nothing], -2)
    two = aten.cat.default([x, nothing, x], -1)
    return aten.exp.default(alone), turned, two


def _views(x: torch.Tensor) -> Any:
    turned = aten.permute.default(aten.permute.default(x, [1, 0]), [1, 0])
    flat = aten.view.default(aten.view.default(turned, [2, 2, 6]), [24])
    raised = aten.squeeze.dim(aten.unsqueeze.default(aten.slice.Tensor(flat, 0, 0, 24), 0), 0)
    wide = aten.expand.default(aten.expand.default(aten.view.default(x, [4, 6, 1]), [4, 6, 1]), [4, 6, 5])
    return aten.exp.default(raised), aten.exp.default(wide)


def _common(x: torch.Tensor, y: torch.Tensor) -> Any:
    first, second = aten.mul.Tensor(aten.sin.default(x), y), aten.mul.Tensor(y, aten.sin.default(x))
    noise = aten.add.Tensor(aten.rand_like.default(x), aten.rand_like.default(x))
    return aten.add.Tensor(first, second), aten.mul.Tensor(noise, 0.0)


def _masks(x: torch.Tensor) -> Any:
    noise = aten.bernoulli.p(aten.empty_like.default(aten.sin.default(x), pin_memory=False), 0.75)
    kept = aten._to_copy.default(noise, dtype=torch.bool)
    return aten.mul.Tensor(x, aten._to_copy.default(kept, dtype=x.dtype)), kept


def _constants(x: torch.Tensor) -> Any:
    loss = aten.sum.default(aten.exp.default(x))
    grad = aten.expand.default(aten.ones_like.default(loss), list(x.shape))
    scaled = aten.mul.Tensor(aten.full.default([], 2.0), aten.mul.Tensor(grad, x))
    rest = aten.mul.Tensor(aten.full.default([], 2.0), aten.full.default([], 3.0))
    return loss, aten.add.Tensor(scaled, rest)


def _dead(x: torch.Tensor) -> Any:
    aten.cos.default(aten.sin.default(x))
    aten.rand_like.default(x)
    return aten.exp.default(x)


CASES: dict[str, tuple[Callable[[Traced, RewriteBudget], Traced], Function, tuple[torch.Tensor, ...]]] = {
    "identities": (fold_identities, _identities, (ODD,)),
    "casts": (fold_identities, _casts, (ODD.bfloat16(),)),
    "joins": (fold_identities, _joins, (torch.randn(4, 6), torch.empty(0))),
    "views": (compose_views, _views, (torch.randn(4, 6),)),
    "common": (share_common, _common, (torch.randn(3), torch.randn(3))),
    "masks": (lambda traced, budget: fold_identities(draw_masks(traced, budget), budget), _masks, (torch.randn(4, 6),)),
    "constants": (fold_constants, _constants, (torch.randn(2, 3),)),
    "dead": (drop_dead, _dead, (ODD,)),
}


@pytest.mark.parametrize("name", CASES)
def test_pass(name: str) -> None:
    run, function, inputs = CASES[name]
    before = recorded(function, *inputs)
    after = run(copied(before), RewriteBudget())
    check_graph(after.graph, GraphLevel.PURE, after=name)
    drop_dead(after, RewriteBudget())
    check_graph(after.graph, GraphLevel.PURE, after="dce")
    text = format_graph(before.graph, "before") + "\n" + format_graph(after.graph, "after")
    golden(f"simplify/{name}.txt", text)
    assert len(after.graph.nodes) < len(before.graph.nodes)
    assert_same(before, after, *inputs)


def test_zero_is_not_nothing() -> None:
    """-0.0 + 0.0 is 0.0, and -0.0 - -0.0 is 0.0 too: neither sum may go."""
    before = recorded(lambda x: (aten.add.Tensor(x, 0.0), aten.sub.Tensor(x, -0.0), aten.add.Tensor(x, 0)), ODD)
    after = simplified(copied(before))
    assert targets(after).count(aten.add.Tensor) == 2 and aten.sub.Tensor in targets(after)
    assert_same(before, after, ODD)


def test_zeros_of_both_signs_are_different_arguments() -> None:
    def over_zeros(x: torch.Tensor) -> Any:
        return aten.exp.default(aten.div.Tensor(x, 0.0)), aten.neg.default(aten.div.Tensor(x, -0.0))

    before = recorded(over_zeros, ODD)
    after = simplified(copied(before))
    assert targets(after).count(aten.div.Tensor) == 2
    assert_same(before, after, ODD)


def test_nothing_that_decides_the_dtype_stays() -> None:
    inputs = torch.randn(2, 3), torch.empty(0, dtype=torch.float64)
    before = recorded(lambda x, nothing: aten.cat.default([nothing, x], 1), *inputs)
    after = simplified(copied(before))
    assert aten.cat.default in targets(after)
    assert_same(before, after, *inputs)


def test_integers_have_one_zero() -> None:
    x = torch.arange(4)
    before = recorded(lambda x: aten.exp.default(aten.add.Tensor(x, 0)), x)
    assert targets(simplified(copied(before))) == [aten.exp.default]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: aten.exp.default(aten.mul.Tensor(x, 1.0)),  # makes floats of integers
        lambda x: aten.exp.default(aten.div.Tensor(x, 1)),
        lambda x: aten.exp.default(
            aten._to_copy.default(aten._to_copy.default(x, dtype=torch.int8), dtype=torch.int64)
        ),
        lambda x: aten.exp.default(
            aten._to_copy.default(aten._to_copy.default(x, dtype=torch.bool), dtype=torch.int64)
        ),
    ],
)
def test_what_changes_a_dtype_stays(function: Function) -> None:
    x = torch.tensor([0, 1, 300, -5])
    before = recorded(function, x)
    after = simplified(copied(before))
    assert len(targets(after)) == len(targets(before))
    assert_same(before, after, x)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: aten.clone.default(x),
        lambda x: aten.mul.Tensor(x, 1.0),
        lambda x: aten.view.default(aten.clone.default(x), [-1]),
        lambda x: (lambda y: (y, aten.clone.default(y)))(aten.exp.default(x)),
        lambda x: (aten.exp.default(x), aten.exp.default(x)),
        lambda x: (lambda y: (aten.view.default(y, [-1]), aten.mul.Tensor(y, 1)))(aten.exp.default(x)),
    ],
)
def test_results_do_not_come_to_share_memory(function: Function) -> None:
    x = torch.randn(2, 3)
    found = simplified(recorded(function, x)).to_module()(x)
    owners = {tensor.untyped_storage().data_ptr() for tensor in (x, *found)}
    assert len(owners) == 1 + len(found)


def test_a_narrow_constant_is_rounded_before_it_becomes_a_number() -> None:
    x = torch.randn(64).bfloat16()
    before = recorded(lambda x: aten.mul.Tensor(x, aten.full.default([], 0.1, dtype=torch.bfloat16)), x)
    after = simplified(copied(before))
    assert targets(after) == [aten.mul.Tensor]
    assert_same(before, after, x)


def test_a_constant_that_decides_the_dtype_stays() -> None:
    x = torch.arange(4)
    before = recorded(lambda x: aten.mul.Tensor(x, aten.full.default([1], 2.0, dtype=torch.float64)), x)
    after = simplified(copied(before))
    assert aten.full.default in targets(after)
    assert_same(before, after, x)


def test_running_statistics_are_written_even_if_nobody_looks() -> None:
    x, stats = torch.randn(4, 3), torch.zeros(3)

    def function(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> Any:
        aten.native_batch_norm.default(x, None, None, mean, var, True, 0.1, 1e-5)
        return aten.exp.default(x)

    assert aten.native_batch_norm.default in targets(simplified(recorded(function, x, stats, stats)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_mask_is_the_same_in_any_dtype(dtype: torch.dtype) -> None:
    x = torch.randn(3, 700).to(dtype)
    before = recorded(lambda x: aten.mul.Tensor(x, aten.bernoulli.p(x, 0.3)), x)
    after = simplified(copied(before))
    drawn = next(node for node in after.graph.nodes if node.target is aten.bernoulli.p)
    assert tensor_spec(drawn).dtype is torch.bool
    assert_same(before, after, x)


def test_fuel_stops_rewriting() -> None:
    before = recorded(_identities, ODD)
    sizes = []
    for amount in (0, 1, 2, 4, -1):
        budget = RewriteBudget(amount)
        after = simplified(copied(before), budget)
        assert_same(before, after, ODD)
        assert amount < 0 or budget.taken <= amount
        sizes.append(len(after.graph.nodes))
    assert sizes == sorted(sizes, reverse=True) and sizes[0] == len(before.graph.nodes) and sizes[-1] < sizes[0]


def test_fuel_counts() -> None:
    budget = RewriteBudget(2)
    assert [budget.take(), budget.take(), budget.take()] == [True, True, False]
    assert budget.taken == 2 and all(RewriteBudget().take() for _ in range(100))


@pytest.mark.parametrize("op", [aten.clamp.Tensor, aten.logaddexp.default], ids=str)
def test_numbers_of_the_host_are_copied_to_a_gpu(op: Any) -> None:
    """For what PyTorch has no mixed call of: a number that the program gave it has become a tensor of the host."""
    graph = fx.Graph()
    x, number = graph.placeholder("x"), graph.placeholder("number")
    made = graph.call_function(op, (x, number))
    graph.output((made,))
    cuda = torch.device("cuda", 0)
    set_spec(number, TensorSpec((), (), torch.float32, torch.device("cpu")))
    for node in (x, made):
        set_spec(node, TensorSpec((4, 8), (8, 1), torch.float32, cuda))
    place_scalars(Traced(graph, GraphLevel.PURE, {}), RewriteBudget())
    assert {tensor_spec(node).device for node in made.all_input_nodes} == {cuda}
