"""Capture of one state: interpret it, close the graph, compile it, and plan how to go on.

capture([LiveFrame of f at its start], compile_graph)  →  Captured(guards, Return | Stop)
"""

import sys
from collections.abc import Hashable

import torch

from smelt import _native
from smelt.base.fast_dataclass import dataclass
from smelt.base.options import config
from smelt.capture.calls.dispatch import call
from smelt.capture.calls.traced.numpy_arrays import array_call, number_of
from smelt.capture.calls.traced.wrapper_tensors import attribute_of_wrapper, wrapper_call
from smelt.capture.driver.closing import Captured, Closing, Observe, Unfinished
from smelt.capture.driver.entry_frames import EntryFrames
from smelt.capture.driver.growing_state import GrownState, growth_of, mark_open_state
from smelt.capture.guards.dynamic_sizes import Growth, History, Sizes
from smelt.capture.guards.tree import GuardTree
from smelt.capture.interpreter.deferred_scalars import operands_of_tensors, told, told_operands
from smelt.capture.interpreter.externals import Externals
from smelt.capture.interpreter.interpreter import Broken, Interpreter
from smelt.capture.model.breaks import Materialize, SkipFrame, Unsupported
from smelt.capture.model.records import BreakRecord
from smelt.capture.model.state import LiveFrame
from smelt.capture.opcodes import class_bodies, exception_groups, exceptions, match, opcodes
from smelt.capture.opcodes.opcode_table import HANDLERS
from smelt.capture.persist.store import Keep
from smelt.capture.tape.data_sizes import DataSizes, OtherSizes
from smelt.capture.tape.effect_recorder import EffectRecorder
from smelt.capture.tape.tape import Tape
from smelt.ir.graph import GraphCompiler
from smelt.ir.nodes.ambient import Ambient, attention_restored, restored, without_default_devices
from smelt.meta.fake_tensor import without_caller_hooks

SEMANTICS = (opcodes, class_bodies, exceptions, exception_groups, match)  # importing them fills the table

_ATTEMPTS = 4  # at a state whose graph ends inside generators
_ATTEMPTS_AT_SIZES = 16  # that operators take, where only data tell them


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
    growth = Growth() if dynamic is None and not (explores or observe) else None
    while True:
        try:
            sizes = Sizes(dynamic, history)
            sizes.growth = growth or Growth()
            asks = (fullgraph or config.capture_data) and not (explores or observe)
            told = DataSizes(sizes.shape_env, from_data, met) if asks else None
            return _capture_in_mode(
                frames, compile_graph, fullgraph, generators, sizes, told, options, growth is not None
            )
        except GrownState as grown:
            growth = grown.growth
        except OtherSizes as other:
            supposed += 1
            if supposed > _ATTEMPTS_AT_SIZES:
                raise SkipFrame("an operator refuses sizes that only data tell") from None
            from_data = other.examples
        except Materialize as lazy:
            _native.suspended(lazy.function, *lazy.arguments)
        except Unfinished as unfinished:  # a running generator cannot be rebuilt: break where it is made instead
            if not generators.most:
                raise
            attempts += 1
            most = unfinished.finished if attempts < _ATTEMPTS else 0
            droppable = generators.droppable or unfinished.droppable
            generators = Followed(most, unfinished.record or generators.ended, droppable)


@dataclass(frozen=True, slots=True)
class Followed:
    """How many generators are followed, why an earlier attempt ended inside of the next one, and whether somebody could
    tell when that one is dropped."""

    most: int
    ended: BreakRecord | None = None
    droppable: bool = False


def _capture_in_mode(
    frames: list[LiveFrame],
    compile_graph: GraphCompiler,
    fullgraph: bool,
    generators: Followed,
    sizes: Sizes,
    told: DataSizes | None,
    options: tuple[bool, Hashable, Keep | None, Observe | None, bool],
    follows_growth: bool,
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
            growth = follows_growth
            return _capture(frames, externals, compile_graph, fullgraph, entry, generators, keep, observe, growth)
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
    follows_growth: bool,
) -> Captured:
    asks_classes = torch._C._is_torch_function_enabled()
    try:
        with (
            restored(),
            without_default_devices(),
            torch._C.DisableTorchFunctionSubclass(),
            EffectRecorder(externals.tape),
        ):
            virtual = EntryFrames(externals.tree, frames).virtual(externals)
            interp = Interpreter(virtual, externals, HANDLERS, call, generators.most)
            interp.leaves_droppable = generators.droppable
            interp.array_call, interp.number_of = array_call, number_of
            interp.is_asking_classes = asks_classes
            interp.wrapper_call, interp.wrapper_attribute = wrapper_call, attribute_of_wrapper
            interp.prepare_operands = operands_of_tensors if externals.explores else None
            if externals.tape.data_sizes is not None:
                interp.prepare_operands, interp.tell = told_operands, told
            ending = interp.run()
        if follows_growth:
            _follow_growth(externals, isinstance(ending, Broken))
    except Unsupported as unreadable:
        raise SkipFrame(unreadable.reason) from unreadable.bare()
    return Closing(frames, interp, ending, compile_graph, fullgraph, entry).captured(keep, observe, generators.ended)


def _follow_growth(externals: Externals, breaks: bool) -> None:
    """Capture again, with symbols, if outside state grew by sizes of inputs; not with symbols at which it breaks."""
    sizes = externals.sizes
    if sizes.growth.sizes:
        if breaks:
            raise GrownState(None)
    elif not breaks:
        growth = growth_of(externals, externals.tape)
        if sizes.follows(growth):
            raise GrownState(growth)
    mark_open_state(externals, sizes)
