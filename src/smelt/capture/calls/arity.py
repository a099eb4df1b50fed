"""How many arguments Python's own functions take, and by which names: any other call is Python's to refuse.

abs(x, y)                    takes(1)              →   raises the TypeError that Python raises
sorted(x, reverse=True)      takes(1, names=…)     →   answered

The rules of `builtin_calls`, the container methods and the functions of `polyfills` may then rely on what they are
given.
"""

import bisect
import functools
import inspect
import itertools
import re
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.capture.model.breaks import Raised, Unsupported
from smelt.capture.model.values import Constant, Value, python_type


@dataclass(frozen=True, slots=True)
class Takes:
    """Between `least` and `most` positional arguments, and keywords of `names`; None stands for any."""

    least: int
    most: int
    names: frozenset[str] | None

    def why_not(self, args: list[Any], kwargs: dict[str, Any]) -> str | None:
        """What Python would complain of."""
        if not self.least <= len(args) <= self.most:
            return f"{len(args)} arguments"
        if self.names is not None and not self.names.issuperset(kwargs):
            return f"keywords {', '.join(sorted(kwargs))}"
        return None


def takes(least: int, most: int | None = None, *, names: str | None = "") -> Takes:
    """`names` are those that may be given by keyword, None if any may."""
    return Takes(least, least if most is None else most, None if names is None else frozenset(names.split()))


ANY = sys.maxsize


_MISCOUNTED = re.compile(
    r"takes (no|exactly|at (most|least)|from \d|\d+ positional)|expected (exactly |at (most|least) )?\d+ argument"
    r"|missing \d* ?required|unexpected keyword|invalid keyword|takes no keyword|multiple values for|required argument"
)


def refusal(function: Any, count: int, names: Iterable[str], *receiver: Any) -> Unsupported:
    """What Python raises when a function of C is given so many arguments and keywords: it counts them first, so that
    any objects will do. An error about anything else is left to Python, and one that a bound method words otherwise."""
    ways = [functools.partial(function, *receiver), *[getattr(each, function.__name__) for each in receiver]]
    if isinstance(function, types.ClassMethodDescriptorType):
        ways, count = [function.__get__(None, function.__objclass__)], count - 1
    errors = [_raised(way, count, names) for way in ways]
    if errors[0] is not None and all(str(each) == str(errors[0]) for each in errors):
        return Raised.of(errors[0])
    return Unsupported("B019", f"TypeError: arguments of {getattr(function, '__qualname__', function)}")


def _raised(function: Any, count: int, names: Iterable[str]) -> TypeError | None:
    try:
        function(*[None] * count, **dict.fromkeys(names))
    except TypeError as error:
        return error.with_traceback(None) if _MISCOUNTED.search(str(error)) else None
    except Exception:
        return None
    return None


class WrongCall(Unsupported):
    """Arguments that do not fit a function of Python."""


_NOTHING = (lambda: None).__code__
_MADE_LATER = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def wrong_call(
    code: types.CodeType, qualname: str | None, positional: int, names: Iterable[str], *defaults: Any
) -> Unsupported:
    """What Python raises when arguments do not fit a function: raised by one that has the same parameters, and does
    nothing. `defaults` are the number of those of positional parameters, and the names of the others."""
    if qualname is None:
        return WrongCall("B019", f"TypeError: arguments do not fit {code.co_qualname}()")
    same = code.replace(
        co_code=_NOTHING.co_code,
        co_consts=_NOTHING.co_consts,
        co_names=(),
        co_freevars=(),
        co_cellvars=(),
        co_exceptiontable=b"",
        co_flags=code.co_flags & ~_MADE_LATER,
        co_qualname=qualname,
    )
    stand_in = types.FunctionType(same, {}, None, (None,) * defaults[0])
    stand_in.__kwdefaults__ = dict.fromkeys(defaults[1])
    try:
        stand_in(*[None] * positional, **dict.fromkeys(names))
    except TypeError as error:
        return Raised.of(error.with_traceback(None))
    return WrongCall("B019", f"TypeError: arguments do not fit {code.co_qualname}()")


def fitting(function: Any, accepted: Takes, rule: Callable[..., Any]) -> Callable[..., Any]:
    """A rule for builtins, asked only about calls that Python accepts."""

    def checked(interp: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if accepted.why_not(args, kwargs) is not None:
            raise refusal(function, len(args), kwargs)
        return rule(interp, args, kwargs)

    return checked


def answering(question: Callable[..., Any]) -> Callable[..., Value]:
    """A rule for a builtin that answers a plain value: what `question` says of the arguments."""
    return lambda interp, args, kwargs: Constant(question(interp, *args))


def acting(action: Callable[..., object]) -> Callable[..., Value]:
    """A rule for a builtin that changes something, and answers None."""

    def rule(interp: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
        action(interp, *args)
        return Constant(None)

    return rule


def alone(rule: Callable[[Any, Any], Value | None]) -> Callable[..., Value | None]:
    """A rule for calls with one argument; it passes on all others."""
    return lambda interp, args, kwargs: rule(interp, args[0]) if len(args) == 1 and not kwargs else None


_INT = (int, bool)
_INT_OR_NONE = (int, bool, type(None))
_SEQUENCE = (list, tuple)
_NUMBER = (int, bool, float, complex, torch.Tensor)
_KINDS: dict[Any, tuple[tuple[int, str, tuple[type, ...]], ...]] = {  # place, name, types
    itertools.count: ((0, "start", _NUMBER), (1, "step", _NUMBER)),
    itertools.repeat: ((1, "times", _INT),),
    itertools.combinations: ((1, "r", _INT),),
    itertools.combinations_with_replacement: ((1, "r", _INT),),
    itertools.permutations: ((1, "r", _INT_OR_NONE),),
    itertools.tee: ((1, "", _INT),),
    itertools.islice: ((1, "", _INT_OR_NONE), (2, "", _INT_OR_NONE), (3, "", _INT_OR_NONE)),
    itertools.product: ((ANY, "repeat", _INT),),
    bisect.bisect_left: ((0, "a", _SEQUENCE), (2, "lo", _INT), (3, "hi", _INT_OR_NONE)),
    bisect.bisect_right: ((0, "a", _SEQUENCE), (2, "lo", _INT), (3, "hi", _INT_OR_NONE)),
}


def refuse_arguments(function: Any, args: list[Value], kwargs: dict[str, Value]) -> None:
    """Leave a function that Python has in C to it, where the one that stands for it would word an error otherwise."""
    for place, name, kinds in _KINDS.get(function, ()):
        value = args[place] if place < len(args) else kwargs.get(name)
        if value is not None and python_type(value) not in kinds:
            raise Unsupported("B019", f"TypeError: an argument of {function.__name__}")
    if function is itertools.islice and (len(args) not in (2, 3, 4) or any(map(_is_negative, args[1:]))):
        raise Unsupported("B019", "ValueError: an argument of islice")
    if function is functools.reduce and len(args) > 1 and not hasattr(python_type(args[1]), "__iter__"):
        raise Unsupported("B019", "TypeError: the second argument of reduce")


def _is_negative(value: Value) -> bool:
    return isinstance(value, Constant) and value.value is not None and value.value < 0
