"""Backwards as the autograd engine would run them, captured, compiled and run in its place.

    loss.backward()  →  read the graph  →  known key?  run what was compiled for it
                                            new key?    capture, compile, run
                                            cannot be captured?  the engine, and why

One `CompiledBackwards` belongs to one compiler and holds all it has compiled. What cannot be read, `create_graph`
and anomaly detection fall back to PyTorch's engine, which is always right.
"""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import partial
from typing import Any

import torch
from torch import fx
from torch.autograd.graph import get_gradient_edge

from smelt import _native
from smelt.autograd.engine.generalize_sizes import General, generalize, split_numbers, with_numbers
from smelt.autograd.engine.read_graph import ACCUMULATE, GraphReading, Unreadable, layout, read
from smelt.autograd.engine.trace_engine import NotObserved, trace
from smelt.base import events, locks
from smelt.base.fast_dataclass import dataclass
from smelt.device.host_library import HOST, on_host
from smelt.ir.backward import AccumulateByEngine, AccumulateGrads, Backward, Graph, HookAt, Step, dense_spec
from smelt.ir.graph import GraphCompiler
from smelt.ir.nodes.ambient import default_devices, without_default_devices
from smelt.ir.tensorspec import TensorSpec
from smelt.pipeline.backward.backward_steps import (
    STEP_RUNNERS,
    BackwardRun,
    Run,
    accumulate_all,
    detached,
    find_hooks,
    read_slots,
    run_graph,
    run_inside_engine,
    run_module,
    run_steps,
    spec_of_tensor,
)
from smelt.pipeline.backward.cache_misses import Misses, describe
from smelt.runtime.autograd.double_backward import is_batched
from smelt.runtime.overlap import overlap_between
from smelt.torch_abi.node_layout import why_not_read_nodes
from smelt.torch_abi.node_streams import current_streams, devices_of, why_not_read_streams, why_other_stream
from smelt.torch_abi.tensor_layout import install_tensor_layout

# What a user gives: from a module to something to call in its place.
ModuleCompiler = Callable[[fx.GraphModule], Callable[..., Any]]

_ENTRIES = 256  # kept by one compiler
_GENERAL = 4  # dynamic graphs for backwards that differ in numbers alone


@dataclass(slots=True)
class Entry:
    """What was compiled for one key."""

    backward: Backward
    steps: list[Run]
    numbers: tuple[int, ...] = ()  # sizes, for code that takes them
    hooks: tuple[HookAt, ...] = field(init=False)
    leaves: tuple[int, ...] = field(init=False)  # nodes of leaves that gradients are added to
    device: torch.device = HOST  # whose thread of the engine runs Python code

    def __post_init__(self) -> None:
        self.hooks = self.backward.hooks
        accumulated = [step.gradients for step in self.backward.steps if isinstance(step, AccumulateGrads)]
        single = [step.node for step in self.backward.steps if isinstance(step, AccumulateByEngine)]
        self.leaves = (*(node for gradients in accumulated for node, _ in gradients), *single)


_all: "weakref.WeakSet[CompiledBackwards]" = weakref.WeakSet()


def forget_backwards() -> None:
    """Drop all compiled backwards (for `smelt.reset`)."""
    for backwards in list(_all):
        backwards.reset()


class CompiledBackwards:
    """All backwards compiled by one compiler: `graphs` compiles what calls no Python code and is of one size, `modules`
    what does, `sized` what takes numbers."""

    def __init__(self, graphs: GraphCompiler | None, modules: ModuleCompiler, sized: ModuleCompiler) -> None:
        self.graphs, self.modules, self.sized = graphs, modules, sized
        self.entries: dict[Any, Entry | str] = {}
        self.observed: dict[Any, dict[int, tuple[TensorSpec | None, ...]]] = {}
        self.misses = Misses()
        self.families: dict[Any, _Family] = {}
        self.lock = locks.lock()
        install_tensor_layout()  # the key of a backward is read from tensors' memory
        _all.add(self)

    def reset(self) -> None:
        """Forget everything compiled."""
        with _native.Held(self.lock):
            self.entries.clear()
            self.observed.clear()
            self.families.clear()
            self.misses = Misses()

    def run_backward(
        self,
        engine: Any,
        tensors: tuple[Any, ...],
        gradients: tuple[Any, ...],
        keep_graph: bool,
        create_graph: bool,
        inputs: tuple[Any, ...] = (),
        allow_unreachable: bool = False,
        accumulate_grad: bool = False,
    ) -> tuple[Any, ...]:
        """In place of the engine's function of that name."""

        def by_engine() -> tuple[Any, ...]:
            named = {"allow_unreachable": allow_unreachable, "accumulate_grad": accumulate_grad}
            results: tuple[Any, ...] = _native.suspended(
                engine.run_backward, tensors, gradients, keep_graph, create_graph, inputs, **named
            )
            return results

        if torch._C._len_torch_dispatch_stack() or torch._C._is_tracing():
            return by_engine()  # a tracer at work, or a mode that is to see every operator
        reason = _why_engine(tensors, gradients, create_graph)
        if reason is None:
            try:
                request = _request(tensors, gradients, inputs, allow_unreachable, accumulate_grad)
                results: tuple[Any, ...] = _native.suspended(self._run, engine, request, keep_graph, by_engine)
                return results
            except Unreadable as unreadable:
                reason = str(unreadable)
        events.count("engine_backwards")
        if events.wanted("compiled_autograd"):
            events.emit("compiled_autograd", f"left to the engine: {reason}")
        return by_engine()

    def _run(
        self, engine: Any, request: "_Request", keep_graph: bool, by_engine: Callable[[], tuple[Any, ...]]
    ) -> tuple[Any, ...]:
        reading = request.reading
        entry = self.entries.get(request.key)
        if entry is None:
            try:
                entry = _native.preserving_state(self._made_once, request)
            except NotObserved:
                return self._observe(request, by_engine)
        if isinstance(entry, str):
            raise Unreadable(entry)
        try:
            values: list[Any] = [*request.gradients, *reading.tensors]
            for (_, compiled), (_, arrived) in zip(reading.compiled, entry.backward.arrived, strict=True):
                values += compiled.saved(arrived) if arrived else [None] * len(compiled.specs)
        except RuntimeError as freed:  # freed or modified: the engine raises at the right moment
            raise Unreadable(str(freed)) from freed
        if _accumulates_into_inputs(reading, entry.leaves, values):
            raise Unreadable("a leaf's .grad aliases memory that the backward reads")
        values += [None] * (entry.backward.slots - len(values))
        run = BackwardRun(engine, reading, values, entry.numbers, find_hooks(reading, entry.hooks))
        request.gradients = ()
        reading.tensors.clear()
        if not keep_graph:  # before hooks run, which may modify saved tensors: an optimizer step in a hook does
            for (_, compiled), (_, arrived) in zip(reading.compiled, entry.backward.arrived, strict=True):
                compiled.release_saved(arrived)
        if entry.backward.runs_python:
            run_inside_engine(engine, partial(run_steps, entry.steps, run), keep_graph, entry.device)
        else:
            _native.unrecorded(run_steps, entry.steps, run)
        if not keep_graph:
            _native.release_nodes(_addresses_of(reading.addresses, entry.backward.ran))
        return tuple([None if slot is None else values[slot] for slot in entry.backward.wanted])

    def _made_once(self, request: "_Request") -> Entry | str:
        with _native.Held(self.lock), without_default_devices():
            return self.entries.get(request.key) or self._made(request)

    def _made(self, request: "_Request") -> Entry | str:
        """A new entry: captured, and compiled unless a dynamic graph fits."""
        if len(self.entries) >= _ENTRIES:
            self.entries.clear()
        entry: Entry | str
        try:
            observed = self.observed.get(request.key, {})
            gradients, wanted, leaves = request.gradients, request.wanted, request.leaves
            reason = why_other_stream(request.reading.nodes, request.reading.addresses)
            if reason is not None:
                raise Unreadable(reason)
            backward = trace(request.reading, request.roots, gradients, wanted, leaves, observed)
            entry = self._entry(request, backward)
            entry.device = _device_of_python(request.reading, backward)
        except Unreadable as unreadable:
            entry = str(unreadable)
        self.entries[request.key] = entry
        return entry

    def _entry(self, request: "_Request", backward: Backward) -> Entry:
        outline, numbers = split_numbers(request.key)
        family = self.families.setdefault(outline, _Family())
        for general, steps in family.general:
            values = general.values(numbers)
            if values is not None and general.becomes(backward, values):
                events.emit("compiled_autograd", f"sizes {values} are new to the dynamic graph, which fits them")
                return Entry(backward, steps, values)
        self._log_capture(request.reading, backward)
        if family.first is not None and len(family.general) < _GENERAL:
            generalized = generalize(*family.first, backward, numbers)
            if generalized is not None:
                steps = self._compiled(with_numbers(generalized), dynamic=True)
                family.general.append((generalized, steps))
                values = generalized.values(numbers)
                assert values is not None
                return Entry(backward, steps, values)
        family.first = (backward, numbers)
        return Entry(backward, self._compiled(backward))

    def _log_capture(self, reading: GraphReading, backward: Backward) -> None:
        events.count("compiled_autograd_captures")
        if events.wanted("compiled_autograd"):
            events.emit("compiled_autograd", f"cache miss due to {self.misses.note(reading)}", backward)
            events.emit("compiled_autograd", describe(backward, reading), backward)

    def _observe(self, request: "_Request", by_engine: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
        """Let the engine run once, and record the layouts of gradients that called nodes return."""
        seen: dict[int, tuple[TensorSpec | None, ...]] = {}

        def note(number: int, outgoing: tuple[Any, ...], incoming: tuple[Any, ...]) -> None:
            seen[number] = tuple(None if each is None else dense_spec(spec_of_tensor(each)) for each in outgoing)

        nodes = request.reading.nodes
        handles = []
        for number, node in enumerate(nodes):
            has_edge = [after is not None for after, _ in node.next_functions]
            compiled = any(number == own for own, _ in request.reading.compiled)
            if type(node) is not ACCUMULATE and not compiled and request.reading.whole(number, has_edge) is not None:
                handles.append(node.register_hook(partial(note, number)))

        def remove() -> None:
            for handle in handles:
                handle.remove()

        result: tuple[Any, ...] = _native.undoing(remove, by_engine)
        self.observed[request.key] = seen
        if events.wanted("compiled_autograd"):
            events.emit("compiled_autograd", "the engine ran once, to observe gradients of nodes that are called")
        return result

    def _compiled(self, backward: Backward, dynamic: bool = False) -> list[Run]:
        last_use: dict[int, int] = {}
        for position, step in enumerate(backward.steps):
            for slot in read_slots(step):
                last_use[slot] = position
        last_use.update((slot, len(backward.steps)) for slot in backward.wanted if slot is not None)
        accumulated = _only_accumulated(backward)
        runs: list[Run] = []
        for position, step in enumerate(backward.steps):
            done = tuple(slot for slot in set(read_slots(step)) if last_use[slot] == position)
            step = detached(step, accumulated) if isinstance(step, Graph) else step
            runs.append(self._step(step, done, dynamic))
        return runs

    def _step(self, step: Step, done: tuple[int, ...], dynamic: bool) -> Run:
        if isinstance(step, Graph):
            return self._graph(step, done, dynamic)
        if isinstance(step, AccumulateGrads):
            last = {slot: place for place, (_, slot) in enumerate(step.gradients) if slot in done}
            order = tuple((node, slot, last.get(slot) == place) for place, (node, slot) in enumerate(step.gradients))
            return partial(accumulate_all, order)
        return partial(STEP_RUNNERS[type(step)], step)

    def _graph(self, step: Graph, done: tuple[int, ...], dynamic: bool) -> Run:
        if dynamic or step.calls_hooks or self.graphs is None:
            module = step.traced.to_module()
            return partial(run_module, self.sized(module) if dynamic else self.modules(module), step, done)
        events.count("graphs")
        with torch.no_grad():
            return partial(run_graph, self.graphs(step.traced), step, done)


def _device_of_python(reading: GraphReading, backward: Backward) -> torch.device:
    """The engine has a thread for each GPU, on which that GPU is the current one."""
    devices = devices_of(reading.nodes)
    if backward.runs_python and len(devices) > 1:
        raise Unreadable("hooks or nodes written in Python, and gradients on several devices")
    return next(iter(devices), HOST)


def _accumulates_into_inputs(reading: GraphReading, leaves: Sequence[int], values: Sequence[Any]) -> bool:
    """Whether a leaf's gradient overlaps memory that is read: the engine accumulates as early as it can, and here that
    is done last."""
    grads = [reading.nodes[number].variable.grad for number in leaves]
    gradients = [gradient for gradient in grads if gradient is not None]
    return bool(gradients) and overlap_between(gradients, values)


def _only_accumulated(backward: Backward) -> frozenset[int]:
    """Slots whose values are only accumulated into leaves."""
    accumulating = [step for step in backward.steps if isinstance(step, AccumulateGrads)]
    seen = [step for step in backward.steps if not isinstance(step, AccumulateGrads | Graph)]
    slots = {slot for step in accumulating for slot in read_slots(step)}
    return frozenset(slots.difference(backward.wanted, *map(read_slots, seen)))


@dataclass(slots=True)
class _Family:
    """Backwards that differ only in numbers."""

    first: tuple[Backward, tuple[int, ...]] | None = None
    general: list[tuple[General, list[Run]]] = field(default_factory=list)


def _addresses_of(addresses: bytes, numbers: Sequence[int] | None) -> bytes:
    return addresses if numbers is None else b"".join(addresses[8 * each : 8 * each + 8] for each in numbers)


@dataclass(slots=True)
class _Request:
    """What a backward is asked to do."""

    reading: GraphReading
    roots: tuple[tuple[int, int], ...]
    gradients: tuple[torch.Tensor, ...]
    wanted: tuple[tuple[int, int] | None, ...] | None
    leaves: frozenset[int] | None
    key: Any


def _why_engine(tensors: Sequence[Any], gradients: Sequence[Any], create_graph: bool) -> str | None:
    """Why the engine must run a backward, as far as known before its graph is read."""
    if create_graph:
        return "create_graph=True: a compiled backward is not differentiable"
    if torch.is_anomaly_enabled():
        return "anomaly detection is on"
    if torch._C._current_graph_task_id() != -1:
        return "this backward runs inside another"
    if default_devices() is None or torch._C._are_functorch_transforms_active():
        return "a mode or a torch.func transform is active"
    if torch._C._is_any_autocast_enabled():
        return "autocast is on"
    if any(type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.grad_fn is None for tensor in tensors):
        return "the backward starts from a leaf, an edge or a tensor subclass"
    if any(type(gradient) is not torch.Tensor or is_batched(gradient) for gradient in gradients):
        return "a gradient is not an ordinary tensor"
    return why_not_read_nodes() or _why_not_devices(gradients)


def _why_not_devices(gradients: Sequence[torch.Tensor]) -> str | None:
    kinds = {gradient.device.type for gradient in gradients if not on_host(gradient.device)}
    if kinds - {"cuda"}:
        return f"a gradient is on {', '.join(sorted(kinds))}"
    reason = why_not_read_streams() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    return reason if kinds else None  # further on there may be gradients on a GPU as well


def _request(
    tensors: Sequence[Any],
    gradients: tuple[Any, ...],
    inputs: tuple[Any, ...],
    allow_unreachable: bool,
    accumulate_grad: bool,
) -> _Request:
    functions = tuple([tensor.grad_fn for tensor in tensors])
    reading = read(functions)
    if len(tensors) == 1:
        roots: tuple[tuple[int, int], ...] = ((0, tensors[0].output_nr),)
    else:
        numbers = {id(node): number for number, node in enumerate(reading.nodes)}
        roots = tuple((numbers[id(node)], tensor.output_nr) for node, tensor in zip(functions, tensors, strict=True))
    wanted, leaves = _ends(reading, inputs, allow_unreachable, accumulate_grad) if inputs else (None, None)
    layouts = tuple([layout(gradient) for gradient in gradients])
    streams = str(current_streams())  # a text, as numbers are taken for sizes
    key = (reading.key, roots, layouts, wanted, leaves, streams)
    return _Request(reading, roots, gradients, wanted, leaves, key)


def _ends(
    reading: GraphReading, inputs: Sequence[Any], allow_unreachable: bool, accumulate_grad: bool
) -> tuple[tuple[tuple[int, int] | None, ...] | None, frozenset[int] | None]:
    """Where the graph ends if `inputs` were given."""
    if any(type(tensor) not in (torch.Tensor, torch.nn.Parameter) for tensor in inputs):
        raise Unreadable("inputs= has an element that is no plain tensor")
    numbers = {id(node): number for number, node in enumerate(reading.nodes)}
    leaves = {id(node.variable): number for number, node in enumerate(reading.nodes) if type(node) is ACCUMULATE}
    ends: list[tuple[int, int] | None] = []
    for tensor in inputs:
        number = leaves.get(id(tensor)) if tensor.grad_fn is None else numbers.get(id(tensor.grad_fn))
        if number is not None and tensor.is_leaf and get_gradient_edge(tensor).node is not reading.nodes[number]:
            number = None  # a leaf with a new storage is another one to autograd
        if number is None and not (allow_unreachable and tensor.requires_grad):
            raise Unreadable("the graph does not reach one of inputs=")
        ends.append(None if number is None else (number, tensor.output_nr))
    if not accumulate_grad:
        return tuple(ends), None
    if any(tensor.grad_fn is not None for tensor in inputs):
        raise Unreadable("inputs= of backward() has a non-leaf tensor")
    return None, frozenset(at[0] for at in ends if at is not None)
