"""Dropout that is one operator: what the backward reads of it comes from the mask, and is what it was."""

import operator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx

from smelt.base.options import Options
from smelt.base.rewrite_budget import RewriteBudget
from smelt.ir.call_contract import Phase, RecomputePolicy, set_phase, set_recompute_policy
from smelt.ir.graph import GraphLevel, Traced
from smelt.ir.nodes.backward_node import set_backward
from smelt.ir.tensorspec import TensorSpec, set_spec
from smelt.simplify.dropout_masks import keep_masks
from tests.absent_device.ahead import compile_ahead, spec_like

aten = torch.ops.aten
N = (6, 10)


def _graph(dtype: torch.dtype, probability: float) -> tuple[Traced, fx.Node, fx.Node]:
    """dropout, its square, and a product with what it made, as a backward has one; the two readers."""
    graph, spec = fx.Graph(), TensorSpec.of(torch.empty(N, dtype=dtype))

    def call(target: Any, *args: Any, of: TensorSpec | None = spec) -> fx.Node:
        node = graph.call_function(target, args)
        if of is not None:
            set_spec(node, of)
        return node

    x = graph.placeholder("x")
    set_spec(x, spec)
    both = call(aten.native_dropout.default, x, probability, True, of=None)
    kept_spec = TensorSpec.of(torch.empty(N, dtype=torch.bool))
    set_spec(both, (spec, kept_spec))
    made = call(operator.getitem, both, 0)
    kept = call(operator.getitem, both, 1, of=kept_spec)
    early = call(aten.mul.Tensor, made, made)
    late = call(aten.mul.Tensor, made, kept)
    graph.output((early, late, made))
    return Traced(graph, GraphLevel.PURE), early, late


def _results(traced: Traced, x: torch.Tensor) -> Any:
    torch.manual_seed(3)
    return fx.Interpreter(fx.GraphModule({}, traced.graph)).run(x)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("probability", [0.5, 0.1])
@pytest.mark.parametrize("mark", ["joint", "inside", "checkpoint"])
def test_later_readers_get_the_same(mark: str, probability: float, dtype: torch.dtype) -> None:
    traced, early, late = _graph(dtype, probability)
    if mark == "inside":
        set_backward(late, 0)
    else:
        set_phase(late, Phase.BACKWARD)
    if mark == "checkpoint":
        set_recompute_policy(early, RecomputePolicy.RECOMPUTE)
    torch.manual_seed(0)
    x = torch.randn(N, dtype=dtype)
    expected, before = _results(traced, x), set(traced.graph.nodes)
    keep_masks(traced, RewriteBudget(-1))
    traced.graph.lint()
    _, product = [node for node in traced.graph.nodes if node not in before]
    assert product in late.args and (product in early.args) == (mark == "checkpoint")
    torch.testing.assert_close(_results(traced, x), expected)
    assert torch.equal(_results(traced, x)[2], expected[2])


def test_without_a_backward_nothing_changes() -> None:
    traced, _, _ = _graph(torch.float32, 0.1)
    before = list(traced.graph.nodes)
    keep_masks(traced, RewriteBudget(-1))
    assert list(traced.graph.nodes) == before


@pytest.mark.parametrize(("target", "mask"), [("sm_90", [(torch.int64, 1)] * 2), ("sm_87", [(torch.bool, 64 * 128)])])
def test_what_dropout_made_is_not_saved_on_a_gpu(target: str, mask: list[tuple[torch.dtype, int]]) -> None:
    """The mask is, or the state of the generator that it follows from, where that is known; and what GELU is of."""

    def step(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (F.dropout(F.gelu(x @ w), 0.1) @ v).sum()

    specs = [spec_like((64, 32)), spec_like((32, 128)), spec_like((128, 16))]
    given = [specs[0], *(replace(spec, requires_grad=True) for spec in specs[1:])]
    found = compile_ahead(step, given, Options(target=target))
    specs_of = {buffer.name: buffer.spec for buffer in found.forward.buffers}
    made = [specs_of[output.buffer] for output in found.forward.outputs if output is not None]
    loss_and_inputs = [(torch.float32, size) for size in (1, 64 * 32, 128 * 16)]
    expected = [*loss_and_inputs, (torch.float32, 64 * 128), *mask]
    assert sorted(map(str, expected)) == sorted(str((spec.dtype, spec.numel)) for spec in made)
