"""The two graph levels and the rules of each, as code that runs after every pass in tests.

TORCH  what capture returns and custom backends receive: torch functions, tensor methods, placeholders for every tensor
       that comes from outside. May write in place.
PURE   what autograd returns and the fuser takes: ATen operators only, none of which writes, every value with a spec.
"""

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from enum import Enum
from typing import Any, Protocol, runtime_checkable

import torch
from torch import fx

from smelt.base.errors import SpecError
from smelt.base.fast_dataclass import dataclass
from smelt.ir.bound_functions import BoundCode, bind_code
from smelt.ir.generators import name_generators
from smelt.ir.nodes.distributed import is_wait, wait_below_autograd
from smelt.ir.printed import make_printable
from smelt.ir.tensorspec import NumberSpec, TensorSpec, spec_of


class GraphLevel(Enum):
    TORCH = "torch"
    PURE = "pure"


@dataclass(frozen=True, slots=True)
class Traced:
    """A graph with the tensors its `get_attr` nodes name. This is what stages hand to each other.

    `writes`: outputs that are new values of inputs, by their positions; who compiles the graph may leave them there.
    `undoing` makes a function that runs the graph operator by operator leave the inputs as they were where it fails;
    compiled code, which writes them when nothing can fail any more, has no need of it.
    `recurs`: the next capture will have the very same graph.
    """

    graph: fx.Graph
    level: GraphLevel
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict)
    writes: tuple[tuple[int, int], ...] = ()
    undoing: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
    recurs: bool = False

    def to_module(self) -> fx.GraphModule:
        """A runnable `GraphModule`, for custom backends and for people; costs about 0.1 ms a node."""
        root = torch.nn.Module()
        for name, tensor in self.constants.items():
            root.register_buffer(name, tensor, persistent=False)
        name_generators(self.graph)
        bind_code(self.graph)
        make_printable(self.graph)
        return fx.GraphModule(root, self.graph)

    def plainly(self) -> Callable[..., Any]:
        """The graph as PyTorch runs it, operator by operator."""
        waiting = {node: node.target for node in self.graph.nodes if is_wait(node.target)}
        for node in waiting:
            node.target = wait_below_autograd
        forward = self.to_module().forward  # not the module: nobody can have hooked it, and calling it costs as much
        for node, target in waiting.items():
            node.target = target
        return forward if self.undoing is None else self.undoing(forward)

    def to_consuming(self) -> Callable[[list[Any]], tuple[Any, ...]]:
        """The graph as a function that takes its inputs out of a list, so that each is let go after its last use."""
        self.graph.set_codegen(_Consuming())
        forward: Callable[[list[Any]], tuple[Any, ...]] = self.to_module().forward
        self.graph.set_codegen(BoundCode())
        return forward


class _Consuming(BoundCode):
    """Python code whose only argument is a list, which it empties."""

    def gen_fn_def(self, free_vars: list[str], maybe_return_annotation: str, **options: Any) -> str:
        names = [name.split(":")[0].strip() for name in free_vars if name != "self"]
        taken = f"({', '.join(names)},) = smelt_given; " if names else ""
        return f"def forward(self, smelt_given){maybe_return_annotation}:\n    {taken}smelt_given.clear()"


# What capture and autograd are handed to compile a graph with: flat tensor inputs to flat outputs.
GraphCompiler = Callable[[Traced], Callable[..., "tuple[object, ...]"]]


@runtime_checkable
class Sized(Protocol):
    """What a compiled graph with dynamic shapes or numbers is a method of. Inputs need no data here."""

    def is_ready(self, *inputs: Any) -> bool:
        """Whether a call with such inputs would run, and make nothing first."""

    def prepare(self, *inputs: Any) -> None:
        """Make what a call with such inputs would make first."""


def sized(run: Callable[..., Any]) -> Sized | None:
    """What makes versions of a compiled graph, if there are several."""
    owner = getattr(run, "__self__", None)
    return owner if isinstance(owner, Sized) else None


@dataclass(frozen=True, slots=True)
class Unchecked:
    """A compiled graph without what it asks PyTorch first: for callers who know that no mode or transform is on, and
    who need no version counters. It raises where mutated inputs overlap others, with nothing written.

    `call` takes the inputs that are tensors, then one tensor for each input at `scalars`, and returns, among others,
    the outputs at `results`. Inputs at `fixed` are numbers that must not change."""

    call: Callable[..., Any]
    results: tuple[int, ...]
    scalars: tuple[int, ...] = ()
    fixed: tuple[int, ...] = ()


def scalar_tensor(value: Any) -> torch.Tensor:
    """A number as compiled code takes one that is dynamic."""
    return torch.scalar_tensor(value, dtype=torch.int64 if type(value) is int else torch.float64)


def unchecked(run: Callable[..., Any], *inputs: Any) -> Unchecked | None:
    """What runs inside a compiled graph for such inputs; None for one that does more than that."""
    bound = getattr(getattr(run, "__self__", run), "unchecked", None)
    return None if bound is None else bound(*inputs)


@runtime_checkable
class PersistentCompiler(Protocol):
    """A `GraphCompiler` that can serialize its graphs, and load what an earlier process compiled of them."""

    def __call__(self, traced: Traced) -> "Callable[..., tuple[object, ...]]": ...

    def environment(self) -> str | None:
        """All that the compiled code depends on besides the graph; None if nothing is stored now."""

    def serialize(self, traced: Traced) -> Any:
        """A graph as plain data; None if it cannot be serialized."""

    def load(self, data: Any, undoing: Any) -> "tuple[Callable[..., tuple[object, ...]], Callable[[], Traced]] | None":
        """The code that an earlier process compiled for a serialized graph, and the graph itself, which is rebuilt on
        first use, with this `undoing`; None if the cache has none."""


def _rule_topological(node: fx.Node, seen: set[fx.Node]) -> str | None:
    late = [argument.name for argument in node.all_input_nodes if argument not in seen]
    return f"uses {', '.join(late)} before it is defined" if late else None


def _rule_opcode(node: fx.Node, allowed: frozenset[str]) -> str | None:
    return None if node.op in allowed else f"opcode {node.op} does not belong to this level"


def _rule_has_spec(node: fx.Node) -> str | None:
    if node.op == "output" or spec_of(node) is not None:
        return None
    return "carries no spec"


def _rule_aten(node: fx.Node) -> str | None:
    if node.op != "call_function" or node.target is operator.getitem:
        return None
    if isinstance(node.target, torch._ops.OpOverload) or isinstance(spec_of(node), NumberSpec):
        return None
    return f"calls {node.target}, which is not an ATen operator"


def _rule_no_writes(node: fx.Node) -> str | None:
    if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
        return f"{node.target} writes an argument"
    return None


def _rule_placeholder_spec(node: fx.Node) -> str | None:
    if node.op == "placeholder" and not isinstance(spec_of(node), TensorSpec | NumberSpec):
        return "is an input without the spec of a tensor or a number"
    return None


_OPCODES = {
    GraphLevel.TORCH: frozenset({"placeholder", "call_function", "call_method", "get_attr", "output"}),
    GraphLevel.PURE: frozenset({"placeholder", "call_function", "get_attr", "output"}),
}

NodeRule = Callable[[fx.Node], str | None]
RULES: dict[GraphLevel, tuple[NodeRule, ...]] = {
    GraphLevel.TORCH: (_rule_placeholder_spec,),
    GraphLevel.PURE: (_rule_aten, _rule_no_writes, _rule_placeholder_spec, _rule_has_spec),
}


def check_graph(graph: fx.Graph, level: GraphLevel, *, after: str = "") -> None:
    """Raise `SpecError` naming the first broken rule and showing the lines round it."""
    seen: set[fx.Node] = set()
    outputs = 0
    for node in graph.nodes:
        faults = [_rule_topological(node, seen), _rule_opcode(node, _OPCODES[level])]
        faults += [rule(node) for rule in RULES[level]]
        for fault in faults:
            if fault is not None:
                raise SpecError("SM021", _fault_text(graph, node, level, fault, after))
        seen.add(node)
        outputs += node.op == "output"
    if outputs != 1:
        raise SpecError(
            "SM021",
            f"a {level.value} graph has one output node, not {outputs}" + (f" (after {after})" if after else ""),
        )


def _fault_text(graph: fx.Graph, node: fx.Node, level: GraphLevel, fault: str, after: str) -> str:
    nodes = list(graph.nodes)
    position = nodes.index(node)
    lines = []
    for neighbour in nodes[max(0, position - 3) : position + 4]:
        mark = "-->" if neighbour is node else "   "
        lines.append(f"  {mark} {neighbour.format_node()}")
    place = f" after {after}" if after else ""
    return f"not a {level.value} graph{place}: {node.name} {fault}\n" + "\n".join(lines)


# `node.args = …` finds its way to this, after it has taken the node out of the graph's index and put it back.
_set_args: Any = fx.Node.args.fset  # type: ignore[attr-defined]
_set_kwargs: Any = fx.Node.kwargs.fset  # type: ignore[attr-defined]


def add_node(
    graph: fx.Graph, opcode: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str | None = None
) -> fx.Node:
    """`graph.create_node`, which with no arguments to look through takes a third to two thirds of its time: it looks
    for `SymInt`s among them, to warn of, and no graph here has any."""
    node = graph.create_node(opcode, target, name=name)
    if args:
        _set_args(node, args)
    if kwargs:
        _set_kwargs(node, kwargs)
    return node


def call_key(target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """A key that equal calls share; None if an argument has no hash."""
    key = (target, as_key(args), tuple((name, as_key(value)) for name, value in kwargs.items()))
    try:
        hash(key)
    except TypeError:
        return None
    return key


def as_key(value: Any) -> Any:
    """Equal exactly when two arguments mean the same: 1, 1.0 and True differ, and so do 0.0 and -0.0."""
    kind = type(value)
    if kind is fx.Node:
        return value
    if kind is int:  # most are, and asking each for all that it may be takes longer than the rest
        return (int, value)
    if isinstance(value, tuple | list):
        return tuple([as_key(item) for item in value])
    return (kind, value.hex() if isinstance(value, float) else value)


def add_copy(graph: fx.Graph, node: fx.Node, copy_of: Callable[[fx.Node], Any]) -> fx.Node:
    """`graph.node_copy`, likewise: a node of another graph, with what `made` says for those that it uses."""
    args, kwargs = node.args, node.kwargs
    args, kwargs = fx.map_arg(args, copy_of) if args else args, fx.map_arg(kwargs, copy_of) if kwargs else kwargs
    copy = add_node(graph, node.op, node.target, args, kwargs, node.name)
    if node.type is not None:
        copy.type = node.type
    copy.meta.update(node.meta)
    return copy


def copied_graph(graph: fx.Graph) -> fx.Graph:
    copy = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        copies[node] = add_copy(copy, node, copies.__getitem__)
    return copy


def placeholders(graph: fx.Graph) -> list[fx.Node]:
    """The inputs, in order."""
    return [node for node in graph.nodes if node.op == "placeholder"]


def returning_tuple(function: Callable[..., Any]) -> Callable[..., tuple[Any, ...]]:
    """A function that returns one result or several, as one that returns a tuple."""

    def call(*inputs: Any) -> tuple[Any, ...]:
        result = function(*inputs)
        return tuple(result) if isinstance(result, tuple | list) else (result,)

    return call


def output_node(graph: fx.Graph) -> fx.Node:
    """The one output node."""
    output: fx.Node = next(node for node in reversed(graph.nodes) if node.op == "output")
    return output


def outputs(graph: fx.Graph) -> list[object]:
    """What the graph returns: nodes and plain values, in order."""
    returned = output_node(graph).args[0]
    return list(returned) if isinstance(returned, tuple | list) else [returned]


def format_graph(graph: fx.Graph, title: str = "graph") -> str:
    """A graph as text: one line per node, with the spec of what it returns, and the graphs that a node holds."""
    lines = [f"{title}:"]
    for node in graph.nodes:
        if node.op == "placeholder":
            lines.append(f"  {node.name}: {_spec_text(node)} = input")
        elif node.op == "get_attr":
            lines.append(f"  {node.name}: {_spec_text(node)} = constant {node.target}")
        elif node.op == "output":
            lines.append(f"  return {_arguments_text(node.args[0])}")
        else:
            lines.append(f"  {node.name}: {_spec_text(node)} = {_target_text(node)}({_call_text(node)})")
            for name, inner in getattr(node.target, "inner_graphs", {}).items():
                lines += [f"    {line}" for line in format_graph(inner.graph, name).splitlines()]
    return "\n".join(lines)


def _spec_text(node: fx.Node) -> str:
    spec = spec_of(node)
    if isinstance(spec, tuple):
        return "(" + ", ".join(str(item) for item in spec) + ")"
    return "?" if spec is None else str(spec)


def _target_text(node: fx.Node) -> str:
    if node.op == "call_method":
        return f".{node.target}"
    if isinstance(node.target, torch._ops.OpOverload):
        return str(node.target)
    return str(getattr(node.target, "__name__", node.target))


def _call_text(node: fx.Node) -> str:
    words = [_arguments_text(argument) for argument in node.args]
    words += [f"{name}={_arguments_text(value)}" for name, value in node.kwargs.items()]
    return ", ".join(words)


def _arguments_text(value: object) -> str:
    if isinstance(value, fx.Node):
        return value.name
    if isinstance(value, tuple | list):
        inside: Iterable[str] = (_arguments_text(item) for item in value)
        return "(" + ", ".join(inside) + ")" if isinstance(value, tuple) else "[" + ", ".join(inside) + "]"
    return repr(value)
