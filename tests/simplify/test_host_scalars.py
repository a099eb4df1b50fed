"""Numbers of the host that a GPU computes with: those that PyTorch does not take for numbers are copied, once each."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from smelt.base.rewrite_budget import RewriteBudget
from smelt.ir.graph import GraphLevel, Traced
from smelt.ir.tensorspec import TensorSpec, set_spec, tensor_spec
from smelt.meta.fake_tensor import Recorder
from smelt.simplify import place_scalars

aten = torch.ops.aten
HOST, CUDA = torch.device("cpu"), torch.device("cuda", 0)
X, Y, A, B = torch.arange(6.0), torch.arange(4.0), torch.tensor(2.0), torch.tensor(3.0)


def _traced(function: Callable[..., Any], *inputs: torch.Tensor) -> Traced:
    """The graph of a function of tensors on a GPU, but for those without dimensions."""
    recorder = Recorder()
    specs = [replace(TensorSpec.of(each), device=CUDA if each.dim() else HOST) for each in inputs]
    fakes = [recorder.placeholder(f"x{number}", spec) for number, spec in enumerate(specs)]
    with recorder:
        recorder.output(function(*fakes))
    return Traced(recorder.graph, GraphLevel.PURE, recorder.constants)


def _copies(traced: Traced) -> list[tuple[int, ...]]:
    """The shapes of what is copied to the GPU."""
    copies = [node for node in traced.graph.nodes if node.target is aten._to_copy.default and node.kwargs.get("device")]
    assert all(node.kwargs["non_blocking"] for node in copies if node.kwargs["device"] == CUDA)
    return [tuple(tensor_spec(node).shape) for node in copies if node.kwargs["device"] == CUDA]


def _check(function: Callable[..., Any], *inputs: torch.Tensor) -> list[tuple[int, ...]]:
    """What is computed is the same, with the host in place of the GPU; what is copied there."""
    traced = _traced(function, *inputs)
    place_scalars(traced, RewriteBudget())
    traced.graph.lint()
    found = _copies(traced)
    for node in traced.graph.nodes:
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": HOST}
    ours = fx.Interpreter(fx.GraphModule({}, traced.graph)).run(*inputs)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(tuple(ours), tuple(function(*inputs)))
    return found


def test_what_pytorch_takes_for_a_number_stays_on_the_host() -> None:
    assert _check(lambda x, y, a, b: (x * a, y.lerp(y + 1, b), torch.where(x > a, x, b)), X, Y, A, B) == []


def _recorded(function: Callable[..., Any], *inputs: torch.Tensor) -> list[tuple[int, ...]]:
    """What is copied, of a graph whose numbers became tensors of the host after it was traced."""
    traced = _traced(function, *(each if each.dim() else each[None] for each in inputs))
    for node in traced.graph.nodes:
        if node.op == "placeholder" and tensor_spec(node).shape == (1,):
            set_spec(node, TensorSpec((), (), torch.float32, HOST))
    place_scalars(traced, RewriteBudget())
    traced.graph.lint()
    return _copies(traced)


def test_one_copy_for_all_readers() -> None:
    assert _recorded(lambda x, y, a: (torch.logaddexp(x, a), torch.logaddexp(y, a), x + a), X, Y, A) == [()]


def test_each_is_copied() -> None:
    assert _recorded(lambda x, y, a, b: (torch.logaddexp(x, a), torch.logaddexp(y, b)), X, Y, A, B) == [(), ()]
