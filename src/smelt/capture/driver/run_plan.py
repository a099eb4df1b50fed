"""Running a plan that stops: graph, one instruction in Python, next graph, until the frame has its result.

The driver owns the virtual call stack between graphs. User code runs with the region active and under the user's file
and line; an exception looks for a handler in the virtual frames as CPython would, and leaves with a traceback that
shows them and nothing of smelt.
"""

import functools
import types
import warnings
from collections.abc import Callable
from typing import Any

from smelt import _native
from smelt.base.errors import ChipFailed, GraphBreakError
from smelt.capture.driver.eager_step import STEPS
from smelt.capture.driver.tracebacks import entered_by, without_smelt
from smelt.capture.driver.warnings_stack import placed
from smelt.capture.model.bytecode import Instruction, shim_code
from smelt.capture.model.policy import runs_alone
from smelt.capture.model.state import LiveFrame, handled_in
from smelt.capture.replay.plan import EntryState, GraphFailed, Owner, Plan, Return, Stop

_RUNNING = object()


def drive(owner: Owner, plan: Plan, collected: tuple[Any, ...]) -> Any:
    """Run `plan` and whatever follows it; the result of the outermost frame. Raises `GraphFailed` if the first graph
    fails: those after it are seen to here."""
    assert isinstance(plan, Stop)
    run = _Run(owner, [], _nothing)
    return _native.offering_errors(functools.partial(run.begin, plan, collected), run.offer)


class _Run:
    """A state, and what is done with it next."""

    __slots__ = ("action", "frames", "held", "owner")

    def __init__(self, owner: Owner, frames: list[LiveFrame], action: "Action") -> None:
        self.owner, self.frames, self.action = owner, frames, action
        self.held: list[Any] = []  # what variables hold that nothing reads again

    def begin(self, plan: Stop, collected: tuple[Any, ...]) -> Any:
        """Go on from the start of a plan; from where the program stands, when asked again."""
        if not self.frames:
            self._follow(plan, collected)
        return self.go_on()

    def go_on(self) -> Any:
        """Act on the state, then alternate between plans for the state that results and what they ask for; the result
        of the outermost frame."""
        while True:
            action, self.action = self.action, _nothing
            outcome = _guarded(self.owner, self.frames, action)
            if outcome is not _RUNNING:
                return outcome
            try:
                planned = self.owner.plan_for(self.frames)
            except GraphBreakError:
                raise
            except Exception as error:  # a warning that is an error, or a graph that may not fall back to eager
                self.action = functools.partial(_raise_here, error)
                continue
            if planned is None:
                self.action = _finish_eagerly
                continue
            plan, collected = planned
            del planned
            outcome = self._go_by(plan, collected)
            del collected
            if outcome is not _RUNNING:
                return outcome

    def _go_by(self, plan: Plan, collected: tuple[Any, ...]) -> Any:
        """Go on by a plan; by another for the state where data tell sizes that it is not for."""
        first, others = plan, 0
        while True:
            try:
                if isinstance(plan, Return):
                    return plan.finish(collected)
                self._follow(plan, collected)
                return _RUNNING  # what the program has dropped is gone while it goes on
            except GraphFailed as raised:
                failure = raised.with_traceback(None)
            if failure.irreversible:
                raise failure.error
            planned = self.owner.plan_for_sizes(self.frames, first, others, failure.error)
            if planned is None:
                self.action = _finish_eagerly
                return _RUNNING
            plan, collected = planned
            others += 1

    def _follow(self, plan: Stop, collected: tuple[Any, ...]) -> None:
        self.owner.native.pieces += 1
        plan.materialize(collected, self.frames)
        self.held = [collected[place] for place in plan.bound]
        self.action = _finish_eagerly if plan.eager else _one_step(plan)

    def offer(self, error: BaseException) -> bool:
        """Whether the program may handle what was raised while it waited: Ctrl-C arrives where it stands, and what is
        raised by a graph goes to the caller."""
        if isinstance(error, Exception) or not self.frames:
            return False
        self.action = functools.partial(_raise_here, error)
        return True


def _go_on(owner: Owner, frames: list[LiveFrame], action: "Action") -> Any:
    run = _Run(owner, frames, action)
    return _native.offering_errors(run.go_on, run.offer)


def recover(owner: Owner, entry_state: EntryState, failure: GraphFailed, collected: tuple[Any, ...]) -> Any:
    """The compiled graph raised: Python runs the state from its start and raises from the user's line.

    Not so where the graph has written an input or started a collective, which would happen twice, nor where
    `torch.utils.checkpoint` raised, which ends a recomputation early by an exception of its own, nor where
    a chip has failed, which it says once.
    """
    error = failure.error
    if failure.irreversible or isinstance(error, ChipFailed) or type(error).__module__ == "torch.utils.checkpoint":
        raise error from None
    return run_eagerly(owner, entry_state.state(collected))


def run_eagerly(owner: Owner, frames: list[LiveFrame]) -> Any:
    """Let CPython run the innermost frame to its end, and go on from there."""
    return _go_on(owner, frames, _finish_eagerly)


Action = Callable[[Owner, list[LiveFrame]], Any]


def _guarded(owner: Owner, frames: list[LiveFrame], action: Action) -> Any:
    """Run an action on the state; what it raises goes to the nearest handler, where capture begins again."""
    try:
        return action(owner, frames)
    except BaseException as raised:
        error = raised
    try:
        if isinstance(error, GraphBreakError):
            raise error  # fullgraph=True: not for the program to handle
        _unwind(frames, error)
    finally:
        del error
    return _RUNNING


def _one_step(plan: Stop) -> Action:
    def act(owner: Owner, frames: list[LiveFrame]) -> Any:
        frame = frames[-1]
        instruction = frame.instruction
        frame.index += 1
        invoke = _invoker(owner, frames, instruction, handled_in(frames))
        STEPS[instruction.name](frame, instruction, invoke)
        if plan.forbidden is not None:
            raise plan.forbidden
        store_result(frame)
        frame.clear_dead()
        return _RUNNING

    return act


def _raise_here(error: BaseException, owner: Owner, frames: list[LiveFrame]) -> Any:
    """Blocks that the program is within are left as they would be: gradients stay disabled otherwise."""
    frames[-1].index += 1  # before the instruction that comes next
    raise error


def _nothing(owner: Owner, frames: list[LiveFrame]) -> Any:
    return _RUNNING


def store_result(frame: LiveFrame) -> None:
    """Put a result where it goes: on the stack the next capture would look at it, and guard what nobody reads.

    Jumps are followed: the two ends of a loop that Python compiles with its test twice are one place to go on from.
    """
    while frame.instruction.name in ("POP_TOP", "STORE_FAST", "NOP", "JUMP"):
        instruction = frame.instruction
        frame.index += 1
        if instruction.name == "JUMP":
            frame.jump(instruction.target)
        elif instruction.name == "POP_TOP":
            frame.stack.pop()
        elif instruction.name == "STORE_FAST":
            frame.slots[instruction.arg] = frame.stack.pop()


def _finish_eagerly(owner: Owner, frames: list[LiveFrame]) -> Any:
    """CPython runs the innermost frame from where it stands; its result goes to its caller."""
    handled = handled_in(frames)
    frame = frames.pop()  # it is a real frame from here: what it does not handle itself is for its callers
    state = frame.function, frame.offset, tuple(frame.slots), tuple(frame.stack), handled
    if owner.fullgraph:  # there was one graph, and it failed: what is called on the way to the error need be none
        value = _native.suspended(_native.run_from, *state)
    else:
        value = _native.resumed(owner.native, _native.run_from, *state)
    if not frames:
        return value
    if not frame.discard:
        frames[-1].stack.append(value)
    store_result(frames[-1])
    frames[-1].clear_dead()
    return _RUNNING


def _invoker(
    owner: Owner, frames: list[LiveFrame], instruction: Instruction, handled: BaseException | None
) -> Callable[..., Any]:
    frame = frames[-1]
    code = shim_code(frame.info, instruction.line)
    shim = types.FunctionType(code, frame.function.__globals__)

    def invoke(function: Any, *args: Any, **kwargs: Any) -> Any:
        if function is warnings.warn:
            function, args, kwargs = placed(frames, args, kwargs)
        if runs_alone(function):
            return shim(_native.suspended, (function, *args), kwargs)
        return shim(_native.resumed, (owner.native, function, *args), kwargs)

    if handled is None:
        return invoke
    return lambda function, *args, **kwargs: _while_handling(handled, invoke, function, *args, **kwargs)


def _while_handling(error: BaseException, invoke: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call with `error` as the exception being handled, which `sys.exc_info()` names and new exceptions chain to."""
    trace, context = error.__traceback__, error.__context__
    try:
        raise error
    except BaseException:
        error.__traceback__, error.__context__ = trace, context
        return invoke(*args, **kwargs)


def _unwind(frames: list[LiveFrame], error: BaseException) -> None:
    """Drop frames until one handles `error` and stands at its handler; raise it if none does."""
    trace = without_smelt(error.__traceback__)
    while frames:
        frame = frames[-1]
        trace = entered_by(frame, trace)
        handler = frame.info.handler_of(frame.running)
        if handler is not None:
            del frame.stack[handler.depth :]
            if handler.push_offset:
                frame.stack.append(frame.running.offset // 2)
            frame.stack.append(error.with_traceback(trace))
            frame.jump(handler.target)
            return
        frames.pop()
    raise error.with_traceback(trace)
