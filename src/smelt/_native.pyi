"""The C part: the frame hook, the guard checker, and the kernel launcher."""

from collections.abc import Callable, Sequence
from types import CodeType, FrameType, FunctionType
from typing import Any

NULL: object
"""Stands for an empty stack slot or an unbound local wherever frame contents cross into Python."""

# One node of a guard tree: how to reach a value from its parent, what must hold of it, what lies below it.
#   accessor  ("slot", i) of the frame's localsplus; the slot after the last is the function object itself
#             ("attr", name) ("dict",) the instance __dict__ ("key", k) of an exact dict ("item", i) of a list or tuple
#             ("cell",) contents ("type",) ("globals",) ("builtins",) ("closure", i) of a function
#             ("value", obj) a fixed object, whatever the parent (globals of other modules, for instance)
#   checks    ("type", T) exact; ("is", obj); ("equals", v) same exact type and ==; ("length", n)
#             ("keys", tuple) a dict's keys, in order; ("lacks", key) a dict has no such key
#             ("tensor", type, dtype, device, shape, stride, requires_grad)
#             ("unbound",) an unbound local or empty cell
#             ("calls", fn, value) fn() == value, whatever the parent: grad mode, autocast, default dtype, …
#             ("predicate", fn) fn(value) is true: for what is rare enough to check in Python
#   children  more nodes;  collect: append the value to the inputs, in order;  text: the source, e.g. "self.lin.weight"
GuardNode = tuple[
    tuple[Any, ...], tuple[tuple[Any, ...], ...], "tuple[GuardNode, ...]", bool, str
]  # (accessor, checks, children, collect, text)

class Guards:
    """A guard tree compiled to C structs. `distinct`: the collected tensors must all be different objects."""

    def __init__(self, roots: tuple[GuardNode, ...], distinct: bool = False) -> None: ...
    def check(self, slots: Sequence[Any]) -> tuple[Any, ...] | None:
        """The collected values in tree order, or None if a check fails. Never raises for a failed access."""
    def explain(self, slots: Sequence[Any]) -> str | None:
        """The first check that fails, in words: source, what was expected, what was found. None if all hold."""

class Entry:
    """One compiled version of a frame: if `guards` hold, the frame's result is `run(*collected)`."""

    def __init__(self, guards: Guards, run: Callable[..., Any]) -> None: ...
    guards: Guards
    run: Callable[..., Any]
    hits: int

class Region:
    """All that was compiled for one `smelt.compile`. While `call` runs, frames of this thread are looked up here.

    `missed(function, slots)` is asked for a frame that no entry fits: it returns an `Entry` to run (and keep), or None
    to run this frame in CPython; `never(code)` makes that answer final.
    """

    def __init__(self, missed: Callable[[FunctionType, tuple[Any, ...]], Entry | None]) -> None: ...
    def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call `function` with this region active on the thread."""
    def entries(self, code: CodeType) -> list[Entry]: ...
    def add(self, code: CodeType, entry: Entry) -> None: ...
    def never(self, code: CodeType) -> None: ...
    def clear(self) -> None: ...

def active() -> Region | None:
    """The region active on this thread, if any (None while compiled code or `missed` runs)."""

def suspended(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call with no region active on this thread (`smelt.disable`, and the compiler itself)."""

def resumed(region: Region, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call with `region` active again: for user code that a graph break runs."""

def run_from(function: FunctionType, offset: int, slots: Sequence[Any], stack: Sequence[Any]) -> Any:
    """Run `function`'s code in CPython from byte `offset`, with these localsplus and stack contents (`NULL` allowed)."""

def new_frame(function: FunctionType, offset: int) -> FrameType:
    """A frame object standing at `offset`, for building tracebacks."""

def hook_installed() -> bool:
    """Whether the frame hook is in place now: only while some thread is inside `Region.call`."""

class Launcher:
    """Calls `void kernel(void **buffers, int64_t threads, void *workspace)` at `address`, without the GIL.

    `launcher(threads, *tensors)` passes each tensor's `data_ptr()`; the workspace has `fixed + per_thread * threads`
    bytes, 64-byte aligned.
    """

    def __init__(self, address: int, buffers: int, fixed: int, per_thread: int) -> None: ...
    def __call__(self, threads: int, *tensors: Any) -> None: ...
