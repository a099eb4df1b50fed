"""A graph with sizes that only data tell, as parts that are compiled one by one with what tells the sizes between them.

    mask = x > 0                            part 0
    nonzero = mask.nonzero(); SizeCheck(…)  called as PyTorch calls it: now u0 is known
    y = x[nonzero[:, 0]].sin()              part 1, a graph with a dynamic size like any other

A part is compiled when it is first run, with the sizes of that run as its example. Sizes of 0 and 1 are numbers of a
part of their own. Each part is a node of autograd's graph, and so is what tells sizes: gradients flow as in eager.
"""

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from smelt.base.torch_originals import method
from smelt.ir.graph import Traced, placeholders
from smelt.ir.nodes import backward_node
from smelt.ir.nodes.ambient import forget_casts, restored, set_autocast
from smelt.ir.nodes.size_check import SizeCheck
from smelt.ir.symbolic_numbers import NumberWriter
from smelt.ir.tensorspec import NumberSpec, TensorSpec, set_spec, spec_of
from smelt.pipeline.sizes.open_graph import is_known_from_inputs
from smelt.runtime.autograd.differentiable import Flat
from smelt.symbolic.expressions import FROM_DATA, SMALLEST, ZERO, Expression, ShapeEnv, Symbol
from smelt.symbolic.symnode import Formula, apply, as_number, is_symbolic, meaning

_AMBIENT = frozenset({torch._C._set_grad_enabled, set_autocast, forget_casts})
_VERSIONS = 16
"""How many combinations of sizes below two a part is compiled for."""

CompilePart = Callable[[Traced], Flat]
Values = dict[fx.Node, Any]
Numbers = dict[Any, Any]
"""By symbols, and floats that are given: what they are in this call."""


def has_data_sizes(traced: Traced) -> bool:
    """Whether the graph has sizes that only its data tell."""
    return any(isinstance(node.target, SizeCheck) for node in traced.graph.nodes)


def in_parts(traced: Traced, compile_part: CompilePart) -> Flat:
    """A function that runs the graph. One that parts would take apart in the wrong places is PyTorch's to run."""
    steps = None if _has_backward(traced) else _cut(traced, compile_part)
    if steps is None:
        return traced.plainly()
    run = _Chain(traced, steps).__call__
    return run if traced.undoing is None else traced.undoing(run)


def _has_backward(traced: Traced) -> bool:
    return any(getattr(node.target, "__module__", "") == backward_node.__name__ for node in traced.graph.nodes)


class _Chain:
    """Runs parts, and what is between them, in the order of the graph."""

    def __init__(self, traced: Traced, steps: "list[fx.Node | Part]") -> None:
        self._inputs = placeholders(traced.graph)
        self._outputs: Any = traced.graph.output_node().args[0]
        self._steps = [(step, dropped) for step, dropped in zip(steps, _dropped(steps, self._outputs), strict=True)]
        self._readers = {leaf: read for node in self._inputs for leaf, read in _readers(node)}

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        values: Values = dict(zip(self._inputs, inputs, strict=True))
        numbers: Numbers = {leaf: read(values) for leaf, read in self._readers.items()}
        with restored():
            for step, dropped in self._steps:
                if isinstance(step, Part):
                    step.run(values, numbers)
                else:
                    _step(step, values, numbers)
                for node in dropped:
                    del values[node]
        outputs: tuple[Any, ...] = map_arg(self._outputs, values.__getitem__)
        return tuple(outputs)

    __call__.checks_overlap = True  # type: ignore[attr-defined]  # each part does, where it mutates inputs


def _step(node: fx.Node, values: Values, numbers: Numbers) -> None:
    """Run one node as PyTorch does."""

    def value_of(each: fx.Node) -> Any:
        if each in values:
            return values[each]
        spec = spec_of(each)
        assert isinstance(spec, NumberSpec)
        return spec.what.evaluate(numbers.__getitem__)

    args, kwargs = map_arg((node.args, dict(node.kwargs)), value_of)
    function: Any = method(str(node.target)) if node.op == "call_method" else node.target
    values[node] = function(*args, **kwargs)
    if isinstance(node.target, SizeCheck):
        numbers.update(zip(node.target.symbols, args, strict=True))


def _cut(traced: Traced, compile_part: CompilePart) -> "list[fx.Node | Part] | None":
    """CompiledParts, and nodes that run between them; None if a part needs a number that another computes."""
    nodes = [node for node in traced.graph.nodes if node.op not in ("placeholder", "output")]
    between = _between(nodes)
    steps: list[fx.Node | Part] = []
    rest: list[fx.Node] = []

    def end_part() -> None:
        after: list[fx.Node] = []
        while rest and rest[-1].target in _AMBIENT:
            after.append(rest.pop())
        if any(not _is_size(node) for node in rest):
            steps.append(Part(list(rest), traced, compile_part))
        steps.extend(reversed(after))
        rest.clear()

    records = began_recording = True
    for node in nodes:
        if node.target is torch._C._set_grad_enabled:
            records = bool(node.args[0])
            if records and not began_recording:
                end_part()  # a graph that begins without gradients has none
        if not rest:
            began_recording = records
        if node in between or (node.target in _AMBIENT and not rest):
            if not isinstance(spec_of(node), NumberSpec) or not _is_size(node):
                end_part()
            steps.append(node)
        else:
            rest.append(node)
    end_part()
    computed = [node for part in steps if isinstance(part, Part) for node in part.outputs if _is_number(node)]
    return None if computed else steps


def _between(nodes: list[fx.Node]) -> set[fx.Node]:
    """What tells sizes, with what checks them, and takes one of several results."""
    checks = [node for node in nodes if isinstance(node.target, SizeCheck)]
    nodes_between = {each for check in checks for each in (check, *_leading_to(check))}
    for node in nodes:
        taken = node.args[0] if node.target is operator.getitem else None
        if isinstance(taken, fx.Node) and taken in nodes_between and isinstance(spec_of(taken), tuple | list):
            nodes_between.add(node)
    return nodes_between


def _leading_to(check: fx.Node) -> Iterator[fx.Node]:
    """The numbers that a check is given, and where they come from: what tells a size."""
    waiting = list(check.all_input_nodes)
    while waiting:
        node = waiting.pop()
        if node.op == "placeholder":
            continue
        yield node
        if _is_size(node) or node.target is operator.getitem:
            waiting += node.all_input_nodes


def _is_number(node: fx.Node) -> bool:
    return isinstance(spec_of(node), NumberSpec)


def _is_size(node: fx.Node) -> bool:
    """Whether a node is a number that sizes decide, or given ones: no data are needed to compute it."""
    return is_known_from_inputs(node) and not (node.op == "call_method" and node.target == "item")


def _readers(node: fx.Node) -> Iterator[tuple[Any, Callable[[Values], Any]]]:
    """The symbols that an input defines, and how each is read."""
    spec = spec_of(node)
    if isinstance(spec, NumberSpec):
        leaf = spec.what if isinstance(spec.what, Formula) else spec.what.symbol
        yield leaf, lambda values: values[node]
    if not isinstance(spec, TensorSpec):
        return
    for dim, (size, step) in enumerate(zip(spec.shape, spec.stride, strict=True)):
        for number, name in ((size, "size"), (step, "stride")):
            what = meaning(number)
            if isinstance(what, Expression) and what.symbol is not None:
                yield what.symbol, _reader(node, name, dim)


def _reader(node: fx.Node, name: str, dim: int) -> Callable[[Values], Any]:
    read = method(name)
    return lambda values: read(values[node], dim)


def _dropped(steps: "list[fx.Node | Part]", outputs: Any) -> list[list[fx.Node]]:
    """Of each step, the values that nothing needs after it."""
    kept: set[fx.Node] = set()
    map_arg(outputs, kept.add)
    last_uses: list[list[fx.Node]] = []
    for step in reversed(steps):
        used = [*step.inputs, *step.outputs] if isinstance(step, Part) else [*step.all_input_nodes, step]
        ran = [node for node in dict.fromkeys(used) if not _is_size(node) or _ran(node, steps)]
        last = [node for node in ran if node not in kept]
        last_uses.append(last)
        kept |= set(last)
    return last_uses[::-1]


def _ran(node: fx.Node, steps: "list[fx.Node | Part]") -> bool:
    return node.op == "placeholder" or any(node is step for step in steps)


class Part:
    """Nodes between two places where data tell sizes, compiled for those that are not below two, and for each
    combination of those that are."""

    def __init__(self, nodes: list[fx.Node], traced: Traced, compile_part: CompilePart) -> None:
        own = set(nodes)
        self._nodes = [node for node in nodes if not is_known_from_inputs(node)]
        self._traced, self._compile = traced, compile_part
        needed = [each for node in self._nodes for each in node.all_input_nodes]
        self.inputs = list(dict.fromkeys(each for each in needed if each not in own and not is_known_from_inputs(each)))
        self.outputs = [node for node in self._nodes if any(user not in own for user in node.users)]
        self._versions: dict[tuple[Any, ...], tuple[Flat, list[Any], list[fx.Node]]] = {}
        self._eager: tuple[Flat, list[Any], list[fx.Node]] | None = None

    def run(self, values: Values, numbers: Numbers) -> None:
        """Run on what is known by now, and add the results."""
        small = {
            leaf: number
            for leaf, number in numbers.items()
            if isinstance(leaf, Symbol) and leaf.origin is FROM_DATA and number < SMALLEST
        }
        key = tuple(small.items())
        version = self._versions.get(key)
        if version is None:
            sizes = _Put(small, numbers)
            version = self._versions[key] = self._made(sizes, eager=len(self._versions) >= _VERSIONS)
        run, leaves, inputs = version
        tensors = [values[node] for node in inputs]
        if not self._laid_out(tensors, inputs, numbers):
            if self._eager is None:
                self._eager = self._made(_Put({}, numbers), eager=True)
            run, leaves, inputs = self._eager
        results = run(*tensors, *[numbers[leaf] for leaf in leaves])
        values.update(zip(self.outputs, results, strict=True))

    def _laid_out(self, tensors: list[Any], inputs: list[fx.Node], numbers: Numbers) -> bool:
        """Whether the inputs are as they were captured: of what PyTorch returned only that shows it."""
        return all(_is_as(tensor, spec_of(node), numbers) for tensor, node in zip(tensors, inputs, strict=True))

    def _made(self, sizes: "_Put", eager: bool) -> tuple[Flat, list[Any], list[fx.Node]]:
        """The part for these sizes as numbers: a function, the numbers it takes behind its tensors, and those."""
        graph = fx.Graph()
        copies: dict[fx.Node, Any] = {}
        for node in self.inputs:
            copies[node] = graph.placeholder(node.name)
            set_spec(copies[node], sizes.into(spec_of(node)))
        leaves: list[Any] = []
        last = next(iter(reversed(list(graph.nodes))), None)

        def node_of(leaf: Any) -> fx.Node:
            nonlocal last
            for node in self.inputs if isinstance(leaf, Symbol) else ():
                spec = spec_of(node)
                for dim, size in enumerate(spec.shape if isinstance(spec, TensorSpec) else ()):
                    what = meaning(size)
                    if isinstance(what, Expression) and what.symbol == leaf:
                        return graph.call_method("size", (copies[node], dim))
            with graph.inserting_after(last) if last is not None else graph.inserting_before(_first(graph)):
                last = graph.placeholder(f"number{len(leaves)}")
            leaves.append(leaf)
            return last

        writer = NumberWriter(graph, node_of)

        def operand(node: fx.Node) -> Any:
            if node in copies:
                return copies[node]
            spec = spec_of(node)
            assert isinstance(spec, NumberSpec)
            return writer.write(sizes.number(spec.what))

        for node in self._nodes:
            for each in node.all_input_nodes:
                operand(each)  # before the node itself, where sizes are read
            copies[node] = graph.node_copy(node, operand)
            set_spec(copies[node], spec_of(node))
        graph.output(tuple(copies[node] for node in self.outputs))
        part = Traced(graph, self._traced.level, self._traced.constants)
        return (part.plainly() if eager else self._compile(part)), leaves, self.inputs


def _first(graph: fx.Graph) -> fx.Node:
    node: fx.Node = next(iter(graph.nodes))
    return node


class _Put:
    """Puts sizes below two into what depends on them; the other sizes are symbols, with those of a call as example."""

    def __init__(self, small: Mapping[Any, int], numbers: Numbers) -> None:
        self._small, self._numbers = small, numbers
        self._made: dict[int, ShapeEnv] = {}

    def into(self, spec: Any) -> Any:
        if not isinstance(spec, TensorSpec) or not spec.varies:
            return spec
        shape, stride = tuple(map(self._size, spec.shape)), tuple(map(self._size, spec.stride))
        return replace(spec, shape=shape, stride=stride, offset=self._size(spec.offset))

    def _size(self, size: Any) -> Any:
        return self.number(meaning(size)) if is_symbolic(size) else size

    def number(self, what: Any) -> Any:
        """A number with these sizes put in."""
        if isinstance(what, Expression):
            return what.evaluate(self._symbol)
        if not isinstance(what, Formula):
            return what
        if what.function is None:
            return as_number(ShapeEnv(), what)
        operands = [self.number(each) for each in what.operands]
        if not any(map(is_symbolic, operands)):
            return what.function(*operands)
        return apply(what.function, *operands)

    def _symbol(self, symbol: Symbol) -> Any:
        if symbol in self._small:
            return self._small[symbol]
        if symbol.shape_env is None:
            return as_number(ShapeEnv(), Expression.of(symbol))
        shape_env = self._env(symbol.shape_env)
        own = next(each for each in shape_env.symbols if each.text == symbol.text)
        return as_number(shape_env, Expression.of(own))

    def _env(self, captured: ShapeEnv) -> ShapeEnv:
        shape_env = self._made.get(id(captured))
        if shape_env is not None:
            return shape_env
        shape_env = self._made[id(captured)] = ShapeEnv()
        for symbol in captured.symbols:
            example = self._numbers.get(symbol, symbol.example)
            shape_env.symbol(symbol.text, max(example, SMALLEST), symbol.origin)
        for guard in captured.guards:
            if self._small.keys().isdisjoint(guard.expression.symbols()) and guard.holds(self._example):
                shape_env.guard(guard.relation, shape_env.own(guard.expression), ZERO)
        return shape_env

    def _example(self, symbol: Symbol) -> int:
        return self._numbers.get(symbol, symbol.example)  # type: ignore[no-any-return]


def _is_as(tensor: Any, spec: Any, numbers: Numbers) -> bool:
    if not isinstance(spec, TensorSpec) or not isinstance(tensor, torch.Tensor):
        return True
    if tensor.dtype is not spec.dtype or tensor.requires_grad is not spec.requires_grad:
        return False
    sizes, steps = tensor.shape, tensor.stride()
    for place, size in enumerate(sizes):
        step = spec.stride[place]
        if size > 1:
            what = meaning(step) if is_symbolic(step) else step
            if (what.evaluate(numbers.__getitem__) if isinstance(what, Expression) else what) != steps[place]:
                return False
    return True
