"""A state of real objects: what capture starts from and what a break leaves behind."""

from types import FunctionType
from typing import Any

from smelt import _native
from smelt.base.fast_dataclass import dataclass
from smelt.capture.model.bytecode import CodeInfo, Instruction


@dataclass(slots=True, eq=False)
class LiveFrame:
    """One frame that is between two instructions, with the objects it holds.

    `discard`: see `interpret.Frame`. `handled`: the exception whose handler it is in, None if it is in none of its own.
    """

    function: FunctionType
    info: CodeInfo
    index: int
    slots: list[Any]
    stack: list[Any]
    discard: bool = False
    handled: BaseException | None = None

    @property
    def instruction(self) -> Instruction:
        return self.info.instructions[self.index]

    @property
    def offset(self) -> int:
        """Where CPython would go on."""
        return self.info.instructions[self.index].offset

    @property
    def running(self) -> Instruction:
        """For a frame that waits for a callee: the call."""
        return self.info.instructions[self.index - 1]

    def jump(self, offset: int) -> None:
        self.index = self.info.index_at[offset]

    def clear_dead(self) -> None:
        """Forget locals that nothing will read again."""
        for slot in range(len(self.slots)):
            if not self.info.is_live(self.index, slot):
                self.slots[slot] = _native.NULL


StateKey = tuple[tuple[Any, int, int, bool, bool], ...]


def key_of(frames: list[LiveFrame]) -> StateKey:
    """What entries of resumed states are filed under."""
    return tuple(
        (frame.info.code, frame.index, len(frame.stack), frame.discard, frame.handled is not None) for frame in frames
    )


def handled_in(frames: list[LiveFrame]) -> BaseException | None:
    """The exception being handled in a state; None if it is for the frames around it to say."""
    for frame in reversed(frames):
        if frame.handled is not None:
            return frame.handled
    return None


def flat(frames: list[LiveFrame]) -> list[Any]:
    """All objects of a state in the order guard slots count them: slots, stack, function, exception, by frame."""
    values: list[Any] = []
    for frame in frames:
        values += frame.slots
        values += frame.stack
        values.append(frame.function)
        if frame.handled is not None:
            values.append(frame.handled)
    return values
