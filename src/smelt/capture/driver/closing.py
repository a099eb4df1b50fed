"""From the end of interpretation to a plan: outputs chosen, unused inputs dropped, guards sealed, graph compiled.

Closing(frames, interp, Returned(value), …).captured()   →   Captured(guards, Return | Stop)
"""

import functools
import operator
from collections.abc import Callable
from dataclasses import field
from typing import Any

import torch
from torch import fx

from smelt import _native
from smelt.base.errors import GraphBreakError
from smelt.base.events import count, emit, wanted
from smelt.base.fast_dataclass import dataclass
from smelt.base.torch_originals import BASE
from smelt.capture.driver.break_records import (
    break_record,
    error_under_fullgraph,
    needs_autograd_nodes,
    needs_cpython,
)
from smelt.capture.driver.entry_frames import EntryFrames
from smelt.capture.driver.graph_inputs import GraphInputs
from smelt.capture.guards.tree import format_guards
from smelt.capture.interpreter.deferred_scalars import open_scalar
from smelt.capture.interpreter.dict_keys import keys_hold
from smelt.capture.interpreter.interpreter import Broken, Ending, Frame, Interpreter, Returned
from smelt.capture.interpreter.iterators import finishes_without_effects
from smelt.capture.model.breaks import NotFollowed, SkipFrame
from smelt.capture.model.open_numbers import DTYPES
from smelt.capture.model.records import BreakRecord, GraphRecord
from smelt.capture.model.state import LiveFrame, flat
from smelt.capture.model.user_names import user_names
from smelt.capture.model.values import DeferredScalar, Iterator, Number, Value, ZippedIterator, describe
from smelt.capture.persist.store import Keep
from smelt.capture.replay.described import (
    DescribedCall,
    Describer,
    checks_below,
    described_inputs,
    given_of,
    origins_of,
)
from smelt.capture.replay.graph_facts import GraphFacts
from smelt.capture.replay.plan import Computation, EntryState, FrameRecipe, Plan, Return, Stop
from smelt.capture.replay.reconstruct import Operand, Rebuilder
from smelt.capture.replay.rollback import WritePolicy
from smelt.capture.replay.side_effects import cleared_grads, replay
from smelt.capture.tape.distributed import with_locals
from smelt.capture.tape.generators import with_generators
from smelt.capture.tape.tape import Tape
from smelt.ir.graph import GraphCompiler, GraphLevel, Traced, format_graph, placeholders
from smelt.ir.nodes.ambient import Ambient, without_default_devices
from smelt.runtime.collectives import Collectives
from smelt.symbolic.expressions import FROM_DATA, Expression, Symbol
from smelt.symbolic.symnode import meaning

Observe = Callable[[DescribedCall], None]


@dataclass(frozen=True, slots=True)
class Captured:
    """One compiled version of a state."""

    guards: "_native.Guards"
    plan: Plan
    entry_state: EntryState
    saw_tensors: bool
    facts: GraphFacts | None = None  # where export explores
    others: "list[Captured]" = field(default_factory=list)  # for other sizes that data tell, tried one after the other


class Unfinished(Exception):
    """The graph ended while a generator was suspended, in inference mode, or with tensors of both modes.

    `finished`: how many generators were made before the first that was suspended. `record`: why it ended there.
    `droppable`: whether somebody could tell when Python drops that generator.
    """

    def __init__(self, finished: int = 0, record: BreakRecord | None = None, droppable: bool = False) -> None:
        self.finished, self.record, self.droppable = finished, record, droppable


class Closing:
    """From the interpreter's ending to a plan: outputs chosen, unused inputs dropped, guards sealed, graph compiled."""

    def __init__(
        self,
        frames: list[LiveFrame],
        interp: Interpreter,
        ending: Ending,
        compile_graph: GraphCompiler,
        fullgraph: bool,
        entry: Ambient,
    ) -> None:
        self.frames = frames
        self.interp = interp
        self.tape, self.externals = interp.tape, interp.externals
        self.ending = ending
        self.stop = ending.stop if isinstance(ending, Broken) else None
        self.compile_graph = compile_graph
        self.fullgraph = fullgraph
        self.entry = entry
        self.final = interp.tape.ambient
        self.compiled: tuple[Traced, WritePolicy] | None = None  # what the compiler was given, and what surrounds it
        self.entry_frames = EntryFrames(interp.tree, frames)
        self.inputs = GraphInputs(interp.externals, interp.tape)
        tape = interp.tape
        self.build = Rebuilder(
            tape.node_of,
            tape.detached_if_freed,
            tape.leaves.gradient_slots,
            self.inputs.preallocate,
            functools.partial(_kept_open, tape) if interp.externals.explores else functools.partial(_told, tape),
        )
        self.build.made_classes = interp.tree.made_classes
        self.build.is_whole = isinstance(ending, Returned)

    def captured(
        self, keep: Keep | None = None, observe: Observe | None = None, ended: BreakRecord | None = None
    ) -> Captured:
        record = None if self.stop is None else break_record(self.interp.frames, self.stop)
        if isinstance(self.stop, NotFollowed) and ended is not None:
            record = ended
        forbidden = error_under_fullgraph(record) if record is not None and self.fullgraph else None
        saw_tensors = bool(self.tape.inputs)
        operands = self._finished_operands(record)
        self._close_graph()
        self.entry_frames.collect()
        for kind, name in sorted(self.tape.methods, key=_place_of_method):
            self.interp.tree.class_attribute(kind, name)
        for device, index in self.tape.current_devices.items():
            self.interp.tree.rely_on_current_device(device, index)
        _, collected = self.interp.tree.build()
        arguments = self.inputs.order(len(collected))
        computation = self._computation(arguments, len(collected))
        sizes = self.externals.sizes  # compiling may have decided something about them
        sizes.guard_fixed_floats()
        roots, _ = self.interp.tree.build()
        facts = sizes.facts()
        guards = _native.Guards(roots, False, None if self.externals.explores else facts)
        if observe is None:  # else it may be of numbers that are only supposed
            self._check_guards(guards)
        if wanted("guards"):
            emit("guards", format_guards(roots, facts), roots)
        if record is not None:
            count("graph_breaks")
            emit("breaks", str(record), record)
        plan, entry_state = (
            self._plan(computation, operands, record, forbidden),
            self.entry_frames.state(len(collected), tuple(sizes.computed())),
        )
        if keep is not None:
            reason = self._why_not_kept(plan, entry_state, facts)
            if reason is None:
                keep(roots, plan, entry_state, self.compiled, self.interp.tree)
            else:
                emit("cache", f"a capture of {self.frames[-1].info.code.co_qualname} is not kept: {reason}")
        if observe is not None and isinstance(self.ending, Returned):
            observe(self._described(self.ending.value))
        explored = self._graph_facts() if self.externals.explores else None
        return Captured(guards, plan, entry_state, saw_tensors, explored)

    def _graph_facts(self) -> GraphFacts:
        tape, externals = self.tape, self.externals
        inputs = placeholders(tape.graph)
        written = {self.inputs.joined.get(node, node) for node in tape.memory.written()}
        return GraphFacts(
            externals.sizes.shape_env,
            frozenset(externals.sizes.open_symbols),
            tuple(place for place, node in enumerate(inputs) if node in written),
            tape.memory.shared_by(inputs, self.build.outputs),
            bool(externals.graph_generators),
            bool(externals.deferred_calls),
        )

    def _described(self, result: Value) -> DescribedCall:
        """The call as data; its graph has all its inputs and outputs by now."""
        externals = self.externals
        describer = Describer(self.build)
        inputs = described_inputs(placeholders(self.tape.graph), self.tape.inputs, self.inputs.preallocated)
        effects = tuple(describer.effects(externals.written.values()))
        checks = tuple(checks_below(self.interp.tree.roots()))
        deferred = tuple(describe(args[0]) for _, args in externals.deferred_calls if args)
        traced = None if self.compiled is None else self.compiled[0]
        origins = origins_of(self.interp.tree.roots())
        parts = describer.described(result), effects, externals.sizes.shape_env, checks, deferred, origins
        deciding = [node for node in self.inputs.preallocated if node in self.tape.deciding]
        return DescribedCall(traced, inputs, *parts, (*map(given_of, externals.relied_data), *deciding))

    def _why_not_kept(self, plan: Plan, entry_state: EntryState, facts: Any) -> str | None:
        """Why a capture is none of those that later processes use (`kept`): a graph as it was compiled, no more."""
        computation = plan.computation
        if isinstance(plan, Stop) or len(self.frames) > 1 or self.frames[0].index:
            return "it does not go from the start of a function to its end"
        if facts is not None or entry_state.computed or self.externals.sizes.shape_env.from_data:
            return "it has dynamic sizes or scalars"
        if self.tape.effects.communicates:
            return "it has collectives"
        if self.compiled is None:
            return "PyTorch runs its graph, or there is none"
        if computation.final is not None or computation.preallocated or computation.cleared_grads:
            return "it changes process-wide state, or optimizer state"
        return f"it relies on {self.interp.tree.why_not_persist}" if self.interp.tree.why_not_persist else None

    def _check_guards(self, guards: "_native.Guards") -> None:
        state = flat(self.frames)
        with torch._C._InferenceMode(self.interp.tree.inference_mode):
            torch._C._set_grad_enabled(self.entry.grad)
            if guards.check(state) is None:
                raise SkipFrame(f"a guard fails on the state it was made from: {guards.explain(state)}")

    def _finished_operands(self, record: BreakRecord | None) -> Any:
        """The operands of the plan, where no generator would be left suspended and no two modes are mixed."""
        generators = self.interp.made_generators
        for number, generator in enumerate(generators):
            if not finishes_without_effects(self.interp, generator):
                raise Unfinished(number, record, droppable=True)
        try:
            operands = self._operands()
            if not keys_hold(self.interp, self.build.rebuilt_keys):
                raise SkipFrame("keys of a dict or set whose __hash__ or __eq__ answers otherwise by now")
        except SkipFrame:
            if self.interp.entered_inference:
                raise Unfinished from None
            if generators:
                first = next((number for number, each in enumerate(generators) if not each.done), 0)
                raise Unfinished(first, record) from None
            raise
        inferred = self.tape.inferred.intersection(self.build.outputs)
        if inferred and len(inferred) < len(self.build.outputs):
            raise Unfinished
        self.inference = bool(inferred)
        return operands

    def _operands(self) -> Any:
        """What must be rebuilt, as operands still to be numbered; writes come first."""
        self.externals.guard_distinct()
        replay(self.build, self.externals.written.values(), self.externals.deferred_calls)
        if isinstance(self.ending, Returned):
            return self.build.operand(self.ending.value)
        null = self.build.constant(_native.NULL)
        frames = self.interp.frames
        for frame in frames:  # first all that the program itself may hold
            for number, value in enumerate(frame.slots):
                if value is not None and frame.info.is_live(frame.index, number) and not _is_own(frame, number):
                    self.build.operand(value)
            for value in frame.stack:
                if not isinstance(value, Iterator | ZippedIterator) or frame.stack.count(value) > 1:
                    self.build.operand(value)
        operands: list[tuple[Frame, Operand, list[Operand], list[Operand], Operand | None]] = []
        for frame in frames:
            slots = [
                self.build.frame_operand(value)
                if value is not None and frame.info.is_live(frame.index, number)
                else null
                for number, value in enumerate(frame.slots)
            ]
            stack = [self.build.frame_operand(value) for value in frame.stack]
            handled = None if frame.handled is None else self.build.operand(frame.handled)
            operands.append((frame, self.build.operand(frame.function), slots, stack, handled))
        return operands

    def _close_graph(self) -> None:
        self.tape.sync_ambient(self.entry)
        if self.externals.grad_targets:
            self.build.sort_outputs({node: place for place, node in enumerate(self.tape.graph.nodes)})
        # The checks are outputs that nobody takes: what has no users may be dropped by whoever compiles the graph.
        self.build.outputs += self.tape.write_size_checks(self.entry)
        self.tape.graph.output(tuple(self.build.outputs))
        self.tape.close_regions()
        _drop_unused_parts(self.tape.graph)
        self.inputs.join()
        self.inputs.drop_unused()

    def _computation(self, arguments: tuple[int, ...], collected: int) -> Computation:
        recipe, self.number = self.build.finalize(collected, len(self.inputs.preallocated))
        run = None
        if self.build.outputs or self.tape.effects:
            write_policy = self._write_policy(len(arguments) > 1)
            undoing, recurs = write_policy.undoing(), bool(self.inputs.preallocated)
            traced = Traced(self.tape.graph, GraphLevel.TORCH, {}, undoing=undoing, recurs=recurs)
            count("graphs")
            if wanted("graph"):
                self._report(traced)
            with without_default_devices():
                by_nodes = needs_autograd_nodes(self.stop) or self.tape.returns_new_leaves(self.build.outputs)
                by_nodes = by_nodes and not self.externals.explores
                run = traced.plainly() if by_nodes else self.compile_graph(traced)
            if not self.externals.explores:
                run = write_policy.around(run, lambda: traced)
            if self.tape.distributed:
                run = with_locals(run, self.tape)
            lent = self.externals.graph_generators.values()
            if lent:
                run = with_generators(run, tuple(each.own for each in lent))
                arguments = (*arguments, *[each.source.index for each in lent])
            self.compiled = None if by_nodes else (traced, write_policy)
        final = self.final if self.final != self.entry else None
        dropped = tuple(cleared_grads(self.externals.written.values())) if run is not None else ()
        preallocated = tuple(self.inputs.preallocated.values())
        count_all, writes = collected + len(preallocated), self.tape.memory.writes_inputs
        return Computation(run, arguments, count_all, recipe, self.entry, final, writes, dropped, preallocated)

    def _report(self, traced: Traced) -> None:
        frame = self.frames[-1]
        names, callers = user_names(frame), self.tape.called_from
        lines = frozenset(place for node in traced.graph.nodes for place in callers.get(node, ()))
        record = GraphRecord(traced, names, *names.place(frame), lines)
        emit("graph", format_graph(traced.graph, f"graph of {names.function}"), record)

    def _write_policy(self, several: bool) -> WritePolicy:
        nodes = (self.tape.memory.written(), self.tape.memory.mutated_with_grad(), self.tape.effects.backed_up)
        kinds = [{self.inputs.joined.get(node, node) for node in kind} for kind in nodes]
        inputs = list(enumerate(placeholders(self.tape.graph)))
        written, mutated_with_grad, backed_up = (
            tuple(place for place, node in inputs if node in kind) for kind in kinds
        )
        restores_rng = tuple(sorted(self.tape.effects.draws_on)) if self.tape.effects.raises else ()
        devices = bool(self.entry.devices)
        writes, requires_no_overlap = self.tape.memory.writes_inputs, self.tape.requires_no_overlap
        return WritePolicy(
            written,
            mutated_with_grad,
            backed_up,
            writes,
            several,
            restores_rng,
            self.inference,
            devices,
            requires_no_overlap,
            self._collectives(),
        )

    def _collectives(self) -> Collectives | None:
        started, waited = self.tape.effects.collectives
        return Collectives(waits_for_earlier=waited > started) if self.tape.effects.communicates else None

    def _plan(
        self, computation: Computation, operands: Any, record: BreakRecord | None, forbidden: GraphBreakError | None
    ) -> Plan:
        if record is None:
            return Return(computation, self.number(operands))
        frames = tuple(
            FrameRecipe(
                frame.info,
                frame.index,
                frame.discard,
                self.number(function),
                tuple(map(self.number, slots)),
                tuple(map(self.number, stack)),
                None if handled is None else self.number(handled),
            )
            for frame, function, slots, stack, handled in operands
        )
        eager = needs_cpython(self.interp.frames[-1], self.stop)
        return Stop(computation, frames, eager, record, forbidden, self._bound())

    def _bound(self) -> tuple[int, ...]:
        held = [getattr(value, "source", None) for frame in self.interp.frames for value in frame.slots]
        return tuple(sorted({source.index for source in held if source is not None and source.collected}))


def _kept_open(tape: Tape, value: Number) -> Value:
    """A number in symbols as one that the graph puts into a tensor, for export."""
    kind = type(value.known)
    return open_scalar(kind, tape.number_tensor(value, DTYPES[kind]), value.known)


def _told(tape: Tape, value: Number) -> Value | None:
    """A number made of sizes that only data tell, as one that the graph puts into a tensor; None for any other."""
    what = meaning(value.symbolic)
    leaves = what.symbols() if isinstance(what, Expression) else what.leaves()
    if not any(isinstance(leaf, Symbol) and leaf.origin is FROM_DATA for leaf in leaves):
        return None
    kind = type(value.known)
    return DeferredScalar(kind, BASE.item, [tape.number_tensor(value, DTYPES[kind])])


def _is_own(frame: Frame, slot: int) -> bool:
    """Whether a slot is no variable of the program: the iterator that a comprehension is given."""
    return frame.info.slot_names[slot] == ".0"


def _drop_unused_parts(graph: fx.Graph) -> None:
    """Erase items of tuples that nobody took; not what is taken from a tensor, as its index may be out of range."""
    for node in reversed(list(graph.nodes)):
        if node.target is operator.getitem and not node.users and type(node.args[1]) is int:
            graph.erase_node(node)


def _place_of_method(method: tuple[type, str]) -> tuple[str, str]:
    kind, name = method
    return kind.__name__, name
