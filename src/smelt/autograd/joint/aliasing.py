"""Outputs that alias inputs, each other, or an intermediate that is not returned.

    y = x + 1; return y.t(), y[0], x.view(-1)

    results: (add,)   outputs: FromResult(0, (t,)), FromResult(0, (select,)), FromInput(0, (view,))

The graph returns only values that own their memory; everything else is rebuilt outside as views of them or of the real
inputs, so that aliasing, later in-place writes and view tracking are PyTorch's own.
"""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from smelt.autograd.joint.functional_tensors import storage_id, synced
from smelt.autograd.joint.functional_trace import CannotTrace
from smelt.base.fast_dataclass import dataclass
from smelt.ir.call_contract import AsStrided, FromInput, FromResult, Output, Plain, SameAsOutput, Steps, ViewStep
from smelt.ir.tensorspec import tensor_spec
from smelt.meta import effects
from smelt.symbolic.shapes import is_dense

aten = torch.ops.aten

_PARTS = frozenset({operator.getitem, aten.select.int, aten.slice.Tensor})


@dataclass(frozen=True, slots=True)
class Result:
    """A value the graph returns: the tensor autograd knows, and an output made of it.

    `shown` is the position of an output that is this value or, with `is_base`, a view of it.
    """

    tensor: torch.Tensor
    node: fx.Node
    shown: int
    is_base: bool


@dataclass(frozen=True, slots=True)
class Arrangement:
    """How each output is made, and the results that needs."""

    outputs: tuple[Output, ...]
    results: tuple[Result, ...]
    copied: tuple[int, ...]


def is_view(node: fx.Node) -> bool:
    """Whether a node aliases its first argument; `_unsafe_view` does so undeclared."""
    if node.target is operator.getitem:
        source = node.args[0]
        return isinstance(source, fx.Node) and is_view(source)
    return effects.is_view(node.target) or node.target is aten._unsafe_view.default


def view_root(node: fx.Node) -> fx.Node:
    """The base of a chain of views."""
    while is_view(node):
        source = node.args[0]
        if not isinstance(source, fx.Node):
            break
        node = source
    return node


def views_to_copy(gradients: Mapping[int, fx.Node | None]) -> list[int]:
    """Gradients that must be copied: views that overlap another gradient, or alias an input of the graph.

    A leaf takes a gradient with its own strides as `.grad` without a copy, and accumulates into it in place: two that
    overlap would accumulate twice. Eager has copied by then. The runtime handles one tensor returned twice.
    """
    chains = {index: _view_chain(node) for index, node in gradients.items() if node is not None}
    by_root: dict[fx.Node, list[list[fx.Node]]] = {}
    for chain in chains.values():
        by_root.setdefault(chain[0], []).append(chain)
    indices = []
    for index, chain in chains.items():
        root, spec = chain[0], tensor_spec(chain[-1])
        if len(chain) == 1 or not is_dense(spec.shape, spec.stride):
            continue
        others = [other for other in by_root[root] if other is not chain]
        if root.op != "call_function" or not all(_are_disjoint(chain, other) for other in others):
            indices.append(index)
    return indices


def _view_chain(node: fx.Node) -> list[fx.Node]:
    """A chain of views, from its base to the node."""
    chain = [node]
    while is_view(chain[-1]) and isinstance(source := chain[-1].args[0], fx.Node):
        chain.append(source)
    return chain[::-1]


def _are_disjoint(one: Sequence[fx.Node], other: Sequence[fx.Node]) -> bool:
    """Whether two chains of views of one base are surely disjoint."""
    pair = next(((mine, theirs) for mine, theirs in zip(one, other, strict=False) if mine is not theirs), None)
    if pair is None or pair[0].target is not pair[1].target or pair[0].target not in _PARTS:
        return False
    if pair[0].target is operator.getitem:
        return True  # two outputs of `split` or `unbind`
    mine: list[Any] = list(pair[0].args[1:])
    theirs: list[Any] = list(pair[1].args[1:])
    if mine[:1] != theirs[:1] or any(bound is None or bound < 0 for bound in (*mine[1:], *theirs[1:])):
        return False
    if pair[0].target is aten.select.int:
        return bool(mine[1] != theirs[1])
    if pair[0].target is aten.slice.Tensor and len(mine) == len(theirs) == 3:
        return bool(mine[2] <= theirs[1] or theirs[2] <= mine[1])
    return False


def view_steps(node: fx.Node, base: fx.Node) -> Steps | None:
    """The views that lead from `base` to `node`, or None if no such chain was recorded."""
    steps: list[ViewStep] = []
    item: int | None = None
    while node is not base:
        source = node.args[0] if is_view(node) else None
        if not isinstance(source, fx.Node):
            return None
        if node.target is operator.getitem:
            item = node.args[1] if isinstance(node.args[1], int) else None
        else:
            if len(node.all_input_nodes) > 1:
                return None
            assert isinstance(node.target, torch._ops.OpOverload)
            steps.append(ViewStep(node.target, tuple(node.args[1:]), tuple(node.kwargs.items()), item))
            item = None
        node = source
    return tuple(reversed(steps))


def arrange(outputs: Sequence[object], inputs: Sequence[torch.Tensor]) -> Arrangement:
    """Group a graph's outputs (functional tensors, plain values) by the storage they alias."""
    input_of = {storage_id(tensor): index for index, tensor in enumerate(inputs)}
    sharing: dict[int, list[int]] = {}
    for position, output in enumerate(outputs):
        if isinstance(output, torch.Tensor):
            sharing.setdefault(storage_id(output), []).append(position)
    recipes: list[Output] = [Plain(None if isinstance(output, torch.Tensor) else output) for output in outputs]
    results: list[Result] = []
    for storage, positions in sharing.items():
        index = input_of.get(storage)
        if index is not None:
            for position in positions:
                recipes[position] = FromInput(index, *_alias_of(outputs[position], inputs[index]))
            continue
        result = _result_for(outputs, positions)
        for position in positions:
            recipes[position] = FromResult(len(results), *_alias_of(outputs[position], result.tensor))
        results.append(result)
    for positions in sharing.values():
        _chain_views(outputs, positions, recipes)
    first: dict[int, int] = {}
    for position, output in enumerate(outputs):
        seen = first.setdefault(id(output), position) if isinstance(output, torch.Tensor) else position
        if seen != position:
            recipes[position] = SameAsOutput(seen)
    return Arrangement(tuple(recipes), tuple(results), _copied(results))


def _chain_views(outputs: Sequence[object], positions: Sequence[int], recipes: list[Output]) -> None:
    """Make a view of an output that is itself a view from that output, not from their base: hooks observe the
    difference."""
    views: dict[Any, int] = {}  # by node and output number
    for position in positions:
        output, recipe = outputs[position], recipes[position]
        if isinstance(output, torch.Tensor) and output.grad_fn is not None and _is_alias(recipe):
            views.setdefault((output.grad_fn, output.output_nr), position)
    if len(views) < 2:
        return
    for (start, _), position in views.items():
        edges = start.next_functions
        while len(edges) == 1 and edges[0] not in views:
            edges = edges[0][0].next_functions if edges[0][0] is not None else ()
        recipe = recipes[position]
        if len(edges) != 1 or not isinstance(recipe, FromResult | FromInput):
            continue
        through = views[edges[0]]
        shown, base = outputs[position], outputs[through]
        assert isinstance(shown, torch.Tensor) and isinstance(base, torch.Tensor)
        node, base_node = synced(shown).node, synced(base).node
        steps = view_steps(node, base_node) if node is not None and base_node is not None else None
        if steps:
            recipes[position] = replace(recipe, steps=steps, through=through)


def _is_alias(recipe: Output) -> bool:
    return isinstance(recipe, FromResult | FromInput) and recipe.alias and not recipe.detached and bool(recipe.steps)


def _result_for(outputs: Sequence[object], positions: Sequence[int]) -> Result:
    """The tensor that all these outputs are or are views of: preferably one that requires grad, and one that others are
    views of, since later changes of a base (`requires_grad_()`) show in its views."""
    candidates: list[tuple[torch.Tensor, int, bool]] = []
    several = len({id(outputs[position]) for position in positions}) > 1
    for position in positions:
        output = outputs[position]
        assert isinstance(output, torch.Tensor)
        alone = not several and not (output.requires_grad and _creation_meta(output) == "MULTI_OUTPUT_NODE")
        base = None if alone or not output._is_view() else output._base
        candidates.append((output, position, False) if base is None else (base, position, True))
    bases = {id(tensor) for tensor, _, is_base in candidates if is_base}
    candidates.sort(key=lambda each: (not each[0].requires_grad, id(each[0]) not in bases, each[2]))
    tensor, position, is_base = candidates[0]
    node = synced(tensor).node
    assert node is not None
    return Result(tensor, node, position, is_base)


def _alias_of(output: object, base: torch.Tensor) -> tuple[Steps, bool, bool, str]:
    """(steps, alias, detached, creation_meta) that make `output` of `base`."""
    assert isinstance(output, torch.Tensor)
    if output is base:
        creation_meta = _creation_meta(output)
        return (), creation_meta != "DEFAULT", False, creation_meta
    if output.requires_grad and _creation_meta(output) == "IN_CUSTOM_FUNCTION":
        raise CannotTrace("an output is a view made by a torch.autograd.Function")
    detached = base.requires_grad and not output.requires_grad
    node, base_node = synced(output).node, synced(base).node
    assert node is not None and base_node is not None
    steps = view_steps(node, base_node)
    if steps is None:
        shown, is_base = tensor_spec(node), tensor_spec(base_node)
        if output.dtype != base.dtype or output.is_conj() != base.is_conj() or output.is_neg() != base.is_neg():
            raise CannotTrace("an output aliases another value with a different dtype or conjugation")
        steps = (AsStrided(tuple(output.shape), tuple(output.stride()), shown.offset - is_base.offset),)
    if not output._is_view():
        if output.requires_grad:
            raise CannotTrace("an output aliases another value, is no view of it, and requires grad")
        return (*steps, ViewStep(aten.detach.default, ())), True, False, "DEFAULT"
    return steps, True, detached, _creation_meta(output)


def _creation_meta(output: torch.Tensor) -> str:
    """The creation meta of a view; "DEFAULT" for a tensor that is none."""
    return str(torch._C._autograd._get_creation_meta(output).name) if output._is_view() else "DEFAULT"


def _copied(results: Sequence[Result]) -> tuple[int, ...]:
    """Results whose node aliases an input, a constant or an earlier result, though eager's does not."""
    taken: set[fx.Node] = set()
    indices: list[int] = []
    for index, result in enumerate(results):
        root = view_root(result.node)
        if root in taken or root.op in ("placeholder", "get_attr"):
            indices.append(index)
        taken.add(root)
    return tuple(indices)
