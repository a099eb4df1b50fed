"""Branches on numbers that the graph computes, where few small tensors from outside decide: speculated, and guarded.

    step_t += 1; rho = f(step_t.item()); if rho > 5:      →   the answer for the `step_t` there is now, which is asked
                                                              again at each call, of a copy

Optimizers count their steps in tensors, and some do otherwise after the first few. What leads from the input to the
number is run, then and now, as PyTorch runs it. So it is with floats that one number from outside decides, as in
schedulers: `math.floor(1 + epoch / 20)` is asked again at each call, and not the epoch itself.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg
from torch.utils._python_dispatch import _disable_current_modes

from smelt.base.errors import ChipFailed
from smelt.base.torch_originals import BASE, method
from smelt.capture.guards.dynamic_sizes import read_size
from smelt.capture.interpreter.interpreter import Interpreter
from smelt.capture.model.breaks import Unsupported
from smelt.capture.model.source import predicate
from smelt.capture.model.values import Number, Tensor, Value
from smelt.capture.tape.tape import Tape
from smelt.symbolic.expressions import Expression
from smelt.symbolic.symnode import Formula, meaning

_MAX_NODES = 24
_DECIDED = "the way a number decided that is computed from it"


def speculate(interp: Interpreter, compare: Callable[[Any, Any], bool], left: Value, right: Value) -> bool:
    """The answer of a comparison of numbers one of which the graph computes. It is relied on."""
    sides = [_meaning(each) or interp.plain(each) for each in (left, right)]
    leaves = [leaf for side in sides if isinstance(side, Formula) for leaf in side.leaves()]
    nodes = {leaf: interp.tape.item_of(leaf) for leaf in leaves}

    def decide(values: dict[fx.Node, Any]) -> bool:
        numbers = {leaf: values[node] for leaf, node in nodes.items()}
        numbers_compared = [side.evaluate(numbers.__getitem__) if isinstance(side, Formula) else side for side in sides]
        return bool(compare(*numbers_compared))

    return _speculated(interp, list(nodes.values()), decide)


def speculate_truth(interp: Interpreter, value: Tensor) -> bool:
    """The truth of a tensor of one element that the graph computes, wherever it is: eager waits for it too. It is
    relied on."""
    if value.fake.numel() != 1:
        raise Unsupported("B003", "the value of a tensor")
    return _speculated(interp, [value.node], lambda values: bool(values[value.node]))


def _speculated(interp: Interpreter, wanted: list[fx.Node], decide: Callable[[dict[fx.Node, Any]], bool]) -> bool:
    """What is decided by the values of `wanted`, now and, as a guard, at each call."""
    if interp.externals.explores:
        raise Unsupported("B003", "a number that the graph computes decides the branch")
    steps = _steps(interp.tape, wanted)
    if not interp.tape.effects.communicating.isdisjoint(steps):
        raise Unsupported("B003", "a number that a collective decides")  # a guard would start it once more
    inputs = [node for node in steps if node.op == "placeholder"]
    if len(inputs) > 1 or any(interp.tape.inputs[node].value.real.numel() != 1 for node in inputs):
        raise Unsupported("B003", "a number computed from more than one small tensor")

    def answer(tensor: Any) -> bool:
        with torch.no_grad():
            return decide(_run(steps, tensor))

    with _disable_current_modes():
        if not inputs:
            interp.tape.deciding.update(steps)
            return answer(None)
        source = interp.tape.inputs[inputs[0]]
        try:
            now = answer(source.value.real)
        except ChipFailed:
            raise
        except Exception as error:  # of a tensor without data, or a device that failed: for the program's own line
            raise Unsupported("B003", f"a number that cannot be computed now: {error}") from None
    source.check(predicate(lambda tensor: answer(tensor) is now, _DECIDED))
    interp.externals.relied_data[source] = None
    return now


def decided(interp: Interpreter, function: Callable[..., Any], *values: Value) -> Any:
    """What a function yields of floats that one number from outside decides. It is relied on, and that number is not;
    NotImplemented where several decide, and for integers, of which guards can say more."""
    if interp.externals.explores:
        return NotImplemented  # nobody would ask again
    sides = [_meaning(each) or interp.plain(each) for each in values]
    integers = all(isinstance(side, int | Expression) for side in sides)
    leaves = {leaf for side in sides if isinstance(side, Formula | Expression) for leaf in _leaves(side)}
    if integers or len(leaves) != 1:
        return NotImplemented
    (leaf,) = leaves
    if not isinstance(leaf.origin, tuple):
        return NotImplemented
    source, read = leaf.origin[0], read_size(leaf.origin)

    def answer(number: Any) -> Any:
        numbers = [
            each.evaluate(lambda _: number) if isinstance(each, Formula | Expression) else each for each in sides
        ]
        return function(*numbers)

    try:
        now = answer(leaf.example)
    except Exception:
        return NotImplemented

    def is_same(holder: Any) -> bool:
        try:
            current = answer(read(holder))
        except Exception:
            return False
        return type(current) is type(now) and bool(current == now)

    source.check(predicate(is_same, _DECIDED))
    interp.externals.sizes.shape_env.decisions[is_same] = (function, tuple(sides), now)
    return now


def _leaves(side: Formula | Expression) -> set[Any]:
    return side.leaves() if isinstance(side, Formula) else side.symbols()


def _meaning(value: Value) -> Any:
    return meaning(value.symbolic) if isinstance(value, Number) and value.symbolic is not None else None


def _steps(tape: Tape, wanted: list[fx.Node]) -> list[fx.Node]:
    """The nodes that lead to `wanted`, writes to tensors on the way included."""
    needed = set(wanted)
    steps: list[fx.Node] = []
    for node in reversed(list(tape.graph.nodes)):
        if node in needed or tape.memory.written_by(node) & needed:
            needed.add(node)
            needed.update(_operands(node, needed))
            steps.append(node)
            if len(steps) > _MAX_NODES:
                raise Unsupported("B003", "a number that takes many operators to compute")
    return steps[::-1]


def _operands(node: fx.Node, needed: set[fx.Node]) -> list[fx.Node]:
    """What a call reads; of one on lists, what stands beside the tensors it is needed for."""
    places = _places(node, needed)
    if places is None:
        return node.all_input_nodes
    return [each for item in _at(node, places) for each in (item if isinstance(item, list) else [item])
            if isinstance(each, fx.Node)]  # fmt: skip


def _places(node: fx.Node, needed: Any) -> list[int] | None:
    first = node.args[0] if node.args else None
    if not isinstance(first, list | tuple) or not str(getattr(node.target, "__name__", "")).startswith("_foreach_"):
        return None
    return [place for place, each in enumerate(first) if each in needed]


def _at(node: fx.Node, places: list[int]) -> list[Any]:
    return [[each[place] for place in places] if isinstance(each, list | tuple) else each for each in node.args]


def _run(steps: list[fx.Node], real: Any) -> dict[fx.Node, Any]:
    values: dict[fx.Node, Any] = {}
    for node in steps:
        if node.op == "placeholder":
            values[node] = BASE.clone(BASE.detach(real))
            continue
        places = _places(node, values)
        args = map_arg(node.args if places is None else tuple(_at(node, places)), values.__getitem__)
        kwargs = map_arg(node.kwargs, values.__getitem__)
        function: Any = method(str(node.target)) if node.op == "call_method" else node.target
        values[node] = function(*args, **kwargs)
    return values
