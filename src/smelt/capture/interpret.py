"""The symbolic interpreter: runs frames of bytecode over values instead of objects, until something ends the graph.

A state (frames with slots and stacks) goes in; what ended the run comes out, with the frames as they stood just before
the instruction that could not be interpreted.

    def f(x):                     Frame(f) at 0  →  LOAD_FAST x · LOAD_CONST 1 · BINARY_OP +  →  Tensor(add)
        return x + 1              RETURN_VALUE   →  Returned(Tensor(add))
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from smelt.capture.breaks import Unsupported
from smelt.capture.bytecode import CodeInfo, Instruction
from smelt.capture.guards import GuardTree
from smelt.capture.outside import Outside
from smelt.capture.tape import Tape
from smelt.capture.values import (
    Cell,
    Constant,
    Generator,
    Globals,
    Instance,
    Iterator,
    Joined,
    Mapping,
    Object,
    Pending,
    Sequence,
    Set,
    Slice,
    Tensor,
    Value,
    describe,
    is_constant,
)

PUSHED = Value()
"""Answer of a service that pushed a frame: the result will be on the caller's stack when that frame returns."""

_MOST_INSTRUCTIONS = 400_000
_MOST_FRAMES = 100


@dataclass(slots=True, eq=False)
class Frame:
    """One virtual frame.

    `discard` drops what it returns (`__init__`: the new object is on the caller's stack already); `generator` is what
    hears of its yields.
    """

    info: CodeInfo
    function: Value
    globals: Globals
    closure: tuple[Cell, ...]
    slots: list[Value | None]
    stack: list[Value]
    index: int = 0
    discard: bool = False
    generator: Generator | None = None

    @property
    def instruction(self) -> Instruction:
        return self.info.instructions[self.index]

    def jump(self, offset: int) -> None:
        self.index = self.info.index_at[offset]


@dataclass(frozen=True, slots=True)
class Returned:
    """The outermost frame returned."""

    value: Value


@dataclass(frozen=True, slots=True)
class Broken:
    """The innermost frame's current instruction could not be interpreted."""

    stop: Unsupported


Ending = Returned | Broken
Handler = Callable[["Interpreter", Frame, Instruction], None]
CallService = Callable[["Interpreter", Value, list[Value], dict[str, Value]], Value]


class Interpreter:
    """Interprets `frames`; services (attributes, calls, operators) are functions that take it as first argument."""

    def __init__(
        self,
        frames: list[Frame],
        outside: Outside,
        handlers: dict[str, Handler],
        call: CallService,
        follow_generators: bool = True,
    ) -> None:
        self.frames = frames
        self.outside = outside
        self.tree: GuardTree = outside.tree
        self.tape: Tape = outside.tape
        self._handlers = handlers
        self._call = call
        self._undo: list[Callable[[], None]] = []
        self._steps = 0
        self._returned: Value | None = None
        self.yielded: Value | None = None
        self.follow_generators = follow_generators
        self.made_generators = False

    def run(self) -> Ending:
        """Interpret until the outermost frame returns or an instruction cannot be interpreted."""
        while True:
            frame = self.frames[-1]
            depth, index, stack = len(self.frames), frame.index, frame.stack.copy()
            slots = frame.slots.copy()
            self._undo.clear()
            self.tape.begin()
            try:
                self._one(frame)
            except Unsupported as stop:
                del self.frames[depth:]
                frame.index, frame.stack, frame.slots = index, stack, slots
                for undo in reversed(self._undo):
                    undo()
                self.tape.take_back()
                return Broken(stop)
            if self._returned is not None:
                return Returned(self._returned)

    def _one(self, frame: Frame) -> None:
        instruction = frame.instruction
        self._steps += 1
        if self._steps > _MOST_INSTRUCTIONS:
            raise Unsupported("B016", f"more than {_MOST_INSTRUCTIONS} instructions")
        frame.index += 1
        handler = self._handlers.get(instruction.name)
        if handler is None:
            raise Unsupported("B012", instruction.name)
        self.tape.line = instruction.line
        handler(self, frame, instruction)

    def call(self, function: Value, args: list[Value], kwargs: dict[str, Value] | None = None) -> Value:
        """Call a value; `PUSHED` if a frame was pushed to do it."""
        return self._call(self, function, args, kwargs or {})

    def enter(self, frame: Frame) -> Value:
        """Push a frame to interpret; its result will be on the current frame's stack."""
        if len(self.frames) > _MOST_FRAMES:
            raise Unsupported("B016", f"more than {_MOST_FRAMES} nested calls")
        self.frames.append(frame)
        return PUSHED

    def leave(self, value: Value) -> None:
        """The innermost frame returns `value`."""
        frame = self.frames.pop()
        if frame.generator is not None:
            frame.generator.done = True
            return
        if not self.frames:
            self.frames.append(frame)
            self._returned = value
        elif not frame.discard:
            self.frames[-1].stack.append(value)

    def now(self, answer: Value) -> Value:
        """The answer of a service, run to its end if it pushed a frame. A break inside is a break of the caller."""
        if answer is not PUSHED:
            return answer
        depth = len(self.frames) - 1
        while len(self.frames) > depth:
            self._one(self.frames[-1])
        return self.frames[-1].stack.pop()

    def step_to_yield(self, frame: Frame) -> Value | None:
        """Run a generator's frame to its next yield: the value, or None if it returned instead."""
        depth = len(self.frames)
        self.yielded = None
        self.frames.append(frame)
        while len(self.frames) > depth:
            self._one(self.frames[-1])
        return self.yielded

    def touch(self, value: Any) -> None:
        """Before changing a container: remember how to undo it, and for one from outside that it is to be written."""
        if value.source is not None:
            self.outside.write(value, self._undo)
        if isinstance(value, Generator):
            frame, done = value.frame, value.done
            index, slots, stack = frame.index, frame.slots.copy(), frame.stack.copy()

            def restore() -> None:
                value.done, frame.index, frame.slots, frame.stack = done, index, slots, stack

            self._undo.append(restore)
        elif isinstance(value, Instance):
            self.touch(value.members)
        elif isinstance(value, Cell):
            contents = value.contents
            self._undo.append(lambda: setattr(value, "contents", contents))
        elif isinstance(value, Iterator | Joined):
            position = value.position
            self._undo.append(lambda: setattr(value, "position", position))
        elif isinstance(value, Sequence):
            unseen = value.unseen.copy()
            self._undo.append(lambda: setattr(value, "unseen", unseen))
        else:
            items = value.items.copy()
            self._undo.append(lambda: setattr(value, "items", items))

    def plain(self, value: Any) -> Any:
        """The real Python value behind `value`; `Unsupported` if a tensor or an opaque object is part of it."""
        if isinstance(value, Pending):
            value = self.outside.force(value)
        if isinstance(value, Constant):
            return value.value
        if isinstance(value, Sequence):
            return make_sequence(value.kind, [self.plain(item) for item in value.items])
        if isinstance(value, Mapping):
            self.outside.complete(value)
            return {key: self.plain(item) for key, item in value.items.items()}
        if isinstance(value, Set):
            return value.kind(value.items)
        if isinstance(value, Slice):
            return slice(self.plain(value.start), self.plain(value.stop), self.plain(value.step))
        if isinstance(value, Object) and isinstance(value.value, type):
            return self.outside.pin(value)
        raise Unsupported("B017", describe(value))

    def is_plain(self, value: Any) -> bool:
        """Whether `plain` would succeed, without guarding anything new."""
        if isinstance(value, Pending):
            return is_constant(value.value)
        if isinstance(value, Sequence):
            return all(self.is_plain(item) for item in value.items)
        if isinstance(value, Mapping):
            return all(self.is_plain(item) for item in value.items.values())
        if isinstance(value, Slice):
            return all(self.is_plain(part) for part in (value.start, value.stop, value.step))
        return isinstance(value, Constant | Set) or (isinstance(value, Object) and isinstance(value.value, type))

    def wrap_plain(self, real: Any) -> Value:
        """A value for a Python object that capture computed from plain values."""
        if is_constant(real):
            return Constant(real)
        if isinstance(real, tuple | list):
            return Sequence(type(real), [self.wrap_plain(item) for item in real])
        if type(real) is dict:
            return Mapping({key: self.wrap_plain(item) for key, item in real.items()})
        if type(real) in (set, frozenset) and all(is_constant(item) for item in real):
            return Set(set(real), type(real))
        if type(real) is slice:
            return Slice(self.wrap_plain(real.start), self.wrap_plain(real.stop), self.wrap_plain(real.step))
        raise Unsupported("B017", f"a {type(real).__qualname__}")

    def compute(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Value:
        """Run a pure Python function on plain values; if it raises, Python shall raise it from the user's line."""
        try:
            result = function(*args, **kwargs)
        except Exception as error:
            raise Unsupported("B019", f"{type(error).__name__}: {error}") from error
        return self.wrap_plain(result)

    def tensor_call(self, opcode: str, target: Any, args: list[Value], kwargs: dict[str, Value] | None = None) -> Value:
        """One node of the graph."""
        self._force_all(args)
        self._force_all(list((kwargs or {}).values()))
        self.tape.place = self._place()
        return self.tape.call(opcode, target, tuple(args), kwargs or {})

    def _force_all(self, values: list[Any]) -> None:
        for value in values:
            if isinstance(value, Sequence):
                self._force_all(list(self.outside.items(value)))
            elif isinstance(value, Object) and isinstance(value.value, type):
                self.outside.pin(value)

    def _place(self) -> str:
        frame = self.frames[-1]
        code = frame.info.code
        return f'File "{code.co_filename}", line {self.tape.line}, in {code.co_name}'

    def has_tensor(self, value: Any) -> bool:
        """Whether a tensor is the value or inside it."""
        if isinstance(value, Sequence):
            return any(self.has_tensor(self.outside.force(item)) for item in value.items)
        if isinstance(value, Slice):
            return any(self.has_tensor(part) for part in (value.start, value.stop, value.step))
        return isinstance(value, Tensor)


def make_sequence(kind: type, items: list[Any]) -> Any:
    """A real tuple, list, namedtuple or structure sequence of `kind`."""
    make = getattr(kind, "_make", None)
    return make(items) if make is not None else kind(items)
