"""What follows the instruction at which a captured graph ended, where nothing may be executed.

A branch on an open bool has two successors. An exception ends the call. A number that is needed may be known, or be a
size, in a state that begins here. Anything else is for Python alone.
"""

from typing import Any

from smelt.base.fast_dataclass import dataclass
from smelt.capture.model.open_numbers import OpenNumber, OpenRange, Tested
from smelt.capture.model.state import LiveFrame
from smelt.capture.replay.plan import Stop
from smelt.ir.artifact.machine import Raise


@dataclass(frozen=True, slots=True)
class Splits:
    condition: OpenNumber
    if_true: list[LiveFrame]
    if_false: list[LiveFrame]


@dataclass(frozen=True, slots=True)
class Raises:
    """The call ends by an exception. Not `certain`: an operator raised as its shapes were asked for, as it would."""

    end: Raise
    certain: bool = True


@dataclass(frozen=True, slots=True)
class NeedsNumber:
    """The instruction works with an open number, and has to know more of it."""


def what_follows(plan: Stop, frames: list[LiveFrame]) -> Splits | Raises | NeedsNumber | None:
    """What comes after the graph of `plan`; the innermost of `frames` stands at the instruction that ended it."""
    frame = frames[-1]
    name, top = frame.instruction.name, frame.stack[-1] if frame.stack else None
    if name in ("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE") and isinstance(top, OpenNumber):
        return Splits(top, *[_jumped(frames, way) for way in (True, False)])
    if name in ("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP") and isinstance(top, Tested):
        return Splits(top.test, *[_kept_or_popped(frames, way) for way in (True, False)])
    if name == "FOR_ITER" and isinstance(top, OpenRange) and isinstance(top.test, OpenNumber):
        return Splits(top.test, *[_answered(frames, way) for way in (True, False)])
    if plan.record.code in ("B018", "B019"):
        return Raises(_raised(frame, plan))
    if plan.record.code == "B004" or any(isinstance(each, OpenNumber) for each in frame.stack):
        return NeedsNumber()
    if plan.record.code == "B011" and not any(text in plan.record.reason for text in _NOT_ITS_OWN):
        return Raises(_raised(frame, plan), certain=False)
    return None


# What an operator says that does not raise when it runs: it has no meta kernel, or exploring itself is the reason.
_NOT_ITS_OWN = ("NotImplementedError", "require grad")


def _copied(frames: list[LiveFrame]) -> tuple[list[LiveFrame], LiveFrame]:
    """Frames of which the innermost may be moved on."""
    last = frames[-1]
    moved = LiveFrame(
        last.function, last.info, last.index, list(last.slots), list(last.stack), last.discard, last.handled
    )
    others = [
        LiveFrame(each.function, each.info, each.index, list(each.slots), list(each.stack), each.discard, each.handled)
        for each in frames[:-1]
    ]
    return [*others, moved], moved


def _jumped(frames: list[LiveFrame], way: bool) -> list[LiveFrame]:
    copies, frame = _copied(frames)
    instruction = frame.instruction
    frame.index += 1
    frame.stack.pop()
    if way == instruction.name.endswith("TRUE"):
        frame.jump(instruction.target)
    return copies


def _kept_or_popped(frames: list[LiveFrame], way: bool) -> list[LiveFrame]:
    copies, frame = _copied(frames)
    instruction = frame.instruction
    frame.index += 1
    tested: Any = frame.stack.pop()
    if way == ("TRUE" in instruction.name):
        frame.stack.append(tested.value)
        frame.jump(instruction.target)
    return copies


def _answered(frames: list[LiveFrame], way: bool) -> list[LiveFrame]:
    """The loop's test has been decided: its instruction goes on by that."""
    copies, frame = _copied(frames)
    numbers: Any = frame.stack[-1]
    answered = OpenRange(numbers.start, numbers.stop, numbers.step)
    answered.test = way
    frame.stack[-1] = answered
    return copies


def _raised(frame: LiveFrame, plan: Stop) -> Raise:
    error = next((each for each in reversed(frame.stack) if isinstance(each, BaseException)), None)
    if error is not None and frame.instruction.name == "RAISE_VARARGS":
        return Raise(type(error).__name__, str(error))
    text = plan.record.reason.removesuffix(" raised while it was traced").partition(": ")[2]
    kind, _, message = text.partition(": ")
    return Raise(kind or "Exception", message)
