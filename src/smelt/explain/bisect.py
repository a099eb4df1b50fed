"""`smelt bisect`: which rewrite made a result wrong, and a small program that shows it.

    program whose result is wrong  →  the graph that is wrong  →  the rewrite that makes it so, by halving the budget
                                   →  the fewest operators that are still wrong  →  a file that runs alone

Every step asks the same question, `smelt.explain.verify`'s: does this differ from eager by more than rounding?
"""

import base64
import re
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from smelt.base.events import collect
from smelt.base.fast_dataclass import dataclass
from smelt.base.rewrite_budget import Rewrite
from smelt.explain.verify import Compile, Judge, Verdict

_LITERAL = 16  # elements of a tensor that are written as numbers; more are written as bytes


@dataclass(frozen=True, slots=True)
class Culprit:
    """What was found. `str()` says it in words."""

    verdict: Verdict  # on the graph that is wrong
    graph: int  # which of the captured graphs, from 0
    rewrite: Rewrite | None  # None: it is wrong without any rewrite
    operators: tuple[str, ...]  # of the smallest program that is still wrong
    source: str  # that program, as a file that runs alone

    def __str__(self) -> str:
        cause = (
            "wrong without any optional rewrite: the lowering or the code of an operator"
            if self.rewrite is None
            else f"made wrong by a rewrite of {self.rewrite.stage}: {self.rewrite.what}"
        )
        return "\n".join([
            f"graph {self.graph}: {self.verdict}",
            cause,
            "still wrong with nothing but: " + ", ".join(self.operators),
        ])  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Recorded:
    graph: fx.GraphModule
    inputs: tuple[Any, ...]


def bisect(
    model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], compile: Compile
) -> Culprit | None:
    """The culprit, or None if every graph of the program is right by itself."""
    for number, recorded in enumerate(_graphs_of(model, args, kwargs, compile)):
        judge = Judge(recorded.graph, recorded.inputs, {}, compile)
        verdict = judge.verdict("llvm", {})
        if verdict.right:
            continue
        smallest = _shrunk(recorded, compile)
        operators = tuple(str(node.name) for node in smallest.graph.graph.nodes if node.op.startswith("call"))
        source = _source(smallest, verdict)
        return Culprit(verdict, number, _rewrite(judge), operators, source)
    return None


def _graphs_of(
    model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], compile: Compile
) -> list[_Recorded]:
    """The graphs a run captures, each with what it was first called with."""
    graphs: list[_Recorded] = []

    def backend(graph: fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        def run(*inputs: Any) -> Any:
            if all(each.graph is not graph for each in graphs):
                graphs.append(_Recorded(graph, tuple(map(_clone, inputs))))
            return graph(*inputs)

        return run

    compile(model, backend=backend)(*args, **kwargs)
    return graphs


def _clone(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    return value


def _rewrite(judge: Judge) -> Rewrite | None:
    """The first rewrite with which the graph is wrong: double the rewrite budget until it is, then halve."""

    def wrong(budget: int) -> bool:
        return not judge.verdict("llvm", {"max_rewrites": budget}).right

    if wrong(0):
        return None
    right, enough = 0, 1
    while not wrong(enough):
        right, enough = enough, enough * 2
    while enough - right > 1:
        middle = (right + enough) // 2
        if wrong(middle):
            enough = middle
        else:
            right = middle
    with collect() as events:
        judge.verdict("llvm", {"max_rewrites": enough})
    return next(event.subject for event in events if isinstance(event.subject, Rewrite))


def _shrunk(whole: _Recorded, compile: Compile) -> _Recorded:
    """The same fault with fewer operators: one result instead of all, then values given instead of computed."""

    def wrong(candidate: _Recorded) -> bool:
        try:
            return not Judge(candidate.graph, candidate.inputs, {}, compile).verdict("llvm", {}).right
        except Exception:  # not a program that runs by itself
            return False

    smallest = whole
    for node in list(whole.graph.graph.nodes):
        if node.op.startswith("call"):
            candidate = _with_one_result(whole, node.name)
            if candidate is not None and wrong(candidate):
                smallest = candidate
                break
    for name in [node.name for node in smallest.graph.graph.nodes if node.op.startswith("call")][:-1]:
        candidate = _with_input(smallest, name)
        if candidate is not None and wrong(candidate):
            smallest = candidate
    return smallest


def _with_one_result(recorded: _Recorded, name: str) -> _Recorded | None:
    """Only what one node needs, and its value the result."""
    graph, named = _copy(recorded)
    node = named.get(name)
    if node is None or not _is_tensor(node, recorded):
        return None
    (output,) = (each for each in graph.nodes if each.op == "output")
    graph.erase_node(output)
    graph.output((node,))
    return _cleaned(recorded, graph)


def _with_input(recorded: _Recorded, name: str) -> _Recorded | None:
    """A node's value given instead of computed."""
    graph, named = _copy(recorded)
    node = named.get(name)
    if node is None:
        return None
    value = _values(recorded).get(name)
    if not isinstance(value, torch.Tensor):
        return None
    last = [each for each in graph.nodes if each.op == "placeholder"]
    with graph.inserting_after(last[-1]) if last else graph.inserting_before(next(iter(graph.nodes))):
        placeholder = graph.placeholder(f"{name}_given")
    node.replace_all_uses_with(placeholder)
    inputs = (*recorded.inputs, value.detach().clone().requires_grad_(value.requires_grad))
    return _cleaned(_Recorded(recorded.graph, inputs), graph)


def _copy(recorded: _Recorded) -> tuple[fx.Graph, dict[str, fx.Node]]:
    graph = fx.Graph()
    mapping: dict[fx.Node, fx.Node] = {}
    result = graph.graph_copy(recorded.graph.graph, mapping)
    graph.output(result)
    return graph, {old.name: new for old, new in mapping.items()}


def _cleaned(recorded: _Recorded, graph: fx.Graph) -> _Recorded:
    """Without what nobody uses, inputs included."""
    graph.eliminate_dead_code()
    places = [node for node in graph.nodes if node.op == "placeholder"]
    used_inputs = [(node, value) for node, value in zip(places, recorded.inputs, strict=True) if node.users]
    for node in places:
        if not node.users:
            graph.erase_node(node)
    return _Recorded(fx.GraphModule(recorded.graph, graph), tuple(value for _, value in used_inputs))


def _values(recorded: _Recorded) -> dict[str, Any]:
    """What each node computes in eager."""
    values: dict[str, Any] = {}

    class Noting(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            values[n.name] = value = super().run_node(n)
            return value

    torch.manual_seed(0)
    Noting(recorded.graph).run(*map(_clone, recorded.inputs))
    return values


def _is_tensor(node: fx.Node, recorded: _Recorded) -> bool:
    return isinstance(_values(recorded).get(node.name), torch.Tensor)


def _source(recorded: _Recorded, verdict: Verdict) -> str:
    """The program as a file."""
    code = recorded.graph.graph.python_code("self")
    body = code.src.replace("def forward(self, ", "def program(").replace("def forward(self)", "def program()")
    used = {name: value for name, value in code.globals.items() if re.search(rf"\b{re.escape(name)}\b", body)}
    imports = [line for name, value in used.items() if (line := _import(name, value)) is not None]
    inputs = ",\n    ".join(map(_literal, recorded.inputs))
    return "\n".join([
        '"""Written by `smelt bisect`: here smelt differs from eager.',
        "",
        str(verdict),
        '"""',
        "",
        "import base64",
        "import sys",
        "",
        "import torch",
        *sorted(set(imports) - {"import torch"}),
        "",
        "import smelt",
        "",
        body.strip(),
        "",
        "",
        "INPUTS = (",
        f"    {inputs},",
        ")",
        "",
        'if __name__ == "__main__":',
        "    found = smelt.verify(program, INPUTS)",
        "    print(found)",
        "    sys.exit(0 if found.ok else 1)",
        "",
    ])  # fmt: skip


def _import(name: str, value: Any) -> str | None:
    if isinstance(value, types.ModuleType):
        return f"import {value.__name__} as {name}" if value.__name__ != name else f"import {name}"
    if value is type(None):
        return f"{name} = type(None)"
    if isinstance(value, float):  # inf, nan
        return f"from math import {name}"
    origin, called = getattr(value, "__module__", None), getattr(value, "__name__", None)
    if origin is None or called is None:
        return None
    return f"from {origin} import {called}" + (f" as {name}" if called != name else "")


def _literal(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    dtype, shape = str(value.dtype), list(value.shape)
    grad = ".requires_grad_()" if value.requires_grad else ""
    flat = value.detach().contiguous().reshape(-1)
    if flat.numel() <= _LITERAL and flat.dtype is not torch.bfloat16 and bool(flat.isfinite().all()):
        return f"torch.tensor({value.tolist()!r}, dtype={dtype}){grad}"
    data = base64.b64encode(flat.view(torch.uint8).numpy().tobytes()).decode()
    return f'torch.frombuffer(bytearray(base64.b64decode("{data}")), dtype={dtype}).reshape({shape}){grad}'
