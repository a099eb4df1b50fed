"""Capture of one state: interpret it, close the graph, compile it, and plan how to go on.

capture([LiveFrame of f at its start], compile_graph)  →  Captured(guards, Return | Stop)
"""

import functools
import inspect
import operator
import sys
from collections.abc import Callable, Hashable
from dataclasses import field
from types import CodeType
from typing import Any
from weakref import WeakMethod

import torch
from torch import fx

from smelt import _native
from smelt.base.errors import GraphBreakError
from smelt.base.events import count, emit, wanted
from smelt.base.fast_dataclass import dataclass
from smelt.base.options import config
from smelt.base.torch_originals import BASE
from smelt.capture.calls.dispatch import call
from smelt.capture.calls.traced.numpy_arrays import array_call, number_of
from smelt.capture.calls.traced.wrapper_tensors import attribute_of_wrapper, wrapper_call
from smelt.capture.driver.eager_step import STEPS
from smelt.capture.guards.dynamic_sizes import History, Sizes
from smelt.capture.guards.tree import GuardTree, format_guards
from smelt.capture.interpreter.deferred_scalars import open_scalar, operands_of_tensors, told, told_operands
from smelt.capture.interpreter.dict_keys import keys_hold
from smelt.capture.interpreter.externals import Externals, guard_tensor_identity, is_gradient, may_guard_identity
from smelt.capture.interpreter.interpreter import Broken, Ending, Frame, Interpreter, Returned
from smelt.capture.interpreter.iterators import finishes_without_effects
from smelt.capture.model.breaks import COMPILED_LATER, Materialize, NotFollowed, SkipFrame, Unsupported
from smelt.capture.model.bytecode import columns_of
from smelt.capture.model.open_numbers import DTYPES
from smelt.capture.model.policy import is_polyfill
from smelt.capture.model.records import BreakRecord, GraphRecord
from smelt.capture.model.source import Source
from smelt.capture.model.state import LiveFrame, flat
from smelt.capture.model.static import ABSENT, static_lookup
from smelt.capture.model.user_names import user_names
from smelt.capture.model.values import (
    NULL,
    Cell,
    DeferredScalar,
    Globals,
    Iterator,
    LazyItem,
    Mapping,
    Number,
    Object,
    Tensor,
    Value,
    ZippedIterator,
    describe,
)
from smelt.capture.opcodes import class_bodies, exception_groups, exceptions, match, opcodes
from smelt.capture.opcodes.opcode_table import HANDLERS
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
from smelt.capture.replay.plan import (
    Computation,
    EntryState,
    FrameRecipe,
    Plan,
    Preallocated,
    Return,
    Stop,
    have_distinct_bases,
)
from smelt.capture.replay.reconstruct import Operand, Rebuilder
from smelt.capture.replay.rollback import WritePolicy
from smelt.capture.replay.side_effects import cleared_grads, replay
from smelt.capture.tape.data_sizes import DataSizes, OtherSizes
from smelt.capture.tape.distributed import with_locals
from smelt.capture.tape.effect_recorder import EffectRecorder
from smelt.capture.tape.generators import with_generators
from smelt.capture.tape.tape import Tape, metadata_changed
from smelt.ir.graph import GraphCompiler, GraphLevel, Traced, format_graph, placeholders
from smelt.ir.nodes.ambient import Ambient, attention_restored, restored, without_default_devices
from smelt.ir.tensorspec import tensor_spec
from smelt.meta.ghost import without_caller_hooks
from smelt.runtime.collectives import Collectives
from smelt.symbolic.expressions import FROM_DATA, Expression, Symbol
from smelt.symbolic.symnode import meaning

SEMANTICS = (opcodes, class_bodies, exceptions, exception_groups, match)  # importing them fills the table

# Breaks where Python is expected to raise: under fullgraph=True the user gets that error, not ours.
EXPECTED_TO_RAISE = frozenset({"B011", "B018", "B019"})

# Builtins that look at the frame that calls them: only a real frame will do.
_ATTEMPTS = 4  # at a state whose graph ends inside generators
_ATTEMPTS_AT_SIZES = 16  # that operators take, where only data tell them
_NEEDS_FRAME: frozenset[Any] = frozenset({locals, vars, dir, eval, exec, super, breakpoint, sys._getframe})


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


def capture(
    frames: list[LiveFrame],
    compile_graph: GraphCompiler,
    *,
    fullgraph: bool,
    dynamic: bool | None = False,
    history: History | None = None,
    follow_loops: bool = True,
    settings: Hashable = None,
    keep: Keep | None = None,
    observe: Observe | None = None,
    explores: bool = False,
    from_data: tuple[int, ...] = (),
) -> Captured:
    """Interpret from `frames` as far as it goes. Raises `SkipFrame` if CPython has to run the state.

    `follow_loops`: whether loops that a break left in the middle are unrolled from there. `settings`: functions that
    are compiled with the same are followed. `keep` receives what later processes can use, `observe` a call that was
    captured whole, as data. `explores`: for export, which keeps numbers of tensors open; the graphs are not to run.
    `from_data`: sizes to suppose where only data tell them.
    """
    options = follow_loops, settings, keep, observe, explores
    history = history or History()
    generators, attempts, supposed, met = Followed(sys.maxsize), 0, 0, len(from_data)
    while True:
        try:
            sizes = Sizes(dynamic, history)
            asks = (fullgraph or config.capture_data) and not (explores or observe)
            told = DataSizes(sizes.shape_env, from_data, met) if asks else None
            return _capture_in_mode(frames, compile_graph, fullgraph, generators, sizes, told, options)
        except OtherSizes as other:
            supposed += 1
            if supposed > _ATTEMPTS_AT_SIZES:
                raise SkipFrame("an operator refuses sizes that only data tell") from None
            from_data = other.examples
        except Materialize as lazy:
            _native.suspended(lazy.function, *lazy.arguments)
        except _Unfinished as unfinished:  # a running generator cannot be rebuilt: break where it is made instead
            if not generators.most:
                raise
            attempts += 1
            most = unfinished.finished if attempts < _ATTEMPTS else 0
            generators = Followed(most, unfinished.record or generators.ended)


class _Unfinished(Exception):
    """The graph ended while a generator was suspended, in inference mode, or with tensors of both modes.

    `finished`: how many generators were made before the first that was suspended. `record`: why it ended there.
    """

    def __init__(self, finished: int = 0, record: BreakRecord | None = None) -> None:
        self.finished, self.record = finished, record


@dataclass(frozen=True, slots=True)
class Followed:
    """How many generators are followed, and why an earlier attempt ended inside of the next one."""

    most: int
    ended: BreakRecord | None = None


def _capture_in_mode(
    frames: list[LiveFrame],
    compile_graph: GraphCompiler,
    fullgraph: bool,
    generators: Followed,
    sizes: Sizes,
    told: DataSizes | None,
    options: tuple[bool, Hashable, Keep | None, Observe | None, bool],
) -> Captured:
    entry = Ambient.now()
    tree, tape = GuardTree(), Tape(entry)
    tape.data_sizes = told
    # Inference tensors keep no version by which writes are noticed.
    with torch._C._InferenceMode(False), without_caller_hooks(), attention_restored():
        torch._C._set_grad_enabled(entry.records)
        externals = Externals(tree, tape, sizes)
        externals.follow_loops, externals.settings, keep, observe, externals.explores = options
        externals.fullgraph = fullgraph
        try:
            return _capture(frames, externals, compile_graph, fullgraph, entry, generators, keep, observe)
        finally:
            tree.release()
            tape.release()
            externals.release()


def _capture(
    frames: list[LiveFrame],
    externals: Externals,
    compile_graph: GraphCompiler,
    fullgraph: bool,
    entry: Ambient,
    generators: Followed,
    keep: Keep | None,
    observe: Observe | None,
) -> Captured:
    asks_classes = torch._C._is_torch_function_enabled()
    try:
        with (
            restored(),
            without_default_devices(),
            torch._C.DisableTorchFunctionSubclass(),
            EffectRecorder(externals.tape),
        ):
            virtual = [_virtual(externals, frame, base) for frame, base in _with_bases(frames)]
            interp = Interpreter(virtual, externals, HANDLERS, call, generators.most)
            interp.array_call, interp.number_of = array_call, number_of
            interp.is_asking_classes = asks_classes
            interp.wrapper_call, interp.wrapper_attribute = wrapper_call, attribute_of_wrapper
            interp.prepare_operands = operands_of_tensors if externals.explores else None
            if externals.tape.data_sizes is not None:
                interp.prepare_operands, interp.tell = told_operands, told
            ending = interp.run()
    except Unsupported as unreadable:
        raise SkipFrame(unreadable.reason) from unreadable.bare()
    return _Closing(frames, interp, ending, compile_graph, fullgraph, entry).captured(keep, observe, generators.ended)


def _with_bases(frames: list[LiveFrame]) -> list[tuple[LiveFrame, int]]:
    found, base = [], 0
    for frame in frames:
        found.append((frame, base))
        base += len(frame.slots) + len(frame.stack) + 1 + (frame.handled is not None)
    return found


def _virtual(externals: Externals, frame: LiveFrame, base: int) -> Frame:
    """A frame of values over a frame of objects; locals are looked at when they are read."""
    tree, info = externals.tree, frame.info
    function_slot = base + len(frame.slots) + len(frame.stack)
    function = externals.value(frame.function, tree.slot(function_slot, info.code.co_name))
    assert isinstance(function, Object) and function.source is not None
    names: Globals = externals.globals_of(function)
    slots: list[Any] = []
    for number, real in enumerate(frame.slots):
        source = tree.slot(base + number, info.slot_names[number])
        if real is _native.NULL:
            if info.is_live(frame.index, number):
                source.check(("unbound",))
            slots.append(None)
        elif frame.index == 0 and number == _keywords_slot(info.code) and type(real) is dict:
            slots.append(_new_keywords(real, source))
        elif frame.index and type(real).__name__ == "cell" and info.slot_names[number] in _cell_names(info.code):
            slots.append(externals.value(real, source))
        else:
            slots.append(LazyItem(real, source))
    stack = [
        externals.value(real, tree.slot(base + len(frame.slots) + number, f"stack[{number}]"))
        if real is not _native.NULL
        else _null(tree.slot(base + len(frame.slots) + number, f"stack[{number}]"))
        for number, real in enumerate(frame.stack)
    ]
    closure: tuple[Cell, ...] = ()
    if frame.index == 0:
        closure = tuple(_closure_cells(externals, function))
    made = Frame(info, function, names, closure, slots, stack, frame.index, frame.discard)
    if frame.handled is not None:
        made.handled = externals.value(frame.handled, tree.slot(function_slot + 1, "the exception being handled"))
    return made


def _keywords_slot(code: CodeType) -> int:
    """The slot of `**kwargs`, or -1."""
    if not code.co_flags & inspect.CO_VARKEYWORDS:
        return -1
    return code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)


def _new_keywords(real: dict[str, Any], source: Source) -> Mapping:
    """`**kwargs` at the start of its frame: Python has just made it, so writing to it is nobody else's concern."""
    source.check(("type", dict))
    source.check(("keys", tuple(real)))
    return Mapping({key: LazyItem(item, source.key(key)) for key, item in real.items()})


def _null(source: Source) -> Value:
    source.check(("unbound",))
    return NULL


def _cell_names(code: Any) -> frozenset[str]:
    return frozenset((*code.co_cellvars, *code.co_freevars))


def _closure_cells(externals: Externals, function: Object) -> list[Cell]:
    cells: list[Cell] = []
    assert function.source is not None
    for number, real in enumerate(function.value.__closure__ or ()):
        name = function.value.__code__.co_freevars[number]
        found = externals.value(real, function.source.child(("closure", number), name))
        assert isinstance(found, Cell)
        cells.append(found)
    return cells


class _Closing:
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
        self.tape = interp.tape
        self.ending = ending
        self.compile_graph = compile_graph
        self.fullgraph = fullgraph
        self.entry = entry
        self.final = interp.tape.ambient
        self.compiled: tuple[Traced, WritePolicy] | None = None  # what the compiler was given, and what surrounds it
        self.joined: dict[fx.Node, fx.Node] = {}  # inputs that turned out to be another
        self.preallocated: dict[fx.Node, Preallocated] = {}  # inputs that are made before the graph runs
        preallocate = WeakMethod(self._preallocate)  # in a circle, the program's objects would outlive the capture
        tape = interp.tape
        self.build = Rebuilder(
            tape.node_of,
            tape.detached_if_freed,
            tape.leaves.gradient_slots,
            lambda value: preallocate()(value),  # type: ignore[misc]
            functools.partial(_kept_open, tape) if interp.externals.explores else functools.partial(_told, tape),
        )
        self.build.made_classes = interp.tree.made_classes
        self.build.is_whole = isinstance(ending, Returned)

    def captured(
        self, keep: Keep | None = None, observe: Observe | None = None, ended: BreakRecord | None = None
    ) -> Captured:
        stop = self.ending.stop if isinstance(self.ending, Broken) else None
        record = self._record(stop) if stop is not None else None
        if isinstance(stop, NotFollowed) and ended is not None:
            record = ended
        forbidden = self._forbidden(record) if record is not None else None
        saw_tensors, made = bool(self.tape.inputs), self.interp.made_generators
        for number, generator in enumerate(made):
            if not finishes_without_effects(self.interp, generator):
                raise _Unfinished(number, record)
        try:
            operands = self._operands()
            if not keys_hold(self.interp, self.build.rebuilt_keys):
                raise SkipFrame("keys of a dict or set whose __hash__ or __eq__ answers otherwise by now")
        except SkipFrame:
            if self.interp.entered_inference:
                raise _Unfinished from None
            if made:
                first = next((number for number, each in enumerate(made) if not each.done), 0)
                raise _Unfinished(first, record) from None
            raise
        inferred = self.tape.inferred.intersection(self.build.outputs)
        if inferred and len(inferred) < len(self.build.outputs):
            raise _Unfinished
        self.inference = bool(inferred)
        self._close_graph()
        self._collect_entry_state()
        for kind, name in sorted(self.tape.methods, key=_place_of_method):
            self.interp.tree.class_attribute(kind, name)
        for device, index in self.tape.current_devices.items():
            self.interp.tree.rely_on_current_device(device, index)
        _, collected = self.interp.tree.build()
        arguments = self._order_inputs(len(collected))
        computation = self._computation(arguments, len(collected))
        sizes = self.interp.externals.sizes  # compiling may have decided something about them
        sizes.guard_fixed_floats()
        roots, _ = self.interp.tree.build()
        facts = sizes.facts()
        guards = _native.Guards(roots, False, None if self.interp.externals.explores else facts)
        if observe is None:  # else it may be of numbers that are only supposed
            self._check_guards(guards)
        if wanted("guards"):
            emit("guards", format_guards(roots, facts), roots)
        if record is not None:
            count("graph_breaks")
            emit("breaks", str(record), record)
        plan, entry_state = self._plan(computation, operands, record, forbidden), self._entry_state(len(collected))
        if keep is not None:
            reason = self._why_not_kept(plan, entry_state, facts)
            if reason is None:
                keep(roots, plan, entry_state, self.compiled, self.interp.tree)
            else:
                emit("cache", f"a capture of {self.frames[-1].info.code.co_qualname} is not kept: {reason}")
        if observe is not None and isinstance(self.ending, Returned):
            observe(self._described(self.ending.value))
        explored = self._graph_facts() if self.interp.externals.explores else None
        return Captured(guards, plan, entry_state, saw_tensors, explored)

    def _graph_facts(self) -> GraphFacts:
        tape, externals = self.tape, self.interp.externals
        inputs = placeholders(tape.graph)
        written = {self.joined.get(node, node) for node in tape.memory.written()}
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
        externals = self.interp.externals
        describer = Describer(self.build, externals.sizes.shape_env)
        inputs = described_inputs(placeholders(self.tape.graph), self.tape.inputs, self.preallocated)
        effects = tuple(describer.effects(externals.written.values()))
        checks = tuple(checks_below(self.interp.tree.roots()))
        deferred = tuple(describe(args[0]) for _, args in externals.deferred_calls if args)
        traced = None if self.compiled is None else self.compiled[0]
        origins = origins_of(self.interp.tree.roots())
        found = describer.described(result), effects, externals.sizes.shape_env, checks, deferred, origins
        made = [node for node in self.preallocated if node in self.tape.deciding]
        return DescribedCall(traced, inputs, *found, (*map(given_of, externals.relied_data), *made))

    def _why_not_kept(self, plan: Plan, entry_state: EntryState, facts: Any) -> str | None:
        """Why a capture is none of those that later processes use (`kept`): a graph as it was compiled, no more."""
        computation = plan.computation
        if isinstance(plan, Stop) or len(self.frames) > 1 or self.frames[0].index:
            return "it does not go from the start of a function to its end"
        if facts is not None or entry_state.computed or self.interp.externals.sizes.shape_env.from_data:
            return "it has dynamic sizes or scalars"
        if self.tape.effects.communicates:
            return "it has collectives"
        if self.compiled is None:
            return "PyTorch runs its graph, or there is none"
        if computation.final is not None or computation.preallocated or computation.cleared_grads:
            return "it changes process-wide state, or optimizer state"
        return f"it relies on {self.interp.tree.why_not_persist}" if self.interp.tree.why_not_persist else None

    def _entry_slots(self) -> list[tuple[LiveFrame, Any, list[Any], list[Any], Any]]:
        """Per frame of the state at the start: sources of function, slots, stack and exception, None if empty."""
        found = []
        slot = self.interp.tree.slot
        for frame, base in _with_bases(self.frames):
            stack_base = base + len(frame.slots)
            slots = [
                slot(base + number, frame.info.slot_names[number])
                if real is not _native.NULL and frame.info.is_live(frame.index, number)
                else None
                for number, real in enumerate(frame.slots)
            ]
            stack = [
                slot(stack_base + number, f"stack[{number}]") if real is not _native.NULL else None
                for number, real in enumerate(frame.stack)
            ]
            place = stack_base + len(frame.stack)
            handled = slot(place + 1, "the exception being handled") if frame.handled is not None else None
            found.append((frame, slot(place, frame.info.code.co_name), slots, stack, handled))
        return found

    def _collect_entry_state(self) -> None:
        for _, function, slots, stack, handled in self._entry_slots():
            for source in (function, *slots, *stack, handled):
                if source is not None:
                    source.collect()

    def _entry_state(self, null: int) -> EntryState:
        frames = tuple(
            FrameRecipe(
                frame.info,
                frame.index,
                frame.discard,
                function.index,
                tuple(null if source is None else source.index for source in slots),
                tuple(null if source is None else source.index for source in stack),
                None if handled is None else handled.index,
            )
            for frame, function, slots, stack, handled in self._entry_slots()
        )
        relations = tuple((one.index, other.index, same) for one, other, same in self.interp.tree.relations)
        return EntryState(relations, tuple(self.interp.externals.sizes.computed()), frames)

    def _check_guards(self, guards: "_native.Guards") -> None:
        state = flat(self.frames)
        with torch._C._InferenceMode(self.interp.tree.inference_mode):
            torch._C._set_grad_enabled(self.entry.grad)
            if guards.check(state) is None:
                raise SkipFrame(f"a guard fails on the state it was made from: {guards.explain(state)}")

    def _record(self, stop: Unsupported) -> BreakRecord:
        stack: list[str] = []
        file, line, columns = "", 0, None
        for frame in self.interp.frames:
            code = frame.info.code
            if stack and is_polyfill(code):
                continue  # no line of the program
            instruction = frame.info.instructions[frame.index if frame is self.interp.frames[-1] else frame.index - 1]
            file, line, columns = code.co_filename, instruction.line, columns_of(code, instruction)
            stack.append(f"{file}:{line} in {code.co_qualname}")
        return BreakRecord(stop.code, stop.reason, stop.hint, file, line, tuple(stack), columns)

    def _forbidden(self, record: BreakRecord) -> GraphBreakError | None:
        if not self.fullgraph or (record.code == COMPILED_LATER and config.compiled_autograd):
            return None
        error = GraphBreakError(
            "SM010",
            f"graph break under fullgraph=True: {record.code}: {record.reason}",
            where=record.where,
            hint=record.hint,
        )
        if record.code not in EXPECTED_TO_RAISE:
            raise error
        return error

    def _operands(self) -> Any:
        """What must be rebuilt, as operands still to be numbered; writes come first."""
        self.interp.externals.guard_distinct()
        replay(self.build, self.interp.externals.written.values(), self.interp.externals.deferred_calls)
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
        found: list[tuple[Frame, Operand, list[Operand], list[Operand], Operand | None]] = []
        for frame in frames:
            slots = [
                self.build.frame_operand(value)
                if value is not None and frame.info.is_live(frame.index, number)
                else null
                for number, value in enumerate(frame.slots)
            ]
            stack = [self.build.frame_operand(value) for value in frame.stack]
            handled = None if frame.handled is None else self.build.operand(frame.handled)
            found.append((frame, self.build.operand(frame.function), slots, stack, handled))
        return found

    def _close_graph(self) -> None:
        self.tape.sync_ambient(self.entry)
        if self.interp.externals.grad_targets:
            self.build.sort_outputs({node: place for place, node in enumerate(self.tape.graph.nodes)})
        # The checks are outputs that nobody takes: what has no users may be dropped by whoever compiles the graph.
        self.build.outputs += self.tape.write_size_checks(self.entry)
        self.tape.graph.output(tuple(self.build.outputs))
        self.tape.close_regions()
        _drop_unused_parts(self.tape.graph)
        self._join_inputs()
        for node, source in list(self.tape.inputs.items()):
            if node.users:
                source.collect()
            else:
                self.tape.graph.erase_node(node)
                del self.tape.inputs[node]

    def _join_inputs(self) -> None:
        """One input for a tensor that was met in several places, where it matters that it is one: it is written, or its
        gradient is taken. Other inputs that gradients may flow to are guarded to be distinct."""
        grad_targets = self.interp.externals.grad_targets
        for places in self.tape.input_aliases():
            (first, value), *others = places
            values = [each for _, each in places]
            written = any(each.ghost._version for each in values) and all(map(may_guard_identity, values))
            written = written or self.interp.externals.explores  # stand-ins are the same wherever they are the same
            if id(value.real) in grad_targets or (others and written):
                self._join(first, value, others)
            elif not (grad_targets and value.ghost.requires_grad):
                continue
            elif is_gradient(value) or not guard_tensor_identity(value):
                for each in grad_targets.values():
                    self.interp.externals.guard_alias(each.source, value.source, False)
        self._guard_unrelated_views()

    def _guard_unrelated_views(self) -> None:
        """No other input is a view of what one is that came to require grad, or to have another shape: it would have
        come to so with it, and what was decided by it would be otherwise."""
        inputs = [(node, value) for places in self.tape.input_aliases() for node, value in places]
        for node, value in inputs:
            if value.real is None or not metadata_changed(node, value.ghost):
                continue
            for _, other in inputs:
                if other.real is None or other.real is value.real:
                    continue
                if not have_distinct_bases(value.real, other.real):
                    raise SkipFrame("an input that comes to require grad shares memory with another input")
                self.interp.externals.guard_alias(value.source, other.source, None)

    def _join(self, first: fx.Node, value: Tensor, others: list[tuple[fx.Node, Tensor]]) -> None:
        identity_guarded = guard_tensor_identity(value)
        for node, each in others:
            if not (guard_tensor_identity(each) and identity_guarded):
                self.interp.externals.guard_alias(value.source, each.source, True)
            self.interp.externals.sizes.equate(tensor_spec(first), tensor_spec(node))
            node.replace_all_uses_with(first)
            self.joined[node] = first

    def _preallocate(self, value: Tensor) -> int | None:
        """The number of a tensor among those that are made before the graph runs; None for one that cannot be."""
        found = self.tape.preallocate(value)
        if found is None:
            return None
        node, function, args, kwargs = found

        def given(argument: Any) -> Any:
            return self.tape.inputs[argument].collect() if isinstance(argument, fx.Node) else argument

        named = {name: given(argument) for name, argument in kwargs.items()}
        self.preallocated[node] = Preallocated(function, tuple(map(given, args)), named)
        return len(self.preallocated) - 1

    def _order_inputs(self, collected: int) -> tuple[int, ...]:
        """Placeholders in the order their values are collected; returns which of the collected they are.

        Those of a whole step come in the order they are used, and its outputs in the order they are made: so it is the
        same graph whether it makes the optimizer's state or finds it.
        """
        places = {node: source.index for node, source in self.tape.inputs.items()}
        places |= {node: collected + number for number, node in enumerate(self.preallocated)}
        ordered = sorted(places, key=places.__getitem__)
        if self.interp.externals.grad_targets:
            used = [each for node in self.tape.graph.nodes for each in node.all_input_nodes if each in places]
            ordered = list(dict.fromkeys(used))
        previous: fx.Node | None = None
        for node in ordered:
            if previous is not None:
                previous.append(node)
            previous = node
        return tuple(places[node] for node in ordered)

    def _computation(self, arguments: tuple[int, ...], collected: int) -> Computation:
        recipe, self.number = self.build.finalize(collected, len(self.preallocated))
        run = None
        if self.build.outputs or self.tape.effects:
            write_policy = self._write_policy(len(arguments) > 1)
            undoing, recurs = write_policy.undoing(), bool(self.preallocated)
            traced = Traced(self.tape.graph, GraphLevel.TORCH, {}, undoing=undoing, recurs=recurs)
            count("graphs")
            if wanted("graph"):
                self._report(traced)
            with without_default_devices():
                by_nodes = self._needs_real_autograd_nodes() or self.tape.returns_new_leaves(self.build.outputs)
                by_nodes = by_nodes and not self.interp.externals.explores
                run = traced.plainly() if by_nodes else self.compile_graph(traced)
            if not self.interp.externals.explores:
                run = write_policy.around(run, lambda: traced)
            if self.tape.distributed:
                run = with_locals(run, self.tape)
            lent = self.interp.externals.graph_generators.values()
            if lent:
                run = with_generators(run, tuple(each.own for each in lent))
                arguments = (*arguments, *[each.source.index for each in lent])
            self.compiled = None if by_nodes else (traced, write_policy)
        final = self.final if self.final != self.entry else None
        dropped = tuple(cleared_grads(self.interp.externals.written.values())) if run is not None else ()
        preallocated = tuple(self.preallocated.values())
        count_all, writes = collected + len(preallocated), self.tape.memory.writes_inputs
        return Computation(run, arguments, count_all, recipe, self.entry, final, writes, dropped, preallocated)

    def _report(self, traced: Traced) -> None:
        frame = self.frames[-1]
        names, callers = user_names(frame), self.tape.called_from
        lines = frozenset(place for node in traced.graph.nodes for place in callers.get(node, ()))
        record = GraphRecord(traced, names, *names.place(frame), lines)
        emit("graph", format_graph(traced.graph, f"graph of {names.function}"), record)

    def _write_policy(self, several: bool) -> WritePolicy:
        found = (self.tape.memory.written(), self.tape.memory.mutated_with_grad(), self.tape.effects.backed_up)
        kinds = [{self.joined.get(node, node) for node in kind} for kind in found]
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

    def _needs_real_autograd_nodes(self) -> bool:
        """Whether Python is about to ask for a node of autograd's graph, or to raise because a tensor may not be
        written in place, which PyTorch tells by the node (one of several views, say). So PyTorch makes the nodes."""
        stop = self.ending.stop if isinstance(self.ending, Broken) else None
        if stop is None:
            return False
        if stop.code == "B015":
            return stop.reason.startswith("Tensor.grad_fn ")
        return stop.code == "B011" and ("inplace" in stop.reason or "in-place" in stop.reason)

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
        return Stop(computation, frames, self._needs_cpython(), record, forbidden, self._bound())

    def _bound(self) -> tuple[int, ...]:
        held = [getattr(value, "source", None) for frame in self.interp.frames for value in frame.slots]
        return tuple(sorted({source.index for source in held if source is not None and source.collected}))

    def _needs_cpython(self) -> bool:
        frame = self.interp.frames[-1]
        if frame.instruction.name not in STEPS:
            return True
        called = [value.value for value in frame.stack if isinstance(value, Object)]
        return any(_among(each, _NEEDS_FRAME) or _makes_droppable(each) for each in called)


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


def _makes_droppable(value: Any) -> bool:
    """Whether this is a class with a `__del__`: where an object of it is dropped only Python knows."""
    return issubclass(type(value), type) and static_lookup(value, "__del__") is not ABSENT


def _among(value: Any, known: frozenset[Any]) -> bool:
    return any(value is each for each in known)  # by identity: hashing might run the program's code


def _drop_unused_parts(graph: fx.Graph) -> None:
    """Erase items of tuples that nobody took; not what is taken from a tensor, as its index may be out of range."""
    for node in reversed(list(graph.nodes)):
        if node.target is operator.getitem and not node.users and type(node.args[1]) is int:
            graph.erase_node(node)


def _place_of_method(method: tuple[type, str]) -> tuple[str, str]:
    kind, name = method
    return kind.__name__, name
