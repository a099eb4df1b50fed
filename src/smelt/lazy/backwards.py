"""Backwards that repeat: the engine does not run again to record the operators that it recorded before.

    loss.backward()   →   same step, same graph as before?   go on at the step after it, with the gradients' values
                          otherwise                           PyTorch's engine runs, and what it recorded is kept

The engine's work follows from the recorded calls and the graph that autograd made of them. The step of a recording
stands for its calls, its trail for the places between them where nodes were made. `_native.outline_graph` reads
classes, edges and sizes of the nodes, `_native.saved_values` which values of the recording they saved. The engine runs
graphs with nodes of an earlier recording, with hooks or with nodes written in Python, and adds gradients to others.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt import _native
from smelt.base.events import counters
from smelt.dispatch.tensors import layout_of, memory_of
from smelt.lazy.recorder import Recorder
from smelt.lazy.runs import is_plain
from smelt.torch_abi.node_layout import why_not_read_nodes
from smelt.torch_abi.symbols import find_symbol

_ACCUMULATE = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_MOST = 16
"""So many backwards are remembered at one step."""

_MOST_ATTEMPTS = 4
"""So often the engine is watched until a backward is given up that cannot be kept; the first time is not watched."""


class Backwards:
    """Stands before PyTorch's engine once there are lazy tensors. `blocks`: those that record; they use the engine."""

    def __init__(self, engine: Any, recorder: Recorder, blocks: Sequence[Any]) -> None:
        self.engine = engine
        self._recorder = recorder
        self._blocks = blocks

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def run_backward(
        self,
        tensors: tuple[Any, ...],
        gradients: tuple[Any, ...],
        keep_graph: bool,
        create_graph: bool,
        inputs: tuple[Any, ...] = (),
        allow_unreachable: bool = False,
        accumulate_grad: bool = False,
    ) -> Any:
        """In place of the engine's function of that name."""
        arguments = tensors, gradients, keep_graph, create_graph, inputs, allow_unreachable, accumulate_grad
        is_plain_call = accumulate_grad and not (keep_graph or create_graph or inputs)
        if not is_plain_call or not self._records(tensors, gradients):
            return self.engine.run_backward(*arguments)
        with self._recorder.lock:
            backward = self._find(tensors[0], gradients[0])
            if backward is not None and backward.takes_place(self._recorder):
                counters["lazy_backwards"] += 1
                return ()
        results = self.engine.run_backward(*arguments)
        if backward is not None:
            with self._recorder.lock:
                backward.keep(self._recorder.now)
        return results

    def _records(self, tensors: tuple[Any, ...], gradients: tuple[Any, ...]) -> bool:
        """Whether a backward of one lazy tensor begins, and nothing of PyTorch's watches it."""
        if len(tensors) != 1 or self._blocks or self._recorder.now.is_trail_lost:
            return False
        is_ours = self._recorder.is_ours
        return (
            is_ours(tensors[0])
            and is_ours(gradients[0])
            and type(tensors[0]) in _PLAIN
            and type(gradients[0]) in _PLAIN
            and tensors[0].grad_fn is not None
            and is_plain()
            and not torch.is_anomaly_enabled()
            and torch._C._current_graph_task_id() == -1
            and torch._C._autograd._top_saved_tensors_default_hooks(True) is None
        )

    def _find(self, tensor: torch.Tensor, gradient: torch.Tensor) -> "_Backward | None":
        """The backward at hand; None if the engine has to run, and nothing is to be kept of it."""
        now = self._recorder.now
        value = self._recorder.read(gradient)
        outline = _native.outline_graph(tensor.grad_fn, now.first_node)
        if outline is None or now.is_trail_lost:
            return None
        backwards: dict[Any, Any] | None = now.step.backwards
        if backwards is None:
            backwards = now.step.backwards = {}
        text, addresses, nodes = outline
        saved = _native.saved_values(self._recorder, nodes, _attributes, _attributes_of)
        if saved is None:
            return None
        key = (now.trail, value, tensor.output_nr, torch.are_deterministic_algorithms_enabled(), text, saved)
        known = backwards.get(key, 0)
        if isinstance(known, int):
            if known == _MOST_ATTEMPTS or (known == 0 and len(backwards) >= _MOST):
                return None
            backwards[key] = known + 1
            if known == 0:
                return None
        before = _Before(now, nodes, self._recorder.is_ours) if isinstance(known, int) else None
        return _Backward(backwards, key, addresses, before)


class _Backward:
    """One backward, before and after the engine has run it."""

    def __init__(self, backwards: dict[Any, Any], key: Any, addresses: bytes, before: "_Before | None") -> None:
        self._backwards, self._key, self._addresses, self._before = backwards, key, addresses, before

    def takes_place(self, recorder: Recorder) -> bool:
        """Record it without the engine, if that is possible."""
        known = self._backwards[self._key]
        if not isinstance(known, _native.LazyBackward):
            return False
        is_recorded = known.run(recorder, self._addresses)
        if is_recorded:
            _native.release_nodes(self._addresses)
        elif is_recorded is None:
            self._backwards[self._key] = 1  # the model is another one: the next backward may be kept
        return bool(is_recorded)

    def keep(self, now: _native.Recording) -> None:
        """Remember what the engine recorded."""
        known = None if self._before is None else self._before.recorded(now, self._addresses)
        if known is not None:
            self._backwards[self._key] = known


class _Before:
    """What there was before the engine ran, to compare with."""

    def __init__(self, now: _native.Recording, nodes: Sequence[Any], is_ours: Callable[[object], bool]) -> None:
        self._now, self._is_ours = now, is_ours
        self._numbers, self._inputs = tuple(now.numbers), len(now.inputs)
        self._count, self._bytes = now.count, now.bytes
        self._alive = {value for value, _ in now.alive()}
        self._leaves = _leaves_of(nodes)

    def recorded(self, now: _native.Recording, addresses: bytes) -> "_native.LazyBackward | None":
        """The backward as it may be repeated; None if it may not."""
        first = len(self._numbers)
        if (
            now is not self._now
            or self._leaves is None
            or len(now.inputs) != self._inputs
            or tuple(now.numbers[:first]) != self._numbers
        ):
            return None
        new_values = {id(memory): value for value, memory in now.alive() if value not in self._alive}
        places: dict[int, int] = {}
        memories: list[tuple[int, tuple[tuple[Any, int], ...]]] = []
        leaves: list[tuple[Any, int, int, Any]] = []
        for number, leaf in self._leaves:
            gradient = leaf.grad
            if gradient is None:
                continue
            memory = memory_of(gradient) if type(gradient) is torch.Tensor and self._is_ours(gradient) else None
            value = new_values.get(id(memory))
            if memory is None or value is None or gradient.is_conj() or gradient.is_neg():
                return None
            place = places.setdefault(id(memory), len(places))
            if place == len(memories):
                memories.append((value, memory.seen()))
            leaves.append((weakref.ref(leaf), number, place, layout_of(gradient)))
        has_other_dtype = any(layout[3] != memories[place][1][0][0][3] for *_, place, layout in leaves)
        if has_other_dtype or len(memories) != len(new_values):  # something else than gradients is alive
            return None
        try:
            return _native.LazyBackward(
                end=now.step,
                numbers=self._numbers,
                added=tuple(now.numbers[first:]),
                count=now.count - self._count,
                bytes=now.bytes - self._bytes,
                memories=tuple(memories),
                leaves=tuple(leaves),
                addresses=addresses,
            )
        except ValueError:  # PyTorch has the nodes of leaves elsewhere
            return None


def _leaves_of(nodes: Sequence[Any]) -> list[tuple[int, torch.Tensor]] | None:
    """The leaves of a graph, with the numbers of their nodes; None where one has a gradient or hooks."""
    leaves: list[tuple[int, torch.Tensor]] = []
    for number, node in enumerate(nodes):
        if type(node) is _ACCUMULATE:
            leaf = node.variable
            if leaf.grad is not None or type(leaf) not in _PLAIN or _native.leaf_hooks(leaf):
                return None
            leaves.append((number, leaf))
    return leaves


_attributes: dict[type, tuple[str, ...]] = {}


def _attributes_of(node: Any) -> tuple[str, ...]:
    """The attributes of a node's class that are tensors, or may be."""
    if type(node) is _ACCUMULATE:
        return ("variable",)
    names = [name for name in dir(node) if name.startswith("_saved_")]
    return tuple(name for name in names if _may_be_tensors(getattr(node, name)))


def _may_be_tensors(saved: Any) -> bool:
    items = saved if isinstance(saved, tuple | list) else (saved,)
    return all(item is None or isinstance(item, torch.Tensor) for item in items)


def stand_before_engine(recorder: Recorder, blocks: Sequence[Any]) -> None:
    """Record backwards of lazy tensors that repeat without the engine, if PyTorch's nodes can be read."""
    counter = find_symbol("_ZN2at15sequence_number4peekEv")
    if counter is None or why_not_read_nodes() is not None:
        return
    _native.watch_nodes(counter, torch._C._autograd._top_saved_tensors_default_hooks)
    holder: Any = torch.autograd.Variable
    holder._execution_engine = Backwards(holder._execution_engine, recorder, blocks)
