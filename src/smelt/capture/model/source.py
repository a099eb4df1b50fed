"""Where a value came from, and what was assumed of it: the guard tree, grown while capture reads.

A `Source` is one way to reach one object from the frame's slots (or from a fixed object). Capture asks it for
children (`source.attribute("weight")`) and writes down what it relied on (`source.check(("type", Linear))`); reading
the same thing twice meets the same node, so nothing is checked twice.

    slot 0 → attr "lin" → attr "weight"      self.lin.weight: tensor f32[4, 4], collected as an input
"""

import threading
from typing import TYPE_CHECKING, Any

import torch

from smelt.capture.model.static import is_heap_type

if TYPE_CHECKING:
    from smelt._native import GuardNode

Accessor = tuple[Any, ...]
Check = tuple[Any, ...]


class Source:
    """One node of the guard tree. `value` remembers what was made of the object, so that it is made once."""

    __slots__ = ("accessor", "checks", "children", "collected", "index", "parent", "text", "value")

    def __init__(self, parent: "Source | None", accessor: Accessor, text: str) -> None:
        self.parent = parent
        self.accessor = accessor
        self.text = text
        self.checks: dict[Any, Check] = {}
        self.children: dict[Any, Source] = {}
        self.collected = False
        self.index = -1
        self.value: Any = None  # a `Value`; sources know nothing of values

    def child(self, accessor: Accessor, text: str) -> "Source":
        key = identity_of(accessor)
        child = self.children.get(key)
        if child is None:
            child = self.children[key] = Source(self, accessor, text)
        return child

    @property
    def place(self) -> str:
        """The text, and in front of it whose it is: two functions may both call something `x`."""
        root = self
        while root.parent is not None:
            root = root.parent
        return f"{root.accessor[1]}:{self.text}" if root.accessor[0] == "slot" else self.text

    def attribute(self, name: str) -> "Source":
        return self.child(("attr", name), f"{self.text}.{name}")

    def instance_dict(self) -> "Source":
        return self.child(("dict",), f"{self.text}.__dict__")

    def dict_of(self, real: object) -> "Source":
        """The `__dict__` of an object that is found here; a `threading.local` has one for each thread."""
        return self.attribute("__dict__") if issubclass(type(real), threading.local) else self.instance_dict()

    def member(self, name: str) -> "Source":
        """An entry of the instance `__dict__`, shown as the attribute it is."""
        return self.instance_dict().key(name)

    def key(self, key: object) -> "Source":
        if self.accessor == ("dict",) and type(key) is str and self.parent is not None:
            return self.child(("key", key), f"{self.parent.text}.{key}")  # an attribute, however it is read
        return self.child(("key", key), f"{self.text}[{key_text(key)}]")

    def item(self, index: int) -> "Source":
        return self.child(("item", index), f"{self.text}[{index}]")

    def check(self, check: Check) -> None:
        self.checks.setdefault(identity_of(check), check)

    def collect(self) -> "Source":
        self.collected = True
        return self

    def build(self, collected: list["Source"]) -> "GuardNode | None":
        """This node and its descendants as plain tuples, or None if nothing here is checked or collected.

        Not by recursion: a linked list is as deep as it is long.
        """
        order: list[Source] = []
        pending = [self]
        while pending:
            source = pending.pop()
            order.append(source)
            pending.extend(reversed(source.children.values()))
            if source.collected:
                source.index = len(collected)
                collected.append(source)
        built: dict[Source, GuardNode | None] = {}
        for source in reversed(order):  # children first
            children = [node for child in source.children.values() if (node := built.pop(child)) is not None]
            checked = children or source.checks or source.collected
            parts = (source.accessor, tuple(source.checks.values()), tuple(children), source.collected, source.text)
            built[source] = parts if checked else None
        return built[self]


def predicate(holds: Any, text: str) -> Check:
    """The check that a function of the object returns true. `text`: as it reads where a recompile is explained."""
    holds.__qualname__ = text
    return ("predicate", holds)


def identity_of(parts: tuple[Any, ...]) -> Any:
    """A dict key for an accessor or check: objects by identity, so that `1`, `1.0` and `True` stay apart."""
    if len(parts) == 2 and type(parts[1]) is str:
        return parts  # most are names
    return tuple(
        [part if type(part) is str else (type(part), part) if type(part) in (int, bool) else id(part) for part in parts]
    )


def plain_text(value: object) -> str:
    """A value as Python words it, unless its words are the program's: those may do anything, or fail."""
    if is_heap_type(type(value)):
        return f"<{type(value).__name__}>"
    try:
        return repr(value)
    except Exception:  # of what a container holds
        return f"<{type(value).__name__}>"


def key_text(key: object) -> str:
    """A key as people are shown it: not with all the elements of a tensor, as an optimizer's state has for keys."""
    if isinstance(key, torch.Tensor):
        return f"<{type(key).__name__} of shape {tuple(key.shape)}>"
    text = plain_text(key)
    return text if len(text) <= 80 and "\n" not in text else f"<{type(key).__name__}>"
