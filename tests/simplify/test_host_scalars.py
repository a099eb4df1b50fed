"""Numbers of the host that a GPU computes with: those that can be are copied together, and each reader gets its own."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import fx

from smelt.base.fuel import Fuel
from smelt.ir.graph import GraphLevel, Traced
from smelt.ir.tensorspec import TensorSpec, tensor_spec
from smelt.meta.ghost import Recorder
from smelt.simplify import place_scalars

aten = torch.ops.aten
HOST, CUDA = torch.device("cpu"), torch.device("cuda", 0)
X, Y, A, B, C = torch.arange(6.0), torch.arange(4.0), torch.tensor(2.0), torch.tensor(3.0), torch.tensor(5.0)


def _placed(function: Callable[..., Any], *inputs: torch.Tensor) -> Traced:
    """The graph of a function of tensors on a GPU, but for those without dimensions."""
    recorder = Recorder()
    specs = [replace(TensorSpec.of(each), device=CUDA if each.dim() else HOST) for each in inputs]
    ghosts = [recorder.placeholder(f"x{number}", spec) for number, spec in enumerate(specs)]
    with recorder:
        recorder.output(function(*ghosts))
    traced = Traced(recorder.graph, GraphLevel.PURE, recorder.constants)
    place_scalars(traced, Fuel())
    traced.graph.lint()
    for node in traced.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and torch.Tag.pointwise in node.target.tags:
            assert len({tensor_spec(each).device for each in node.all_input_nodes}) == 1
    return traced


def _copies(traced: Traced) -> list[tuple[int, ...]]:
    """The shapes of what is copied to the GPU."""
    copies = [node for node in traced.graph.nodes if node.target is aten._to_copy.default and node.kwargs.get("device")]
    assert all(node.kwargs["non_blocking"] for node in copies if node.kwargs["device"] == CUDA)
    return [tuple(tensor_spec(node).shape) for node in copies if node.kwargs["device"] == CUDA]


def _check(function: Callable[..., Any], *inputs: torch.Tensor) -> list[tuple[int, ...]]:
    """What is computed is the same, with the host in place of the GPU; what is copied there."""
    traced = _placed(function, *inputs)
    found = _copies(traced)
    for node in traced.graph.nodes:
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": HOST}
    ours = fx.Interpreter(fx.GraphModule({}, traced.graph)).run(*inputs)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(tuple(ours), tuple(function(*inputs)))
    return found


def test_one_is_copied_by_itself() -> None:
    assert _check(lambda x, y, a: (x * a, y + a), X, Y, A) == [()]


def test_two_are_copied_each() -> None:
    assert _check(lambda x, y, a, b: (x * a, y + b), X, Y, A, B) == [(), ()]


def _each(x: Any, y: Any, *scalars: Any) -> Any:
    return [(x if number % 2 else y) * scalar for number, scalar in enumerate(scalars)]


@pytest.mark.parametrize("dtype, width", [(torch.float32, 4), (torch.float64, 2), (torch.int64, 2)])
def test_several_are_copied_together(dtype: torch.dtype, width: int) -> None:
    given = [each.to(dtype) for each in (X, Y, A, B, C, A, B)]
    assert _check(_each, *given) == [(5, width)]


def test_what_is_computed_between_their_readers_comes_before() -> None:
    def update(x: Any, y: Any, *steps: Any) -> Any:
        found = []
        for step in steps:
            step = step + 1
            found += [step, x / (1 - 0.5**step), y / (1 - 0.25**step).sqrt()]
        return found

    assert _check(update, X, Y, A, B, C) == [(6, 4)]


def test_dtypes_are_copied_apart() -> None:
    given = [*(each.clone() for each in (A, B, C, A)), *(each.long() for each in (A, B, C, A, B))]
    assert _check(_each, X, Y, *given) == [(4, 4), (5, 2)]


def test_nothing_comes_before_a_call_that_may_find_no_memory() -> None:
    def step(x: Any, y: Any, *scalars: Any) -> Any:
        before = _each(x, y, *scalars[:4])
        product = before[1].view(2, 3) @ x.view(3, 2)
        return [product, *_each(x, y, *(each + 1 for each in scalars[4:]))]

    assert _check(step, X, Y, A, B, C, A, B, C, A, B, C) == [(4, 4), (5, 4)]


def test_what_the_device_decides_waits_for_it() -> None:
    def step(x: Any, y: Any, *scalars: Any) -> Any:
        largest = (x * scalars[0]).amax().to("cpu")
        return [*_each(x, y, *scalars), y * (largest + scalars[0])]

    assert _check(step, X, Y, A, B, C, A) == [(4, 4), ()]
