"""Blocks of a torch-level graph that repeat each other, as the layers of a model do.

    h1 = block(h0, w1, mask); h2 = block(h1, w2, mask); h3 = block(h2, w3, mask)
    →  three blocks of the same calls, with inputs (h0, w1, mask), (h1, w2, mask), (h2, w3, mask) and one output each

Blocks are functions of their inputs: calls, numbers, shapes, dtypes, devices and `requires_grad` are equal, and inputs
that are one tensor in one block are one in the others. A value with gradients is read by one block alone, so that its
gradient is a sum of the same terms in the same order, whether the block is differentiated as one or call by call.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

from smelt.base.fast_dataclass import dataclass
from smelt.ir.tensorspec import TensorSpec, spec_of

MIN_BLOCKS = 3
MIN_CALLS = 8  # of a block
_PERIODS = 4  # that are tried, the most frequent distances between equal calls


@dataclass(frozen=True, slots=True)
class Block:
    """Calls in the order of the graph, the values from outside that they read, in the order of first use, and the one
    value that is read outside."""

    calls: tuple[fx.Node, ...]
    inputs: tuple[fx.Node, ...]
    output: fx.Node


def repeated_blocks(graph: fx.Graph) -> list[list[Block]]:
    """Groups of equal blocks."""
    calls = [node for node in graph.nodes if node.op in ("call_function", "call_method")]
    if len(calls) < MIN_BLOCKS * MIN_CALLS:
        return []
    return list(_Search(calls).groups(0, len(calls)))


class _Search:
    def __init__(self, calls: Sequence[fx.Node]) -> None:
        kinds: dict[Any, int] = {}
        places = {node: place for place, node in enumerate(calls)}
        end = len(calls)
        self._calls = calls
        self._kinds = [_kind_number(node, kinds) for node in calls]
        self._last_uses = [max((places.get(user, end) for user in node.users), default=-1) for node in calls]

    def groups(self, start: int, stop: int) -> Iterator[list[Block]]:
        """Groups among the calls from `start` to `stop`."""
        if stop - start < MIN_BLOCKS * MIN_CALLS:
            return
        runs = [self._run(start, stop, period) for period in self._periods(start, stop)]
        runs = [run for run in runs if run[2] - run[1] >= MIN_BLOCKS * run[0]]
        if not runs:
            return
        period, first, last = max(runs, key=lambda run: (run[2] - run[1], -run[0]))
        yield from self.groups(start, first)
        blocks = self._blocks(period, first, last)
        if blocks:
            yield blocks
        yield from self.groups(last, stop)

    def _periods(self, start: int, stop: int) -> list[int]:
        distances, seen = Counter[int](), dict[int, int]()
        for place in range(start, stop):
            kind = self._kinds[place]
            if kind in seen:
                distances[place - seen[kind]] += 1
            seen[kind] = place
        return [distance for distance, _ in distances.most_common(_PERIODS) if distance >= MIN_CALLS]

    def _run(self, start: int, stop: int, period: int) -> tuple[int, int, int]:
        """The longest stretch of calls that are each equal to the call a period later."""
        kinds, best, first = self._kinds, (period, start, start), start
        for place in range(start + period, stop + 1):
            if place < stop and kinds[place] >= 0 and kinds[place] == kinds[place - period]:
                continue
            if place - first > best[2] - best[1]:
                best = (period, first, place)
            first = place - period + 1
        return best

    def _blocks(self, period: int, first: int, last: int) -> list[Block]:
        """Equal blocks in a stretch, which begin where one value is all that those before hand on."""
        for begin in range(first, min(first + period, last - MIN_BLOCKS * period + 1)):
            blocks: list[Block] = []
            for start in range(begin, last - period + 1, period):
                block = self._block(start, start + period)
                if block is None or (blocks and not _are_equal(blocks[0], block)):
                    break
                blocks.append(block)
            if len(blocks) >= MIN_BLOCKS:
                return blocks
        return []

    def _block(self, start: int, stop: int) -> Block | None:
        outputs = [place for place in range(start, stop) if self._last_uses[place] >= stop]
        if len(outputs) != 1:
            return None
        calls = self._calls[start:stop]
        inside = frozenset(calls)
        inputs: dict[fx.Node, None] = {}
        for node in calls:
            inputs |= dict.fromkeys(each for each in node.all_input_nodes if each not in inside)
        for node in inputs:
            spec = spec_of(node)
            if not isinstance(spec, TensorSpec) or node.op == "get_attr":
                return None
            if spec.requires_grad and not inside.issuperset(node.users):
                return None
        return Block(tuple(calls), tuple(inputs), self._calls[outputs[0]])


def _are_equal(block: Block, other: Block) -> bool:
    """Whether blocks whose calls are equal also read the same of each other's values."""
    if len(block.inputs) != len(other.inputs):
        return False
    image = dict(zip((*block.inputs, *block.calls), (*other.inputs, *other.calls), strict=True))
    return image[block.output] is other.output and all(
        [image[each] for each in mine.all_input_nodes] == theirs.all_input_nodes
        for mine, theirs in zip(block.calls, other.calls, strict=True)
    )


def _kind_number(node: fx.Node, kinds: dict[Any, int]) -> int:
    """Equal for calls that differ only in which tensors they read; -1 for calls that are part of no block."""
    key = _kind(node)
    return -1 if key is None else kinds.setdefault(key, len(kinds))


def _kind(node: fx.Node) -> Any:
    if not _is_static(spec_of(node)) or not _is_of_torch(node):
        return None
    order = {each: place for place, each in enumerate(node.all_input_nodes)}
    try:
        key = (node.op, node.target, _argument_key(node.args, order), _argument_key(node.kwargs, order))
        hash(key)
    except (TypeError, _NotStatic):
        return None
    return key


def _is_of_torch(node: fx.Node) -> bool:
    """Whether a call runs PyTorch's own code, or an operator of Python. Custom operators, hooks, checkpoints and calls
    that set modes are part of no block."""
    target: Any = node.target
    if isinstance(target, str):
        return True
    if isinstance(target, torch._ops.OpOverload):
        return target.namespace == "aten"
    if isinstance(target, torch._ops.OpOverloadPacket):
        return target._qualified_op_name.startswith("aten::")
    module = getattr(getattr(target, "__objclass__", target), "__module__", None)
    return str(module).partition(".")[0] in ("torch", "_operator")


def _is_static(spec: Any) -> bool:
    if isinstance(spec, tuple):
        return all(each is None or _is_static(each) for each in spec)
    return isinstance(spec, TensorSpec) and not spec.varies


class _NotStatic(Exception):
    """An argument is a number that is known only when the graph runs."""


def _argument_key(value: Any, order: dict[fx.Node, int]) -> Any:
    if isinstance(value, fx.Node):
        spec = spec_of(value)
        if not _is_static(spec):
            raise _NotStatic
        return fx.Node, order[value], spec
    if isinstance(value, tuple | list):
        return tuple if isinstance(value, tuple) else list, tuple([_argument_key(each, order) for each in value])
    if isinstance(value, dict):
        return dict, tuple([(name, _argument_key(each, order)) for name, each in value.items()])
    if isinstance(value, slice):
        return slice, _argument_key((value.start, value.stop, value.step), order)
    return type(value), value.hex() if isinstance(value, float) else value
