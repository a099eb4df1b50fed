"""The two gradients of a convolution in two calls, where its image is computed again from one other."""

import operator

import pytest
import torch
from torch import fx, nn

from smelt.base.options import Options
from smelt.base.rewrite_budget import RewriteBudget
from smelt.ir.graph import GraphLevel, Traced
from smelt.ir.program import Launch, Library
from smelt.ir.tensorspec import TensorSpec, set_spec
from smelt.simplify import image_gradients, separate_gradients
from tests.absent_device.ahead import compile_ahead, spec_like

aten = torch.ops.aten


def _traced(*, residual: bool) -> Traced:
    """The gradients of a convolution of relu(x + y) or relu(x)."""
    graph = fx.Graph()
    image, filters = spec_like((2, 3, 6, 6), device="cpu"), spec_like((5, 3, 3, 3), device="cpu")

    def placed(name: str, spec: TensorSpec) -> fx.Node:
        node = graph.placeholder(name)
        set_spec(node, spec)
        return node

    def called(op: torch._ops.OpOverload, spec: TensorSpec, *args: fx.Node) -> fx.Node:
        node = graph.call_function(op, args)
        set_spec(node, spec)
        return node

    gradient, weight = placed("gradient", spec_like((2, 5, 6, 6), device="cpu")), placed("weight", filters)
    x, y = placed("x", image), placed("y", image)
    inner = called(aten.relu.default, image, called(aten.add.Tensor, image, x, y) if residual else x)
    rest = ([5], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, True])
    both = graph.call_function(aten.convolution_backward.default, (gradient, inner, weight, *rest))
    set_spec(both, (image, filters, spec_like((5,), device="cpu")))
    parts = [graph.call_function(operator.getitem, (both, number)) for number in range(3)]
    for part, spec in zip(parts, (image, filters, spec_like((5,), device="cpu")), strict=True):
        set_spec(part, spec)
    graph.output(tuple(parts))
    return Traced(graph, GraphLevel.PURE, {})


def _run(traced: Traced) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 5, 6, 6), (5, 3, 3, 3), (2, 3, 6, 6), (2, 3, 6, 6))
    inputs = [torch.randn(shape, generator=generator) for shape in shapes]
    results: tuple[torch.Tensor, ...] = fx.Interpreter(fx.GraphModule({}, traced.graph)).run(*inputs)
    return results


@pytest.mark.parametrize("residual", [False, True])
def test_computes_the_same_gradients(residual: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_gradients, "on_host", lambda device: False)
    expected = _run(_traced(residual=residual))
    traced = separate_gradients(_traced(residual=residual), RewriteBudget())
    calls = [node for node in traced.graph.nodes if node.target is aten.convolution_backward.default]
    assert len(calls) == (1 if residual else 2)
    for mine, theirs in zip(_run(traced), expected, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_leaves_the_call_whole_on_the_host() -> None:
    traced = separate_gradients(_traced(residual=False), RewriteBudget())
    assert sum(node.target is aten.convolution_backward.default for node in traced.graph.nodes) == 1


def test_reads_the_image_of_a_norm_once_less() -> None:
    """The kernel that adds up the gradients of a norm computes what the convolution before reads."""
    layers = [nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1)]
    model = nn.Sequential(*layers).to(torch.bfloat16)
    backward = compile_ahead(model, [spec_like((4, 8, 16, 16), torch.bfloat16)], Options(target="sm_90")).programs[1]
    numel = 4 * 8 * 16 * 16
    big = [
        [buffer.name for buffer in step.kernel.parameters if buffer.size == numel]
        for step in backward.steps
        if isinstance(step, Launch)
    ]
    assert [len(each) for each in big if len(each) > 2] == [3, 3]  # x, a gradient, and a result
    assert sum(isinstance(step, Library) for step in backward.steps) == 3
