"""A function and its compiled form side by side: values, gradients, graphs and breaks, the process left alike."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import smelt
from smelt.ir.nodes.ambient import Ambient

BACKENDS = ("eager", "aot_eager", "llvm")
every_backend = pytest.mark.parametrize("backend", BACKENDS)


def tensors_in(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, tuple | list):
        return [tensor for item in value for tensor in tensors_in(item)]
    return tensors_in(list(value.values())) if isinstance(value, dict) else []


def gradients(result: Any, wanted: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """Of a sum in which each element counts differently."""
    outputs = [tensor for tensor in tensors_in(result) if tensor.requires_grad]
    if not outputs:
        return []
    torch.manual_seed(1)
    weights = [torch.randn(tensor.shape, dtype=tensor.dtype) for tensor in outputs]
    torch.autograd.backward(outputs, weights)
    found = [tensor.grad for tensor in wanted]
    for tensor in wanted:
        tensor.grad = None
    return found


def same(
    function: Callable[..., Any],
    *args: Any,
    backend: str = "eager",
    graphs: int = 1,
    breaks: int = 0,
    fullgraph: bool | None = None,
    calls: int = 2,
    tolerance: float = 0.0,
    exact: bool = True,
) -> Any:
    """Call both, several times; the last result of the compiled one. `tolerance` is for kernels that round less often.

    Without `exact` it holds for every backend.
    """
    smelt.reset()
    compiled = smelt.compile(function, backend=backend, fullgraph=breaks == 0 if fullgraph is None else fullgraph)
    wanted = [tensor for tensor in tensors_in(args) if tensor.requires_grad]
    if isinstance(function, torch.nn.Module):
        wanted += list(function.parameters())
    for _ in range(calls):
        before = Ambient.now()
        torch.manual_seed(0)
        expected = function(*args)
        torch.manual_seed(0)
        got = compiled(*args)
        assert Ambient.now() == before
        allowed = tolerance if backend == "llvm" or not exact else 0.0
        agree(got, expected, allowed)
        agree(gradients(got, wanted), gradients(expected, wanted), allowed)
    assert smelt.counters["graphs"] == graphs, dict(smelt.counters)
    assert smelt.counters["graph_breaks"] == breaks, dict(smelt.counters)
    assert smelt.counters["eager_graphs"] == 0
    return got


def agree(got: Any, expected: Any, tolerance: float) -> None:
    assert type(got) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert got.dtype == expected.dtype and got.shape == expected.shape
        assert got.requires_grad == expected.requires_grad and got.is_inference() == expected.is_inference()
        allowed = max(tolerance, 1e-5)
        scale = expected.detach().abs().max().item() if expected.numel() else 0.0
        torch.testing.assert_close(got, expected, rtol=allowed, atol=allowed * scale, equal_nan=True)
    elif isinstance(expected, tuple | list):
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            agree(one, other, tolerance)
    elif isinstance(expected, dict):
        agree(list(got.items()), list(expected.items()), tolerance)
    else:
        assert got == expected
