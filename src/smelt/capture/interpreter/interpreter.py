"""The symbolic interpreter: runs frames of bytecode over values instead of objects, until something ends the graph.

A state (frames with slots and stacks) goes in; what ended the run comes out, with the frames as they stood just before
the instruction that could not be interpreted.

    def f(x):                     Frame(f) at 0  →  LOAD_FAST x · LOAD_CONST 1 · BINARY_OP +  →  Tensor(add)
        return x + 1              RETURN_VALUE   →  Returned(Tensor(add))
"""

import builtins
import contextlib
import enum
import sys
import types
from collections import OrderedDict
from collections.abc import Callable
from collections.abc import Iterator as IteratorABC
from typing import Any

import torch

from smelt.base.events import wanted
from smelt.base.fast_dataclass import dataclass
from smelt.base.torch_originals import method
from smelt.capture.guards.tree import GuardTree
from smelt.capture.interpreter.externals import Externals
from smelt.capture.model.breaks import Raised, Unsupported
from smelt.capture.model.bytecode import VERSION, CodeInfo, Instruction
from smelt.capture.model.policy import is_of_libraries, is_polyfill
from smelt.capture.model.set_order import Call, Items, remade
from smelt.capture.model.static import is_a
from smelt.capture.model.values import (
    HANDLED_OUTSIDE,
    ByIdentity,
    Cell,
    Constant,
    DeferredScalar,
    Deque,
    Distributed,
    ExceptionValue,
    Function,
    Generator,
    Globals,
    Hooked,
    Instance,
    Iterator,
    LazyItem,
    Mapping,
    Method,
    Object,
    Sequence,
    Set,
    Slice,
    Tensor,
    Value,
    Wrapper,
    ZippedIterator,
    describe,
    has_any,
    is_constant,
    own_operators,
    python_type,
    stands_for_key,
)
from smelt.capture.tape.distributed import call_distributed
from smelt.capture.tape.tape import Tape
from smelt.device.host_library import on_host
from smelt.meta.recurrent_layers import BY_CUDNN

PUSHED = Value()
"""Answer of a service that pushed a frame: the result will be on the caller's stack when that frame returns."""

TYPES = (type, types.GenericAlias, types.UnionType)
"""Classes and what is written with them: `list[int]`, `int | None`."""


def is_plain_type(value: object) -> bool:
    """Whether Python's operators on a class run no code of the program: its metaclass may define them."""
    if not issubclass(type(value), TYPES):
        return False
    return not issubclass(type(value), type) or type(value) is type or not own_operators(type(value))


def is_annotation(value: object) -> bool:
    """Whether an object says what type something has, and nothing else: `Optional[int]`, `TypeVar("T")`."""
    return type(value).__module__ == "typing" and type(value).__qualname__ in _ANNOTATIONS


_ANNOTATIONS = frozenset({"TypeVar", "ParamSpec", "_GenericAlias", "_UnionGenericAlias", "_SpecialForm"})

SIMPLE_ERRORS: frozenset[type] = frozenset(
    kind
    for kind in vars(builtins).values()
    if isinstance(kind, type)
    and issubclass(kind, BaseException)
    and not issubclass(kind, ImportError | SyntaxError | UnicodeError | BaseExceptionGroup)
)
"""Builtin exceptions that are made of their `args` and nothing else (but for `ExceptionValue.details`); an OSError if
those are one at most."""


def handles_nothing() -> bool:
    """Whether no exception is being handled."""
    return sys.exc_info()[1] is None


def set_by_init(kind: type, args: list[Value]) -> dict[str, Value]:
    """The attributes beside `args` that `__init__` of an exception written in C sets."""
    first = args[0] if args else Constant(None)
    if issubclass(kind, StopIteration):
        return {"value": first}
    if issubclass(kind, SystemExit):
        return {"code": first if len(args) < 2 else Sequence(tuple, list(args))}
    return {}


_WITHOUT_GENERATORS = ("exponential_", "geometric_", "log_normal_", "cauchy_")
_MAX_INSTRUCTIONS = 400_000
_MAX_FRAMES = 100


@dataclass(slots=True, eq=False)
class Frame:
    """One virtual frame.

    `discard` drops what it returns (`__init__`: the new object is on the caller's stack already); `generator` is what
    hears of its yields; `handled` is the exception it is handling, if any.
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
    handled: Value | None = None
    names: Mapping | None = None  # of a class body

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
        externals: Externals,
        handlers: dict[str, Handler],
        call: CallService,
        generators: int = sys.maxsize,
    ) -> None:
        self.frames = frames
        self.externals = externals
        self.tree: GuardTree = externals.tree
        self.tape: Tape = externals.tape
        self._handlers = handlers
        self._call = call
        self._undo: list[Callable[[], None]] = []
        self._changes = 0
        self._steps = 0
        self.worded: list[Value] = []  # the containers whose `repr` is being made
        self._returned: Value | None = None
        self.yielded: Value | None = None
        self.generators = generators  # so many are followed, and none of those made after them
        self.leaves_droppable = False  # whether dropping one that is not followed may do something
        self.made_generators: list[Generator] = []
        self.hooked: dict[int, Hooked] = {}  # tensors of the graph that have hooks, by the ids of their values
        self.key_objects: dict[int, tuple[Any, Value]] = {}  # the tuples and frozensets among keys, by their ids
        self.key_answers: dict[Any, tuple[Any, Callable[[], bool]]] = {}  # see `keys_hold`
        self.entered_inference = False
        self.handles_nothing = handles_nothing()  # the program, where it begins
        self.prepare_operands: Callable[[Interpreter, Any, list[Value]], list[Value]] | None = None
        self.wrapper_call: Callable[..., Value] | None = None  # of PyTorch, with wrappers of tensors made here
        self.is_asking_classes = True  # of tensors for functions of PyTorch, as the code around the captured one has it
        self.asks_classes: bool | None = None  # the same in a `__torch_function__` that is followed
        self.wrapper_attribute: Callable[..., Value] | None = None
        self.array_call: Callable[[Interpreter, Any, list[Value]], Value] | None = None  # operators of NumPy's arrays
        self.indexes_by_tensors = False  # whether `x[i]` by a tensor without dimensions is an operator, as under vmap
        self.number_of: Callable[[Interpreter, Value], Value] = lambda interp, value: value  # of NumPy's scalars
        self.tell: Callable[[Interpreter, Any], Any] | None = None  # a number that was only kept so far, if it can be

    def run(self) -> Ending:
        """Interpret until the outermost frame returns or an instruction cannot be interpreted."""
        frames, begin = self.frames, self.tape.begin
        while self._returned is None:
            frame = frames[-1]
            depth, index, stack = len(frames), frame.index, frame.stack.copy()
            slots, handled = frame.slots.copy(), frame.handled
            self._undo.clear()
            begin()
            try:
                self._guarded(0)
            except Unsupported as stop:
                del frames[depth:]
                frame.index, frame.stack, frame.slots, frame.handled = index, stack, slots, handled
                for undo in reversed(self._undo):
                    undo()
                self.tape.rollback_to()
                self._undo.clear()
                return Broken(stop.bare())
        self._undo.clear()
        return Returned(self._returned)

    def _guarded(self, depth: int) -> None:
        """One instruction of the innermost frame; what it raises goes to a handler in the frames from `depth` on."""
        frame = self.frames[-1]
        instruction = frame.info.instructions[frame.index]
        handler = self._handlers.get(instruction.name)
        if handler is None:
            raise Unsupported("B012", instruction.name)
        self._steps += 1
        if self._steps > _MAX_INSTRUCTIONS:
            raise Unsupported("B016", f"more than {_MAX_INSTRUCTIONS} instructions")
        frame.index += 1
        self.tape.line = instruction.line
        try:
            handler(self, frame, instruction)
            if self.tape.effects.raises_late:
                self._refuse_late_errors(self.tape.effects.raises_late)
        except Raised as raised:
            if raised.handled is None:
                raised.handled = self.handled()
            level = self._handling_level(depth)
            if level >= 0:
                self._catch(raised, level)
                raised.bare()
                return
            if depth > 0:
                self._leave_by(raised, depth)
            raise

    def _refuse_late_errors(self, what: str) -> None:
        """End the graph before what may raise after a collective has started, where the program would notice that
        Python cannot run the graph again up to there: it handles the error, or has changed something before."""
        if any(map(handles_errors, self.frames)):
            raise Unsupported("B027", f"{what} inside a try or with block of the program, and a collective,")
        if what == "a collective" or self.externals.fullgraph:
            return  # whoever loses a peer does not go on
        if self.externals.has_pending_writes() or self.externals.deferred_calls or self.tape.memory.writes_inputs:
            raise Unsupported("B027", f"{what} that may raise, a collective and a write before it")

    def handled(self) -> Value:
        """The exception being handled now."""
        for frame in reversed(self.frames):
            if frame.handled is not None:
                return frame.handled
        return HANDLED_OUTSIDE

    def handled_here(self) -> Value:
        """The exception being handled in the innermost frame's own right: a generator begins with none."""
        for frame in reversed(self.frames):
            if frame.handled is not None:
                return frame.handled
            if frame.generator is not None:
                return Constant(None)
        return HANDLED_OUTSIDE

    def _handling_level(self, depth: int) -> int:
        for level in range(len(self.frames) - 1, depth - 1, -1):
            frame = self.frames[level]
            if frame.info.handler_of(frame.info.instructions[frame.index - 1]) is not None:
                return level
        return -1

    def _leave_by(self, raised: Raised, depth: int) -> None:
        """An exception leaves all frames from `depth` on."""
        while len(self.frames) > depth:
            self._note_place(raised)
            frame = self.frames.pop()
            if frame.generator is not None:
                frame.generator.done = True

    def _note_place(self, raised: Raised) -> None:
        frame = self.frames[-1]
        if not raised.reraised and not is_polyfill(frame.info.code):
            raised.places.append((frame.function, frame.info, frame.info.instructions[frame.index - 1]))
        raised.reraised = False

    def _catch(self, raised: Raised, level: int) -> None:
        """Stand at the handler of frame `level`, as CPython would."""
        if isinstance(raised.error, Object) and not (raised.reraised and level == len(self.frames) - 1):
            raise Unsupported("B019", raised.detail)  # its traceback grows on the way
        self.failure(raised)
        self._leave_by(raised, level + 1)
        self._note_place(raised)
        error = self._as_value(raised)
        frame = self.frames[level]
        instruction = frame.info.instructions[frame.index - 1]
        handler = frame.info.handler_of(instruction)
        assert handler is not None
        del frame.stack[handler.depth :]
        if handler.push_offset:
            frame.stack.append(Constant(instruction.offset // 2))
        frame.stack.append(error)
        frame.jump(handler.target)

    def _as_value(self, raised: Raised) -> Value:
        """The exception as its handler sees it: with its traceback, cause and context."""
        error = self.failure(raised)
        if not isinstance(error, ExceptionValue):
            return error
        self.before_mutation(error)
        error.places = (*reversed(raised.places), *error.places)
        if raised.cause is not None:
            error.cause, error.suppresses = raised.cause, True
        if not raised.chained and raised.handled is not error:
            if raised.handled is not HANDLED_OUTSIDE or error.context is None:
                error.context = raised.handled
            self._cut_cycle(error)
        return error

    def _cut_cycle(self, error: ExceptionValue) -> None:
        link, seen = error.context, set[int]()  # the program may have made a circle of its own
        while isinstance(link, ExceptionValue) and id(link) not in seen:
            if link.context is error:
                self.before_mutation(link)
                link.context = None
                return
            seen.add(id(link))
            link = link.context

    def failure(self, raised: Raised) -> Value:
        """The value of the exception that is raised, made now if there is none yet."""
        if isinstance(raised.error, BaseException):
            kind = type(raised.error)
            if kind not in SIMPLE_ERRORS or (issubclass(kind, OSError) and len(raised.error.args) > 1):
                raise Unsupported("B019", raised.detail)
            if raised.named_class is not None:
                self.tree.class_name(raised.named_class)
            args = Sequence(tuple, [self.wrap_plain(item) for item in raised.error.args])
            details = raised.details or set_by_init(kind, args.items)
            raised.error = ExceptionValue(kind, args=args, details=details)
        error: Value = raised.error
        return error

    def call(self, function: Value, args: list[Value], kwargs: dict[str, Value] | None = None) -> Value:
        """Call a value; `PUSHED` if a frame was pushed to do it."""
        return self._call(self, function, args, kwargs or {})

    def enter(self, frame: Frame) -> Value:
        """Push a frame to interpret; its result will be on the current frame's stack."""
        if len(self.frames) > _MAX_FRAMES:
            raise Unsupported("B016", f"more than {_MAX_FRAMES} nested calls")
        self.frames.append(frame)
        return PUSHED

    def push_init(
        self, instance: Instance, init: types.FunctionType, args: list[Value], kwargs: dict[str, Value]
    ) -> Value:
        """Push the `__init__` of a new object, which will be on the current frame's stack when that returns."""
        depth = len(self.frames)
        self.call(self.externals.fixed(init), [instance, *args], kwargs)
        if len(self.frames) != depth + 1:
            raise Unsupported("B002", f"class {instance.kind.__qualname__}")
        self.frames[-1].discard = True
        self.frames[-2].stack.append(instance)
        return PUSHED

    def leave(self, value: Value) -> None:
        """The innermost frame returns `value`."""
        frame = self.frames.pop()
        if frame.generator is not None:
            frame.generator.done = True
            frame.generator.result = value
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
            self._guarded(depth)
        return self.frames[-1].stack.pop()

    def step_to_yield(self, frame: Frame, thrown: Raised | None = None) -> Value | None:
        """Run a generator's frame to its next yield: the value, or None if it returned instead.

        `thrown` is raised in it first, where it stands.
        """
        depth = len(self.frames)
        self.yielded = None
        self.frames.append(frame)
        try:
            if thrown is not None:
                self._throw_in(thrown, depth)
            while len(self.frames) > depth:
                self._guarded(depth)
        except Raised as raised:
            if VERSION < (3, 12) and self.failure_kind(raised) is StopIteration:
                raise self.stopped_early(raised) from None  # from 3.12 the generator's own bytecode does this
            raise
        item, self.yielded = self.yielded, None  # the generator that asked for it may return before it yields
        return item

    def _throw_in(self, thrown: Raised, depth: int) -> None:
        thrown.handled = self.handled_here()
        thrown.chained = isinstance(thrown.handled, Constant)  # a generator that handles nothing adds no context
        if self._handling_level(depth) < 0:
            self._leave_by(thrown, depth)
            raise thrown
        self._catch(thrown, depth)

    def failure_kind(self, raised: Raised) -> type:
        """The class of the exception."""
        kind = type(raised.error) if isinstance(raised.error, BaseException) else python_type(raised.error)
        assert kind is not None
        return kind

    def passed_on(self, raised: Raised) -> Raised:
        """What one generator raised, to be raised in another."""
        return Raised(self._as_value(raised), raised.detail)

    def stopped_early(self, raised: Raised) -> Raised:
        """StopIteration may not leave a generator: what Python raises instead."""
        inner = self._as_value(raised)
        outer = Raised.of(RuntimeError("generator raised StopIteration"))
        outer.handled = outer.cause = inner
        return outer

    def has_no_side_effects(self, action: Callable[[], object]) -> bool:
        """Whether an action does nothing that anybody could see; whatever it did is undone."""
        self._undo.clear()
        self._changes = 0
        self.tape.begin()
        try:
            action()
        except Unsupported:
            return False
        finally:
            traced = self.tape.grew
            for undo in reversed(self._undo):
                undo()
            self._undo.clear()
            self.tape.rollback_to()
        return not traced and not self._changes

    @contextlib.contextmanager
    def refusing_changes(self, what: str) -> IteratorABC[None]:
        """Inside, code is followed that Python runs again when it builds the real object: it may change nothing."""
        before, nodes = self._changes, len(self.tape.graph.nodes)
        yield
        if self._changes != before or len(self.tape.graph.nodes) != nodes:
            raise Unsupported("B017", f"{what}, which changes something,")

    def before_append(self, value: Sequence | Deque, *, is_display: bool = False) -> None:
        """`before_mutation`, for items added at the end of a list: undone by cutting it there. A copy of the list for
        each would make a loop that appends to it take quadratic time."""
        if isinstance(value, Deque) and value.maxlen is not None:
            self.before_mutation(value)  # whose first items may be dropped, too
            return
        self._note_write(value, is_display)
        size, changes = len(value.raw_items), value.changes if isinstance(value, Deque) else 0

        def cut() -> None:
            del value.raw_items[size:]
            if isinstance(value, Deque):
                value.changes = changes

        self._undo.append(cut)

    def before_pop(self, value: Sequence | Mapping) -> None:
        """`before_mutation`, for the last item of a list or dict being removed."""
        self._note_write(value)
        if isinstance(value, Sequence):
            last = value.raw_items[-1]
            self._undo.append(lambda: value.raw_items.append(last))
            return
        key = next(reversed(value.items))
        item = value.items[key]
        self._undo.append(lambda: value.items.update({key: item}))
        self._count_removal(value)

    def before_removal(self, value: Mapping) -> None:
        """`before_mutation`, for keys of a dict being removed or moved: who iterates over it must not go on."""
        self.before_mutation(value)
        self._count_removal(value)

    def _count_removal(self, value: Mapping) -> None:
        self.put_back_later(value, "removals")
        value.removals += 1

    def before_setitem(self, value: Sequence | Mapping, key: Any) -> None:
        """`before_mutation`, for one item of a list or dict being replaced, or added to a dict as its last."""
        if isinstance(value, Mapping):
            self.externals.refuse_unknown_key(value, key)
        self._note_write(value)
        items: Any = value.raw_items if isinstance(value, Sequence) else value.items
        if isinstance(value, Mapping) and key not in items:
            self._undo.append(lambda: value.items.pop(key, None))
            return
        before = items[key]

        def put_back() -> None:
            held: Any = value.raw_items if isinstance(value, Sequence) else value.items
            held[key] = before

        self._undo.append(put_back)

    def before_set_mutation(self, value: Set) -> None:
        """`before_mutation`, of a set: the calls that made it can be replayed."""
        self._note_write(value)
        calls, ordered = value.calls, value.ordered
        self._undo.append(lambda: value.restore(calls, ordered))

    def _note_write(self, value: Any, is_display: bool = False) -> None:
        """What is about to be changed is to be written, if it is from outside. `is_display`: it is the list or dict of
        an expression or call (`[*items]`, `f(**names)`) that nobody has seen yet."""
        seen = not is_display and not isinstance(getattr(value, "owner", None) or value, Generator | ExceptionValue)
        self._changes += seen
        if value.source is not None:
            self.externals.write(value, self._undo)
        elif self.externals.no_side_effects:
            self.externals.mutated.append(value)

    def before_mutation(self, value: Any, *, is_display: bool = False) -> None:
        """Before changing a container: remember how to undo it, and for one from outside that it is to be written."""
        self._note_write(value, is_display)
        if isinstance(value, Generator):
            frame = value.frame
            self.put_back_later(value, "done")
            self.put_back_later(frame, "index", "handled", slots=frame.slots.copy(), stack=frame.stack.copy())
        elif isinstance(value, ExceptionValue):
            self.put_back_later(value, "args", "cause", "context", "suppresses", "places", "details")
            self.before_mutation(value.members)
        elif isinstance(value, Instance):
            self.before_mutation(value.members)
        elif isinstance(value, Function):
            self.put_back_later(value, overrides=value.overrides.copy())
        elif isinstance(value, Cell):
            if value.frozen:
                raise Unsupported("B005", "a variable that a hook uses")
            self.put_back_later(value, "contents")
        elif isinstance(value, Iterator):
            self.put_back_later(value, "position", "size", "done")
        elif isinstance(value, ZippedIterator):
            self.put_back_later(value, "position")
        elif isinstance(value, Deque):
            self.put_back_later(value, "changes", raw_items=value.raw_items.copy())
        elif isinstance(value, Sequence):
            self.put_back_later(value, raw_items=value.raw_items.copy())
        else:
            self.put_back_later(value, items=value.items.copy())

    def put_back_later(self, target: Any, *names: str, **parts: Any) -> None:
        """Should the instruction that is being interpreted end the graph, undo changes of an object's attributes: those
        named are what they are now, and `parts` what they are here."""
        for name in names:
            parts[name] = getattr(target, name)

        def put_back() -> None:
            for name, part in parts.items():
                setattr(target, name, part)

        self._undo.append(put_back)

    def replace_tensor(self, value: Tensor, other: Tensor) -> None:
        """From now on a tensor is what another is: whoever holds it, holds that."""
        before = self.tape.replace(value, other)
        self._undo.append(lambda: self.tape.put_back(value, before))

    def plain(self, value: Any, in_order: bool = True) -> Any:
        """The real Python value behind `value`; `Unsupported` if a tensor or an opaque object is part of it.

        Not `in_order`: what is asked of it does not depend on the order in which sets yield their items.
        """
        if isinstance(value, LazyItem):
            value = self.externals.force(value)
        if isinstance(value, Constant):
            if is_a(value.value, enum.Enum):
                self.externals.rely_on_contents(value.value)
            return value.value
        if isinstance(value, Sequence):
            return make_sequence(value.kind, [self.plain(item, in_order) for item in value.items])
        if isinstance(value, Mapping):
            if value.kind not in (dict, OrderedDict):
                raise Unsupported("B017", describe(value))
            self.externals.complete(value)
            if any(map(stands_for_key, value.items)):
                raise Unsupported("B017", describe(value))
            items = {key: self.plain(item, in_order) for key, item in value.items.items()}
            return items if value.kind is dict else OrderedDict(items)
        if isinstance(value, Set) and self.is_plain(value):
            if not in_order:
                return value.kind(value.items)
            self.tree.rely_on_order(value.items)
            if not value.ordered and len(value.items) > 1:
                raise Unsupported("B009", describe(value))
            return remade(value.calls)
        if isinstance(value, Slice):
            return slice(*[self.plain(part, in_order) for part in (value.start, value.stop, value.step)])
        if isinstance(value, Object) and is_plain_type(value.value):
            self.externals.rely_on_contents(value.value)
            return self.externals.guard_identity(value)
        if isinstance(value, Object) and is_annotation(value.value):
            return self.externals.guard_identity(value)
        known = value if self.tell is None else self.tell(self, value)
        if known is not value:
            return self.plain(known, in_order)
        raise Unsupported("B004" if isinstance(value, DeferredScalar) else "B017", describe(value))

    def is_plain(self, value: Any, inside: tuple[Value, ...] = ()) -> bool:
        """Whether `plain` would succeed, without guarding anything new. `inside`: the containers that it is part of."""
        if any(value is each for each in inside):
            return False
        if isinstance(value, LazyItem):
            return is_constant(value.value)
        if isinstance(value, Sequence):
            inside = (*inside, value)
            return not own_operators(value.kind) and all(self.is_plain(item, inside) for item in value.items)
        if isinstance(value, Mapping):
            plain = value.kind in (dict, OrderedDict) and not any(map(stands_for_key, value.items))
            inside = (*inside, value)
            return plain and all(self.is_plain(item, inside) for item in value.items.values())
        if isinstance(value, Slice):
            return all(self.is_plain(part) for part in (value.start, value.stop, value.step))
        if isinstance(value, Set):
            return not any(isinstance(item, ByIdentity) for item in value.items)
        return isinstance(value, Constant) or (isinstance(value, Object) and is_plain_type(value.value))

    def wrap_plain(self, real: Any) -> Value:
        """A value for a Python object that capture computed from plain values."""
        if is_constant(real):
            return Constant(real)
        if is_a(real, tuple | list):
            return Sequence(type(real), [self.wrap_plain(item) for item in real])
        if type(real) in (dict, OrderedDict):
            return Mapping({key: self.wrap_plain(item) for key, item in real.items()}, type(real))
        if type(real) in (set, frozenset) and all(is_constant(item) for item in real):
            return Set(set(real), type(real), Call(type(real).__name__, (Items("tuple", tuple(real)),)))
        if type(real) is slice:
            return Slice(self.wrap_plain(real.start), self.wrap_plain(real.stop), self.wrap_plain(real.step))
        if is_a(real, TYPES) or is_annotation(real):
            return self.externals.fixed(real)
        raise Unsupported("B017", f"a {type(real).__qualname__}")

    def compute(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Value:
        """Run a pure Python function on plain values; if it raises, Python shall raise it from the user's line."""
        try:
            result = function(*args, **kwargs)
        except Exception as error:
            raise Raised.of(error) from error
        return self.wrap_plain(result)

    def tensor_call(self, opcode: str, target: Any, args: list[Value], kwargs: dict[str, Value] | None = None) -> Value:
        """One node of the graph."""
        if self.prepare_operands is not None:
            args = self.prepare_operands(self, target, args)
            keyword_values = list((kwargs or {}).values())
            kwargs = dict(zip(kwargs or {}, self.prepare_operands(self, None, keyword_values), strict=True))
        args = [self.number_of(self, value) for value in args]
        kwargs = {name: self.number_of(self, value) for name, value in (kwargs or {}).items()}
        self._force_all(args)
        self._force_all(list((kwargs or {}).values()))
        self.tape.place = self._place()
        self.tape.callers = self._callers() if wanted("graph") else ()
        if self.wrapper_call is not None and has_any(Wrapper, (*args, *kwargs.values())):
            return self.wrapper_call(self, method(target) if opcode == "call_method" else target, args, kwargs)
        if has_any(Distributed, (*args, *kwargs.values())):
            function = method(target) if opcode == "call_method" else target
            result = call_distributed(self.tape, function, tuple(args), kwargs or {})
            return self.externals.fixed(result.value) if isinstance(result, Object) else result
        if target in BY_CUDNN and any(isinstance(each, Tensor) and not on_host(each.fake.device) for each in args):
            self.tree.process("cuDNN", torch._C._get_cudnn_enabled, torch._C._get_cudnn_enabled())
        named = {name: self._with_graph_generator(target, value) for name, value in (kwargs or {}).items()}
        return self.tape.call(opcode, target, tuple(self._with_graph_generator(target, value) for value in args), named)

    def rely_on_asked_classes(self, kind: type) -> None:
        """A class of tensors is asked for a function of PyTorch, which the code around the captured one may forbid."""
        if not self.is_asking_classes:
            raise Unsupported("B006", f"{kind.__qualname__}, which is not asked for functions here,")
        self.tree.process("classes of tensors asked", torch._C._is_torch_function_enabled, True)

    def _with_graph_generator(self, target: Any, value: Value) -> Value:
        if not isinstance(value, Object) or type(value.value) is not torch.Generator:
            return value
        if target in _WITHOUT_GENERATORS:
            raise Unsupported("B017", f"a torch.Generator for {target}, which has no meta kernel with a generator")
        return self.externals.graph_generator(value)

    def _force_all(self, values: list[Any]) -> None:
        for value in values:
            if isinstance(value, Sequence):
                self._force_all(list(self.externals.items(value)))
            elif isinstance(value, Object) and is_a(value.value, type):
                self.externals.guard_identity(value)

    def _place(self) -> str:
        frame = self.frames[-1]
        code = frame.info.code
        return f'File "{code.co_filename}", line {self.tape.line}, in {code.co_name}'

    def _callers(self) -> tuple[tuple[str, int], ...]:
        """The lines that wait for what the innermost frame computes."""
        waiting = (frame for frame in self.frames[:-1] if not is_polyfill(frame.info.code))
        return tuple((each.info.code.co_filename, each.info.instructions[each.index - 1].line) for each in waiting)


# Structure sequences of which there is one, and of which no other can be made.
_ONLY = {type(each): each for each in (sys.version_info, sys.flags)}


def handles_errors(frame: Frame) -> bool:
    """Whether code of the program runs in this frame if its current instruction raises: that of an `except` or
    `finally`, or an `__exit__`. Those of PyTorch restore state that a graph restores too."""
    info = frame.info
    if is_of_libraries(info.code) or is_polyfill(info.code):
        return False
    handler = info.handler_of(info.instructions[frame.index - 1])
    while handler is not None:
        begin = info.index_at[handler.target]
        end = next(place for place, each in enumerate(info.instructions) if place >= begin and each.name == "RERAISE")
        names = {instruction.name for instruction in info.instructions[begin:end]}
        is_with = "WITH_EXCEPT_START" in names and _is_of_torch(frame.stack[handler.depth - 1])
        if not is_with and not names <= _CLEANUP:
            return True
        handler = info.handler_of(info.instructions[end])
    return False


# What stands before the RERAISE of a handler that Python adds itself, behind a comprehension or an `except` clause.
_CLEANUP = frozenset({"PUSH_EXC_INFO", "POP_EXCEPT", "POP_TOP", "SWAP", "COPY", "NOP", "LOAD_CONST", "STORE_FAST",
                      "DELETE_FAST", "STOPITERATION_ERROR"})  # fmt: skip


def _is_of_torch(leave: Value) -> bool:
    """Whether the `__exit__` of a `with` block is PyTorch's."""
    function = leave.function if isinstance(leave, Method) else leave
    return isinstance(function, Object) and str(getattr(function.value, "__module__", "")).split(".")[0] == "torch"


def make_sequence(kind: type, items: list[Any]) -> Any:
    """A real tuple, list, namedtuple or structure sequence of `kind`."""
    if kind in _ONLY:
        return _ONLY[kind]
    make = getattr(kind, "_make", None)
    return make(items) if make is not None else kind(items)
