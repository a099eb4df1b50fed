"""Comparing ahead-of-time autograd with eager: same values, same gradients, same layout."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from smelt.autograd.aot import aot_function
from smelt.autograd.joint.trace_joint import Joint, trace_joint
from smelt.autograd.partition import partition
from smelt.ir.graph import GraphLevel, Traced, check_graph, output_node, placeholders
from smelt.ir.tensorspec import TensorSpec, set_spec
from tests.targets import random_states, seeded

PARTITIONS = [partition.default, partition.min_cut]


@dataclass
class Seen:
    """The graphs a compiler was handed, in order: forward, then backward."""

    modules: list[fx.GraphModule] = field(default_factory=list)

    def compiler(self, module: fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        check_graph(module.graph, GraphLevel.PURE)
        assert len(examples) == len(placeholders(module.graph))
        self.modules.append(module)
        return module


def aot(function: Callable[..., Any], partition_fn: Any = partition.min_cut) -> Callable[..., Any]:
    """`function` through ahead-of-time autograd, its graphs run by PyTorch."""
    return aot_function(function, Seen().compiler, partition_fn=partition_fn)


def captured(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> Traced:
    """A torch-level graph of a function without control flow, as capture would hand it over."""
    module = fx.symbolic_trace(function)
    graph = module.graph
    for node, tensor in zip(placeholders(graph), inputs, strict=True):
        set_spec(node, TensorSpec.of(tensor))
    end = output_node(graph)
    if not isinstance(end.args[0], tuple | list):
        end.args = ((end.args[0],),)
    constants = {str(node.target): getattr(module, str(node.target)) for node in graph.nodes if node.op == "get_attr"}
    return Traced(graph, GraphLevel.TORCH, constants)


def joint_of(function: Callable[..., Any], *inputs: torch.Tensor) -> Joint:
    joint = trace_joint(captured(function, inputs), {})
    check_graph(joint.traced.graph, GraphLevel.PURE)
    return joint


def leaves(inputs: Sequence[Any]) -> list[Any]:
    """Fresh copies, so that two runs do not meet; layouts and `requires_grad` are kept."""
    made = []
    for tensor in inputs:
        copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
        made.append(copy.copy_(tensor.detach()).requires_grad_(tensor.requires_grad))
    return made


def outputs_of(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple | list) else [result]


def gradients_of(outputs: Sequence[Any], inputs: Sequence[Any], seed: int) -> list[Any]:
    generator = seeded(seed)
    chosen = [out for out in outputs if isinstance(out, torch.Tensor) and out.requires_grad]
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    if not chosen or not wanted:
        return []
    tangents = [torch.randn(out.shape, generator=generator, dtype=out.dtype) for out in chosen]
    return list(torch.autograd.grad(chosen, wanted, tangents, allow_unused=True))


def assert_same(mine: Any, eager: Any) -> None:
    assert type(mine) is type(eager)
    if not isinstance(eager, torch.Tensor):
        assert mine == eager
        return
    assert mine.dtype == eager.dtype and mine.shape == eager.shape
    assert mine.requires_grad == eager.requires_grad
    assert mine.stride() == eager.stride()
    torch.testing.assert_close(mine, eager, rtol=1e-12, atol=1e-12)


def compare(
    function: Callable[..., Any], inputs: Sequence[torch.Tensor], partition_fn: Any = partition.min_cut
) -> None:
    """Outputs, written inputs and gradients agree with eager, in float64, on a first and a second call."""
    compiled = aot(function, partition_fn)
    for seed in (1, 2):
        mine_in, eager_in = leaves(inputs), leaves(inputs)
        torch.manual_seed(seed)
        mine = outputs_of(compiled(*mine_in))
        mine_states = random_states()
        torch.manual_seed(seed)
        eager = outputs_of(function(*eager_in))
        assert all(map(torch.equal, mine_states, random_states()))
        assert len(mine) == len(eager)
        for one, other in zip([*mine, *mine_in], [*eager, *eager_in], strict=True):
            assert_same(one, other)
        for one, other in zip(gradients_of(mine, mine_in, seed), gradients_of(eager, eager_in, seed), strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
