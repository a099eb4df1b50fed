"""How many arguments Python's own functions take, and by which names: any other call is Python's to refuse.

abs(x, y)                    takes(1)              →   breaks, and Python raises TypeError from the user's line
sorted(x, reverse=True)      takes(1, names=…)     →   answered

The rules of `builtin_calls`, the container methods and the functions of `polyfills` may then rely on what they are
given.
"""

import bisect
import functools
import itertools
import sys
from collections.abc import Callable
from typing import Any

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.capture.model.breaks import Unsupported
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


def fitting(name: str, given: Takes, rule: Callable[..., Any]) -> Callable[..., Any]:
    """A rule for builtins, asked only about calls that Python accepts."""

    def checked(interp: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        wrong = given.why_not(args, kwargs)
        if wrong is not None:
            raise Unsupported("B019", f"TypeError: {name} with {wrong}")
        return rule(interp, args, kwargs)

    return checked


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
