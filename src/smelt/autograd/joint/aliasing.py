"""Outputs that share memory: with inputs, with each other, or with an intermediate nobody returns.

    y = x + 1; return y.t(), y[0], x.view(-1)

    results: (add,)   outputs: FromResult(0, (t,)), FromResult(0, (select,)), FromInput(0, (view,))

Only values with memory of their own are computed by the graph; everything else is rebuilt outside as views of them or
of the real inputs, so that aliasing, in-place writes afterwards and autograd's own view tracking are PyTorch's.
"""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from smelt.autograd.joint.functional_trace import CannotTrace, settled, storage_id
from smelt.base.fast_dataclass import dataclass
from smelt.ir.call_contract import AsStrided, FromInput, FromResult, Output, Plain, SameAsOutput, Steps, ViewStep
from smelt.ir.tensorspec import tensor_spec
from smelt.meta import effects
from smelt.symbolic.shapes import is_dense

aten = torch.ops.aten

_PARTS = frozenset({operator.getitem, aten.select.int, aten.slice.Tensor})


@dataclass(frozen=True, slots=True)
class Result:
    """A value the graph computes for its caller: the tensor autograd knows, and the output that shows it.

    `shown` is the position of an output that is this value or, with `beneath`, a view of it.
    """

    tensor: torch.Tensor
    node: fx.Node
    shown: int
    beneath: bool


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Every output accounted for, and the results that takes."""

    outputs: tuple[Output, ...]
    results: tuple[Result, ...]
    copied: tuple[int, ...]


def is_view(node: fx.Node) -> bool:
    """Whether a node yields memory of its first argument; `_unsafe_view` does without saying so."""
    if node.target is operator.getitem:
        source = node.args[0]
        return isinstance(source, fx.Node) and is_view(source)
    return effects.is_view(node.target) or node.target is aten._unsafe_view.default


def view_root(node: fx.Node) -> fx.Node:
    """The node whose memory a chain of views shows."""
    while is_view(node):
        source = node.args[0]
        if not isinstance(source, fx.Node):
            break
        node = source
    return node


def views_to_copy(gradients: Mapping[int, fx.Node | None]) -> list[int]:
    """Gradients that may not be the views they are, of what another gradient lies in too, or of what came in.

    Leaves take a gradient that lies as they do, and that nobody else has, as their own and add to it in place: two that
    overlap would be added to twice. Eager has copied the one before the other is made a view of. One that is returned
    twice is seen.
    """
    ways = {index: _way_to(node) for index, node in gradients.items() if node is not None}
    by_root: dict[fx.Node, list[list[fx.Node]]] = {}
    for way in ways.values():
        by_root.setdefault(way[0], []).append(way)
    found = []
    for index, way in ways.items():
        root, spec = way[0], tensor_spec(way[-1])
        if len(way) == 1 or not is_dense(spec.shape, spec.stride):
            continue
        if root.op != "call_function" or not all(way is other or _are_apart(way, other) for other in by_root[root]):
            found.append(index)
    return found


def _way_to(node: fx.Node) -> list[fx.Node]:
    """A chain of views, from what they show to the node."""
    way = [node]
    while is_view(way[-1]) and isinstance(source := way[-1].args[0], fx.Node):
        way.append(source)
    return way[::-1]


def _are_apart(one: Sequence[fx.Node], other: Sequence[fx.Node]) -> bool:
    """Whether two chains of views of the same memory show no element both."""
    pair = next(((mine, theirs) for mine, theirs in zip(one, other, strict=False) if mine is not theirs), None)
    if pair is None or pair[0].target is not pair[1].target or pair[0].target not in _PARTS:
        return False
    if pair[0].target is operator.getitem:
        return True  # two of the parts that a tensor was taken into
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
    """Sort a graph's outputs (functional tensors, plain values) by whose memory they show."""
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
        _go_through_each_other(outputs, positions, recipes)
    first: dict[int, int] = {}
    for position, output in enumerate(outputs):
        seen = first.setdefault(id(output), position) if isinstance(output, torch.Tensor) else position
        if seen != position:
            recipes[position] = SameAsOutput(seen)
    return Arrangement(tuple(recipes), tuple(results), _copied(results))


def _go_through_each_other(outputs: Sequence[object], positions: Sequence[int], recipes: list[Output]) -> None:
    """Make views of outputs that are views themselves of those, not of what both show: hooks on them tell."""
    views: dict[Any, int] = {}  # by where their gradients arrive
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
        node, base_node = settled(shown).node, settled(base).node
        steps = view_steps(node, base_node) if node is not None and base_node is not None else None
        if steps:
            recipes[position] = replace(recipe, steps=steps, through=through)


def _is_alias(recipe: Output) -> bool:
    return isinstance(recipe, FromResult | FromInput) and recipe.alias and not recipe.detached and bool(recipe.steps)


def _result_for(outputs: Sequence[object], positions: Sequence[int]) -> Result:
    """The tensor that all these outputs are, or are views of: one that gradients flow through, if there is one, and one
    that others are views of. What is done to a tensor later, say that it shall require grad, shows in its views."""
    candidates: list[tuple[torch.Tensor, int, bool]] = []
    several = len({id(outputs[position]) for position in positions}) > 1
    for position in positions:
        output = outputs[position]
        assert isinstance(output, torch.Tensor)
        apart = not several and not (output.requires_grad and _made(output) == "MULTI_OUTPUT_NODE")
        base = None if apart or not output._is_view() else output._base
        candidates.append((output, position, False) if base is None else (base, position, True))
    bases = {id(tensor) for tensor, _, beneath in candidates if beneath}
    candidates.sort(key=lambda each: (not each[0].requires_grad, id(each[0]) not in bases, each[2]))
    tensor, position, beneath = candidates[0]
    node = settled(tensor).node
    assert node is not None
    return Result(tensor, node, position, beneath)


def _alias_of(output: object, base: torch.Tensor) -> tuple[Steps, bool, bool, str]:
    """(steps, alias, detached, made) that make `output` of `base`."""
    assert isinstance(output, torch.Tensor)
    if output is base:
        made = _made(output)
        return (), made != "DEFAULT", False, made
    if output.requires_grad and _made(output) == "IN_CUSTOM_FUNCTION":
        raise CannotTrace("an output is a view whose derivative the program wrote itself")
    detached = base.requires_grad and not output.requires_grad
    node, base_node = settled(output).node, settled(base).node
    assert node is not None and base_node is not None
    steps = view_steps(node, base_node)
    if steps is None:
        shown, beneath = tensor_spec(node), tensor_spec(base_node)
        if output.dtype != base.dtype or output.is_conj() != base.is_conj() or output.is_neg() != base.is_neg():
            raise CannotTrace("an output shows the memory of another value as something else")
        steps = (AsStrided(tuple(output.shape), tuple(output.stride()), shown.offset - beneath.offset),)
    if not output._is_view():
        if output.requires_grad:
            raise CannotTrace("an output shows the memory of another value and has gradients of its own")
        return (*steps, ViewStep(aten.detach.default, ())), True, False, "DEFAULT"
    return steps, True, detached, _made(output)


def _made(output: torch.Tensor) -> str:
    """How a view came about, in PyTorch's word; "DEFAULT" for what may be written like any tensor."""
    return str(torch._C._autograd._get_creation_meta(output).name) if output._is_view() else "DEFAULT"


def _copied(results: Sequence[Result]) -> tuple[int, ...]:
    """Results whose node shares memory with an input, a constant or an earlier result, though eager's does not."""
    taken: set[fx.Node] = set()
    found: list[int] = []
    for index, result in enumerate(results):
        root = view_root(result.node)
        if root in taken or root.op in ("placeholder", "get_attr"):
            found.append(index)
        taken.add(root)
    return tuple(found)
