"""A chip's graph that counts on the host: what the host computes for itself comes first, the rest is the chip's.

    step.add_(1); n = step.item()                 ──►   the host's, operator by operator: n
    p.addcdiv_(m, v, value=-rate / (1 - b**n))    ──►   a graph on the chip, which n is given to as a number

Optimizers keep their counts of steps on the host. The host's part reads nothing that the chip computes, and the chip is
given nothing of it but numbers, so that one can run before the other.
"""

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from smelt.base.fast_dataclass import dataclass
from smelt.device.host_library import HOST
from smelt.ir.graph import Traced, add_copy, outputs
from smelt.ir.tensorspec import NumberSpec, TensorSpec, set_spec, spec_of
from smelt.symbolic.expressions import Expression
from smelt.symbolic.symnode import Formula

Run = Callable[..., tuple[Any, ...]]

_COUNTS = frozenset({
    "add", "sub", "mul", "div", "pow", "sqrt", "neg", "clone", "detach", "copy", "getitem",
    "tensor", "zeros", "ones", "full", "zeros_like", "ones_like", "full_like",
})  # fmt: skip
"""What the host may compute ahead of the chip, by name and in place: it draws no numbers, and depends on no mode."""


@dataclass(frozen=True, slots=True)
class HostPart:
    """A graph in two. `chip` takes the inputs numbered `inputs` of the whole, then what `host` returns at `numbers`;
    each result of the whole is that of one of the two."""

    host: Traced
    host_inputs: tuple[int, ...]
    chip: Traced
    chip_inputs: tuple[int, ...]
    numbers: tuple[int, ...]
    results: tuple[tuple[bool, int], ...]  # whether it is the host's, and which of its results


def divided(traced: Traced) -> HostPart | str:
    """The two parts, or why there are none."""
    graph = traced.graph
    ours = _host_nodes(graph)
    if not any(node.op != "placeholder" for node in ours):
        return "the host computes nothing ahead"
    items = [node for node in ours if _is_item(node)]
    for node in graph.nodes:
        if node in ours or node.op == "output":
            continue
        taken = next((each for each in node.all_input_nodes if each in ours and each not in items), None)
        if taken is not None:
            return f"{node.name} is given {taken.name} of the host"
    returned = outputs(graph)
    if any(isinstance(each, fx.Node) and each in items for each in returned):
        return "a number of the host is returned"
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    host_results = [node for node in dict.fromkeys(returned) if isinstance(node, fx.Node) and node in ours]
    host_inputs = tuple(place for place, node in enumerate(inputs) if node in ours)
    chip_inputs = tuple(place for place, node in enumerate(inputs) if node not in ours)
    host = _copied(traced, [node for node in graph.nodes if node in ours], [*items, *host_results])
    rest = [each for each in returned if not (isinstance(each, fx.Node) and each in ours)]
    chip = _with_numbers(traced, ours, items, rest)
    if isinstance(chip, str):
        return chip
    results, place = [], 0
    for each in returned:
        if isinstance(each, fx.Node) and each in ours:
            results.append((True, len(items) + host_results.index(each)))
        else:
            results.append((False, place))
            place += 1
    return HostPart(host, host_inputs, chip, chip_inputs, tuple(range(len(items))), tuple(results))


def run_divided(traced: Traced, parts: HostPart, chip: Run) -> Run:
    """The whole graph, given what runs the chip's part of it."""
    host = parts.host.plainly()

    writes = any(_written_name(node).endswith("_") for node in parts.host.graph.nodes)

    def run(*inputs: Any) -> tuple[Any, ...]:
        ours = [inputs[place] for place in parts.host_inputs]
        with torch.no_grad():
            before = [each.clone() for each in ours] if writes else []
            counted = host(*ours)
        try:
            outputs = chip(*[inputs[i] for i in parts.chip_inputs], *[counted[place] for place in parts.numbers])
        except BaseException:
            with torch.no_grad():  # what was not computed is not counted
                for each, was in zip(ours, before, strict=False):
                    each.copy_(was)
            raise
        return tuple([counted[place] if is_host else outputs[place] for is_host, place in parts.results])

    return run if traced.undoing is None else traced.undoing(run)


def _host_nodes(graph: fx.Graph) -> set[fx.Node]:
    """Tensors of the host, what is computed of them alone, and numbers that are read out of these."""
    ours: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "placeholder":
            is_ours = _is_host_tensor(spec_of(node))
        elif _is_item(node):
            is_ours = node.args[0] in ours
        else:
            known = node.op in ("call_function", "call_method") and _name(node) in _COUNTS
            is_ours = known and _is_host_tensor(spec_of(node)) and all(each in ours for each in node.all_input_nodes)
        if is_ours:
            ours.add(node)
    return ours


def _written_name(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _name(node: fx.Node) -> str:
    return _written_name(node).removeprefix("_foreach_").rstrip("_")


def _is_item(node: fx.Node) -> bool:
    spec = spec_of(node)
    return (
        node.op == "call_method"
        and node.target == "item"
        and isinstance(spec, NumberSpec)
        and isinstance(spec.what, Formula)
    )


def _is_host_tensor(spec: Any) -> bool:
    specs = spec if isinstance(spec, tuple) else (spec,)
    return bool(specs) and all(
        isinstance(each, TensorSpec) and each.device.type == HOST.type and not each.requires_grad for each in specs
    )


def _copied(traced: Traced, nodes: Sequence[fx.Node], returned: Sequence[fx.Node]) -> Traced:
    graph, copies = fx.Graph(), dict[fx.Node, Any]()
    for node in nodes:
        copies[node] = add_copy(graph, node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in returned))
    return Traced(graph, traced.level, traced.constants)


def _with_numbers(
    traced: Traced, ours: set[fx.Node], items: Sequence[fx.Node], returned: Sequence[Any]
) -> Traced | str:
    """The chip's part, with numbers that the host has read as its last inputs."""
    graph, copies = fx.Graph(), dict[fx.Node, Any]()
    rest = [node for node in traced.graph.nodes if node not in ours and node.op != "output"]
    for node in rest:
        if node.op == "placeholder":
            copies[node] = add_copy(graph, node, copies.__getitem__)
    for node in items:
        copies[node] = graph.placeholder(node.name)
        spec = spec_of(node)
        assert isinstance(spec, NumberSpec)
        set_spec(copies[node], NumberSpec(Formula(None, (), float(_example(spec.what)), copies[node].name)))
    for node in rest:
        if node.op == "placeholder":
            continue
        copies[node] = add_copy(graph, node, copies.__getitem__)
        if isinstance(spec_of(node), NumberSpec) and any(_is_new(copies[each]) for each in node.all_input_nodes):
            what = _formula(copies[node])
            if what is None:
                return f"{node.name} is a number that is not computed by an operator"
            set_spec(copies[node], NumberSpec(what))
    graph.output(tuple(copies[each] if isinstance(each, fx.Node) else each for each in returned))
    return replace(traced, graph=graph, undoing=None)


def _example(what: Any) -> Any:
    return what.example if isinstance(what, Formula) else what


def _is_new(node: fx.Node) -> bool:
    """Whether a number of the chip's part depends on one that the host reads."""
    spec = spec_of(node)
    return isinstance(spec, NumberSpec) and isinstance(spec.what, Formula) and not spec.what.is_computed


def _formula(node: fx.Node) -> Formula | None:
    """A number as a function of those that it is computed from."""
    function: Callable[..., Any] = node.target  # type: ignore[assignment]
    if node.op != "call_function" or node.kwargs or getattr(operator, _written_name(node), None) is not function:
        return None
    operands: list[Any] = []
    examples: list[Any] = []
    args: tuple[Any, ...] = node.args
    for each in args:
        spec = spec_of(each) if isinstance(each, fx.Node) else None
        if spec is not None and not (isinstance(spec, NumberSpec) and isinstance(spec.what, Formula | Expression)):
            return None
        operands.append(spec.what if isinstance(spec, NumberSpec) else each)
        is_float = isinstance(operands[-1], Formula)
        examples.append(operands[-1].example if is_float else each if spec is None else 2)
    try:
        example = float(function(*examples))
    except (ArithmeticError, ValueError, TypeError):
        example = 2.0
    return Formula(function, tuple(operands), example, f"{node.name}(…)")
