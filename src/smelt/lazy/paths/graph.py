"""A recorded path as a torch-level graph: the steps as calls, inputs and numbers that vary as placeholders.

The graph writes in place and takes views as the program did; the stage behind it makes it functional. Its outputs are
the whole memories that somebody can still see. Where sizes are symbols, those of inputs are, and arguments that are
sizes are computed from them."""

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from smelt.dispatch import fused_optimizers, loss_scaling
from smelt.ir.graph import GraphLevel, Traced, add_node
from smelt.ir.tensorspec import NumberSpec, TensorSpec, set_spec
from smelt.lazy.paths.families import SymbolicSizes, size_arguments
from smelt.lazy.paths.replay import resolver
from smelt.lazy.paths.strided import calls_of
from smelt.lazy.steps import Fresh, Ref, Step, View, at
from smelt.symbolic.expressions import Expression, Symbol
from smelt.symbolic.symnode import Formula, as_number

aten = torch.ops.aten

_IN_PLACE = {**loss_scaling.IN_PLACE, **fused_optimizers.IN_PLACE}


def build(
    path: Sequence[Step],
    live: Sequence[int],
    numbers: Sequence[Any],
    varying: Mapping[int, int],
    device: torch.device,
    sizes: SymbolicSizes | None = None,
) -> Traced:
    """The graph of a path. Inputs are its tensors, numbers at the places `varying`, one for all with the same
    leader, then sizes that are `given`."""
    graph = fx.Graph()
    values: dict[int, fx.Node] = {}
    known = _Sizes(graph, sizes)
    rows = known.rows(path)
    for step, row in zip(path, rows, strict=True):
        if step.layout is not None:
            values[step.first_value] = known.placeholder(step.layout, row, len(values), device)
    leaders = sorted(set(varying.values()))
    operands = {place: _number(graph, numbers[place], count) for count, place in enumerate(leaders)}
    operands |= {place: operands[leader] for place, leader in varying.items()}
    known.add_given()
    wholes = _Wholes(graph)

    real = resolver(values, lambda place: operands.get(place, numbers[place]))

    for step, row in zip(path, rows, strict=True):
        if step.operator is None:
            wholes.add(step.first_value, values[step.first_value], step.layout)
            continue
        if sizes is None and (node := wholes.seen(step)) is not None:
            values[step.first_value] = node
            continue
        given_args, given_kwargs = known.arguments(step, row)
        args = tuple(map(real, given_args))
        kwargs = {name: real(value) for name, value in given_kwargs.items()}
        called = _IN_PLACE.get(step.operator, step.operator)
        node = add_node(graph, "call_function", called, args, kwargs)
        value = step.first_value
        for place, result in enumerate(step.results):
            if not isinstance(result, Fresh | View):
                continue
            one = step.form is None
            values[value] = node if one else add_node(graph, "call_function", operator.getitem, (node, place), {})
            wholes.add_result(step, result, value, values[value])
            value += 1
    graph.output(tuple(values[value] for value in live))
    return Traced(graph, GraphLevel.TORCH)


class _Wholes:
    """For each value the one that is all of its memory. Views of it by strides are made of slices."""

    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph
        self._found: dict[int, tuple[fx.Node, Any]] = {}

    def add(self, value: int, node: fx.Node, layout: Any) -> None:
        self._found[value] = (node, layout)

    def add_result(self, step: Step, result: Fresh | View, value: int, node: fx.Node) -> None:
        if isinstance(result, Fresh):
            self.add(value, node, result.layout)
            return
        of = at(result.path, step.args, step.kwargs)
        if isinstance(of, Ref) and of.value in self._found:
            self._found[value] = self._found[of.value]

    def seen(self, step: Step) -> fx.Node | None:
        """A view by strides; None for other calls, and where slices do not make it."""
        if step.operator is not aten.as_strided.default or len(step.args) != 4:
            return None
        (result,) = step.results
        if step.args[0].value not in self._found or not isinstance(result, Fresh | View):
            return None
        whole = self._found[step.args[0].value]
        node, (shape, stride, _, dtype) = whole
        calls = calls_of(shape, stride, *step.args[1:]) if dtype == result.layout[3] else None
        if calls is None:
            return None
        for called, args in calls:
            node = add_node(self._graph, "call_function", called, (node, *args), {})
        self._found[step.first_value] = whole
        return node


def _number(graph: fx.Graph, value: Any, count: int) -> fx.Node:
    node = graph.placeholder(f"number_{count}")
    if isinstance(value, int):
        set_spec(node, NumberSpec(Expression.of(Symbol(f"number_{count}", value))))
    else:
        set_spec(node, NumberSpec(Formula(None, (), value, f"number_{count}")))
    return node


class _Sizes:
    """Puts symbols into the places of the sizes that change; without any, everything stays as it is."""

    def __init__(self, graph: fx.Graph, sizes: SymbolicSizes | None) -> None:
        self._graph = graph
        self._sizes = sizes
        self._nodes: dict[Expression, Any] = {}  # of what is known by now
        self._symbol_reads: dict[Expression, Any] = {}

    def rows(self, path: Sequence[Step]) -> list[int]:
        """Where the sizes of each step begin in the row of the path."""
        starts: list[int] = []
        place = 0
        for step in path:
            starts.append(place)
            if self._sizes is None:
                continue
            if step.layout is not None:
                place += 2 * len(step.layout[0]) + 1
            else:
                place += sum(_count(value) for _, value in _sized(step))
        return starts

    def placeholder(self, layout: Any, row: int, number: int, device: torch.device) -> fx.Node:
        shape, stride, offset, dtype = layout
        node = self._graph.placeholder(f"input_{number}")
        if self._sizes is None:
            set_spec(node, TensorSpec(tuple(shape), tuple(stride), dtype, device, offset))
            return node
        symbols = dict(self._sizes.symbols)
        numbers: list[Any] = []
        for place, plain in enumerate((*shape, *stride, offset), row):
            expression = self._sizes.expressions.get(place)
            numbers.append(plain if expression is None else as_number(self._sizes.shape_env, expression))
            if place in symbols:
                dim, count = place - row, len(shape)
                read = aten.sym_size.int if dim < count else aten.sym_stride.int
                self._symbol_reads[Expression.of(symbols[place])] = (read, (node, dim % count))
        count = len(shape)
        set_spec(node, TensorSpec(tuple(numbers[:count]), tuple(numbers[count:-1]), dtype, device, numbers[-1]))
        return node

    def add_given(self) -> None:
        """Sizes that are no input's."""
        if self._sizes is None:
            return
        for place in self._sizes.argument_places:
            node = self._graph.placeholder(f"given_{place}")
            what = self._sizes.expressions[place]
            set_spec(node, NumberSpec(what))
            self._nodes[what] = node
        for what, (read, args) in self._symbol_reads.items():
            self._nodes[what] = self._call(read, args, what)

    def arguments(self, step: Step, row: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self._sizes is None:
            return step.args, step.kwargs
        place = row
        replaced: dict[Any, Any] = {}
        for name, value in _sized(step):
            replaced[name] = self._replaced(value, place)
            place += _count(value)
        args = tuple([replaced.get(number, value) for number, value in enumerate(step.args)])
        return args, {name: replaced.get(name, value) for name, value in step.kwargs.items()}

    def _replaced(self, value: Any, place: int) -> Any:
        assert self._sizes is not None
        if isinstance(value, tuple | list):
            items: list[Any] = []
            for item in value:
                items.append(self._replaced(item, place))
                place += _count(item)
            return items
        what = self._sizes.expressions.get(place) if type(value) is int else None
        return value if what is None else self._node(what)

    def _node(self, what: Expression) -> Any:
        """A sum of products of symbols, computed in the graph."""
        known = self._nodes.get(what)
        if known is not None:
            return known
        total: Any = None
        so_far = Expression.of(0)
        for monomial, factor in what.terms.items():
            term: Any = factor
            product = Expression.of(factor)
            for atom in monomial:
                product = product * Expression.of(atom)
                other = self._nodes[Expression.of(atom)]
                term = other if term == 1 else self._call(operator.mul, (term, other), product)
            so_far = so_far + product
            total = term if total is None else self._call(operator.add, (total, term), so_far)
        self._nodes[what] = total
        return total

    def _call(self, function: Any, args: tuple[Any, ...], what: Expression) -> fx.Node:
        node = add_node(self._graph, "call_function", function, args, {})
        set_spec(node, NumberSpec(what))
        return node


def _sized(step: Step) -> list[tuple[Any, Any]]:
    """The arguments that are sizes, by position or name, in the order of the row."""
    assert step.operator is not None
    sizes = size_arguments(step.operator)
    names = [argument.name for argument in step.operator._schema.arguments]
    args = [(place, value) for place, value in enumerate(step.args) if names[place] in sizes]
    return [*args, *((name, value) for name, value in step.kwargs.items() if name in sizes)]


def _count(value: Any) -> int:
    if isinstance(value, tuple | list):
        return sum(map(_count, value))
    return int(type(value) is int)
