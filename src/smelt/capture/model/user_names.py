"""Names as the user knows them: of the function a frame runs, and of the arguments that a wrapper passes on.

    wrapper(self, *args, **kwargs) around GPT2LMHeadModel.forward   →   "GPT2LMHeadModel.forward"
    args[0], kwargs['labels']                                        →   input_ids, labels

A decorator's wrapper stands for the function it wraps (`__wrapped__`), and `nn.Module.__call__` for the module's own
`forward`. Nothing of the program runs for it.
"""

import re
import types
from inspect import CO_VARARGS, CO_VARKEYWORDS
from typing import Any

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.capture.model.state import LiveFrame
from smelt.capture.model.static import mro_of, qualname_of

_MAX_WRAPPERS = 16  # wrappers around each other
_CALLS = frozenset(
    function.__code__ for function in (torch.nn.Module._wrapped_call_impl, torch.nn.Module._call_impl)
)  # every module is called through them


@dataclass(frozen=True, slots=True)
class UserNames:
    """What the user calls a function, and the arguments that its wrapper takes by position or by keyword."""

    function: str
    code: types.CodeType  # of that function, not of its wrapper
    positional: tuple[str, tuple[str, ...]] = ("", ())  # the wrapper's *args, and the user's names of its items
    keywords: str = ""  # the wrapper's **kwargs

    def place(self, frame: LiveFrame) -> tuple[str, int]:
        """The file and line where a frame is: at its beginning, those of the user's function."""
        if frame.index == 0:
            return self.code.co_filename, self.code.co_firstlineno
        return frame.info.code.co_filename, frame.instruction.line

    def translated(self, text: str) -> str:
        """A text about the wrapper's arguments, with the user's names in it."""
        variable, names = self.positional
        for number, name in enumerate(names):
            text = re.sub(rf"(?<![\w.\]]){re.escape(variable)}\[{number}\]", name, text)
        if self.keywords:
            text = re.sub(rf"(?<![\w.\]]){re.escape(self.keywords)}\['(\w+)'\]", r"\1", text)
        return text


def user_names(frame: LiveFrame) -> UserNames:
    """The names of a frame's function and arguments."""
    function, module = frame.function, _module(frame)
    forward, is_bound = (None, False) if module is None else _forward_of(module)
    is_call = module is not None and function.__code__ in _CALLS
    called = forward if is_call and forward is not None else function
    target = _unwrapped(called)
    is_forward = module is not None and (is_call or function is forward)
    name = f"{qualname_of(type(module))}.forward" if is_forward else target.__qualname__
    if target is function:
        return UserNames(name, target.__code__)
    skipped = int(is_bound) if is_call else function.__code__.co_argcount
    code = function.__code__
    return UserNames(name, target.__code__, _positional(code, target.__code__, skipped), _keywords(code))


def _module(frame: LiveFrame) -> torch.nn.Module | None:
    """The module whose method the frame runs: the first argument, in a `*args` too."""
    code = frame.function.__code__
    first = frame.slots[0] if code.co_argcount else None
    if not code.co_argcount and code.co_flags & CO_VARARGS:
        taken = frame.slots[code.co_kwonlyargcount]
        first = taken[0] if type(taken) is tuple and taken else None
    return first if issubclass(type(first), torch.nn.Module) else None


def _forward_of(module: torch.nn.Module) -> tuple[types.FunctionType | None, bool]:
    """The function behind `module.forward`, and whether it takes the module as its first argument."""
    held = object.__getattribute__(module, "__dict__").get("forward")
    if type(held) is types.MethodType and type(held.__func__) is types.FunctionType:
        return held.__func__, True
    if type(held) is types.FunctionType:
        return held, False
    for cls in mro_of(type(module)):
        if "forward" in cls.__dict__:
            forward = cls.__dict__["forward"]
            return (forward, True) if type(forward) is types.FunctionType else (None, False)
    return None, False


def _unwrapped(function: types.FunctionType) -> types.FunctionType:
    for _ in range(_MAX_WRAPPERS):
        inner: Any = function.__dict__.get("__wrapped__")
        if type(inner) is types.MethodType:
            inner = inner.__func__
        if type(inner) is not types.FunctionType:
            break
        function = inner
    return function


def _positional(wrapper: types.CodeType, inner: types.CodeType, skipped: int) -> tuple[str, tuple[str, ...]]:
    if not wrapper.co_flags & CO_VARARGS:
        return "", ()
    variable = wrapper.co_varnames[wrapper.co_argcount + wrapper.co_kwonlyargcount]
    return variable, inner.co_varnames[skipped : inner.co_argcount]


def _keywords(wrapper: types.CodeType) -> str:
    if not wrapper.co_flags & CO_VARKEYWORDS:
        return ""
    return wrapper.co_varnames[wrapper.co_argcount + wrapper.co_kwonlyargcount + bool(wrapper.co_flags & CO_VARARGS)]
