"""A program that draws random numbers gets a generator of its own: a seed, and an offset that it moves, as inputs.

    w = random_words(64, cpu)      →   w = philox_words(seed, offset, 64, 0)
    v = random_words(8, cpu)           v = philox_words(seed, offset, 8, 1)
                                       new value of offset: offset + 2

So what an artifact draws follows from two numbers of its state.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import fx

from smelt.ir.call_contract import JointPlan
from smelt.ir.graph import Traced, output_node, outputs, placeholders
from smelt.ir.nodes.random_words import PHILOX_WORDS, RANDOM_WORDS
from smelt.ir.tensorspec import TensorSpec, set_spec, tensor_spec


def with_own_generator(pure: Traced, plan: JointPlan) -> tuple[Traced, JointPlan, bool]:
    """The graph with seed and offset as its last inputs; whether it draws at all. The new offset is the last of the
    plan's new values."""
    graph = pure.graph
    drawn = [node for node in graph.nodes if node.target is RANDOM_WORDS]
    if not drawn:
        return pure, plan, False
    device = tensor_spec(drawn[0]).device
    number = TensorSpec((), (), torch.int64, device)
    inputs = placeholders(graph)
    first = next(node for node in graph.nodes if node.op != "placeholder")
    with graph.inserting_before(first):
        seed, offset = (_with_spec(graph.placeholder(name), number) for name in ("random_seed", "random_offset"))
    for after, node in enumerate(drawn):
        with graph.inserting_before(node):
            words = graph.call_function(PHILOX_WORDS, (seed, offset, node.args[0], after))
        words.meta.update(node.meta)
        node.replace_all_uses_with(words)
        graph.erase_node(node)
    end = output_node(graph)
    returned: list[Any] = list(outputs(graph))
    with graph.inserting_before(end):
        moved = _with_spec(graph.call_function(torch.ops.aten.add.Tensor, (offset, len(drawn))), number)
    place = plan.forward_outputs
    returned.insert(place, moved)
    end.args = (tuple(returned),)
    writes = tuple((at + (at >= place), index) for at, index in pure.writes)
    index = len(inputs) + 1
    made_plan = replace(
        plan,
        inputs=plan.inputs + 2,
        mutated_inputs=(*plan.mutated_inputs, index),
        version_bumps=(*plan.version_bumps, 1) if plan.version_bumps else (),
    )
    return replace(pure, writes=(*writes, (place, index))), made_plan, True


def _with_spec(node: fx.Node, spec: TensorSpec) -> fx.Node:
    set_spec(node, spec)
    return node
