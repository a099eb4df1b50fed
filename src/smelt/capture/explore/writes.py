"""Rebuilding a state after a graph that was only explored, so that nothing of the program is touched.

What the captured code did to objects of the state is done to those, which are copies. A write to anything else (an
attribute of a module, a global list) would be seen by the program, and an artifact could not make it: it is refused.
"""

import functools
from collections.abc import Callable
from typing import Any

from smelt.base.errors import SmeltError
from smelt.capture.model.set_order import changed as set_changed
from smelt.capture.replay.plan import Return, Stop
from smelt.capture.replay.reconstruct import fill_cell
from smelt.capture.replay.side_effects import WRITERS

Steps = tuple[tuple[Callable[..., Any], tuple[int, ...]], ...]


def rebuilt(plan: Return | Stop, collected: tuple[Any, ...], outputs: tuple[Any, ...], objects: set[int]) -> list[Any]:
    """The registers of a plan's recipe; `objects` are ids of what is part of the state."""
    recipe = plan.computation.recipe
    registers = [*recipe.constants, *collected, *outputs]
    given = len(registers)
    for function, operands in recipe.steps:
        arguments = [registers[number] for number in operands]
        if _writes(function) and operands[0] < given and id(arguments[0]) not in objects:
            raise SmeltError(
                "SM060",
                f"the function cannot be exported: it changes {_described(arguments[0])} that is not its own",
                where=plan.record.where if isinstance(plan, Stop) else "",
                hint="return the new value, or keep it in a registered buffer that is written in place",
            )
        registers.append(function(*arguments))
    return registers


def _writes(function: Any) -> bool:
    bare = function.func if isinstance(function, functools.partial) else function
    return bare in WRITERS or bare in (fill_cell, set_changed)


def _described(real: Any) -> str:
    return f"a {type(real).__qualname__}"
