"""Functions under `functools.lru_cache`: called while their caller is captured, and relied on for the same answer.

    flag("sdpa")   →   the answer; guard: the function still has this very answer for "sdpa"

It is called as it is called once for the same arguments. What it would see must be real: nothing that it can come upon
may be what the captured code has yet to write to, unless `torch._dynamo.assume_constant_result` says that its answer
does not depend on that. Another process, which has other answers, asks again in the same
order (`recalling`).
"""

import functools
from typing import Any

from smelt import _native
from smelt.base.fast_dataclass import dataclass
from smelt.capture.interpreter.dict_keys import hashable
from smelt.capture.interpreter.interpreter import Interpreter
from smelt.capture.model.breaks import Unsupported
from smelt.capture.model.reach import why_reachable
from smelt.capture.model.values import Object, Value, stands_for_key
from smelt.capture.tape.program_state import as_the_program_has_it

WRAPPER: Any = functools._lru_cache_wrapper


@dataclass(frozen=True, slots=True)
class Remembered:
    """One such call, and the guard that asks for its answer."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    answer: Any
    guard: "functools.partial[bool]"

    @classmethod
    def of(cls, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], answer: Any) -> "Remembered":
        """The call that has just been made."""
        guard = functools.partial(is_remembered, answer, function.cache_info().misses, args, kwargs)
        guard.__qualname__ = "the answer remembered"  # type: ignore[attr-defined]
        return cls(function, args, kwargs, answer, guard)


def is_remembered(answer: Any, misses: int, args: tuple[Any, ...], kwargs: dict[str, Any], function: Any) -> bool:
    """Whether a cached function still has this very answer: its cache may have been cleared, and filled by others.

    Where it was cleared, it is the program's to call it: the arguments may be others by now.
    """
    try:
        if function.cache_info().misses < misses:
            return False
        return _native.suspended(function, *args, **kwargs) is answer
    except Exception:
        return False  # for the program to see, where it calls it


def _is_promised_constant(function: Any) -> bool:
    """Whether the program says that the answer of a cached function never changes."""
    return getattr(getattr(function, "__wrapped__", None), "_dynamo_marked_constant", False) is True


def call_cached(interp: Interpreter, function: Object, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The answer of such a function, relied on."""
    real, tree = function.value, interp.tree
    name = getattr(real, "__qualname__", "a function")  # one of `functools.partial` has none
    stale = None if _is_promised_constant(real) else interp.externals.stale_objects()
    if stale and (why := why_reachable(real, stale)) is not None:
        how = "which is cached and may look at what was written before"
        raise Unsupported("B002", f"{name}, {how}, by {why},")
    plain = tuple(hashable(interp, value) for value in args)
    named = {each: hashable(interp, value) for each, value in kwargs.items()}
    if any(map(stands_for_key, (*plain, *named.values()))):
        raise Unsupported("B002", f"{name}, which is cached, of an object that is not made yet")
    interp.externals.guard_identity(function)
    key = (id(real), *map(id, plain), *((word, id(each)) for word, each in named.items()))
    known: Remembered | None = tree.remembered.get(key)
    if known is None:
        try:
            with as_the_program_has_it(interp.tape.ambient):
                answer = real(*plain, **named)
        except Exception as error:
            raise Unsupported("B002", f"{name}, which raised {type(error).__name__}") from error
        known = tree.remembered[key] = Remembered.of(real, plain, named, answer)
        if function.source is not None:
            function.source.check(("predicate", known.guard))
        if not interp.tape.is_entry_ambient():
            tree.why_not_persist = f"{name}, which is cached and called inside a block"
    return interp.externals.value(known.answer, tree.fixed(known.answer, f"{name}()"))
