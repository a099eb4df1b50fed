"""The frames that a capture starts from: as frames of values to interpret, and as a way back to the state.

LiveFrame(f, slots [x])   →   Frame(f, slots [LazyItem(x, source "x")])
"""

import inspect
from types import CodeType
from typing import Any

from smelt import _native
from smelt.capture.guards.tree import GuardTree
from smelt.capture.interpreter.externals import Externals
from smelt.capture.interpreter.interpreter import Frame
from smelt.capture.model.source import Source
from smelt.capture.model.state import LiveFrame
from smelt.capture.model.values import NULL, Cell, Globals, LazyItem, Mapping, Object, Value
from smelt.capture.replay.plan import EntryState, FrameRecipe


class EntryFrames:
    """The frames of one state, outermost first; their contents have consecutive slots of the guards."""

    def __init__(self, tree: GuardTree, frames: list[LiveFrame]) -> None:
        self._tree, self._frames = tree, frames

    def virtual(self, externals: Externals) -> list[Frame]:
        """Frames of values."""
        return [_virtual(externals, frame, base) for frame, base in self._with_bases()]

    def collect(self) -> None:
        """Let guards hand out what the state consists of."""
        for _, function, slots, stack, handled in self._slots():
            for source in (function, *slots, *stack, handled):
                if source is not None:
                    source.collect()

    def state(self, null: int, computed: tuple[Any, ...]) -> EntryState:
        """The way back to the state; `null` is the place of what is unbound among the collected."""
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
            for frame, function, slots, stack, handled in self._slots()
        )
        relations = tuple((one.index, other.index, same) for one, other, same in self._tree.relations)
        return EntryState(relations, computed, frames)

    def _slots(self) -> list[tuple[LiveFrame, Any, list[Any], list[Any], Any]]:
        """Per frame of the state at the start: sources of function, slots, stack and exception, None if empty."""
        sources = []
        slot = self._tree.slot
        for frame, base in self._with_bases():
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
            sources.append((frame, slot(place, frame.info.code.co_name), slots, stack, handled))
        return sources

    def _with_bases(self) -> list[tuple[LiveFrame, int]]:
        frames, base = [], 0
        for frame in self._frames:
            frames.append((frame, base))
            base += len(frame.slots) + len(frame.stack) + 1 + (frame.handled is not None)
        return frames


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
    virtual = Frame(info, function, names, closure, slots, stack, frame.index, frame.discard)
    if frame.handled is not None:
        virtual.handled = externals.value(frame.handled, tree.slot(function_slot + 1, "the exception being handled"))
    return virtual


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
        cell = externals.value(real, function.source.child(("closure", number), name))
        assert isinstance(cell, Cell)
        cells.append(cell)
    return cells
