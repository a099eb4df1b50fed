"""Rebuilding a state after a graph that was only explored, so that nothing of the program is touched.

What the captured code did to objects of the state is done to those, which are copies. A write to anything else (an
attribute of a module, a global list) would be seen by the program, and an artifact could not make it: it is refused.
"""

import functools
from collections.abc import Callable
from typing import Any

from smelt.base.errors import SmeltError
from smelt.capture.model.set_order import changed as set_changed
from smelt.capture.model.values import is_constant
from smelt.capture.replay.plan import Return, Stop
from smelt.capture.replay.rebuild_functions import fill_cell
from smelt.capture.replay.side_effects import WRITERS

Steps = tuple[tuple[Callable[..., Any], tuple[int, ...]], ...]


def rebuilt(plan: Return | Stop, collected: tuple[Any, ...], outputs: tuple[Any, ...], objects: set[int]) -> list[Any]:
    """The registers of a plan's recipe; `objects` are ids of what is part of the state."""
    recipe = plan.computation.recipe
    registers = [*recipe.constants, *collected, *outputs]
    first_step = len(registers)
    for function, operands in recipe.steps:
        arguments = [registers[number] for number in operands]
        if _writes(function) and operands[0] < first_step and id(arguments[0]) not in objects:
            if _changes_nothing(function, *arguments):
                registers.append(None)
                continue
            where = plan.record.where if isinstance(plan, Stop) else ""
            if _changed_keys(function) == ("grad",):
                raise SmeltError(
                    "SM060",
                    "a training step is exported as one graph, and this one goes on by the value of a tensor",
                    where=where,
                    hint="leave the branch to the program that calls the artifact, or choose by torch.where",
                )
            raise SmeltError(
                "SM060",
                f"the function cannot be exported: it changes {_described(function, arguments[0])} that is not its own",
                where=where,
                hint="return the new value, or keep it in a registered buffer that is written in place",
            )
        registers.append(function(*arguments))
    return registers


def _writes(function: Any) -> bool:
    bare = function.func if isinstance(function, functools.partial) else function
    return bare in WRITERS or bare in (fill_cell, set_changed)


def _changes_nothing(function: Any, real: Any, *items: Any) -> bool:
    """Whether items of a dict are set to what they are: what a block sets for a while is as it was behind it."""
    if not isinstance(function, functools.partial) or type(real) is not dict or len(function.args) not in (1, 3):
        return False
    *others, changed = function.args  # the others are a base and what is removed
    pairs = zip(changed, items, strict=True)
    return not any(others[1:]) and all(key in real and _is_same(real[key], item) for key, item in pairs)


def _is_same(one: Any, other: Any) -> bool:
    return one is other or (is_constant(one) and type(one) is type(other) and bool(one == other))


def _changed_keys(function: Any) -> tuple[Any, ...]:
    changed = function.args[-1] if isinstance(function, functools.partial) and function.args else ()
    return changed if isinstance(changed, tuple) else ()


def _described(function: Any, real: Any) -> str:
    """What is changed, with the names or keys of what."""
    names = ", ".join(str(each) for each in _changed_keys(function)[:3])
    return f"{names} of an object" if names else f"a {type(real).__qualname__}"
