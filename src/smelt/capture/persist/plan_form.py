"""A plan as stored: what replay interprets, with numbers in the place of objects. One pair of functions per part.

Return(Computation(arguments, Recipe(constants, steps)), result)   ↔   {"arguments": …, "constants": …, "steps": …}
"""

import functools
import math
import sys
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

from smelt.capture.persist.object_names import Names, NotPersistable, own_folders
from smelt.capture.replay.plan import Computation, GraphRun, Return
from smelt.capture.replay.reconstruct import Recipe
from smelt.ir.json_values import decode, encode
from smelt.ir.nodes.ambient import Ambient

_STEPS: tuple[Any, ...] = (object, list, tuple, dict, set, frozenset, slice, str, deque, OrderedDict, defaultdict)
_STEPS += (types.CellType, sys.modules["_operator"], math)

RealOf = Callable[[Any], Any]
"""The object that a form names."""


def plan_form(plan: Return, names: Names) -> dict[str, Any]:
    """A plan that `plan_of` reads."""
    computation = plan.computation
    return {
        "arguments": list(computation.arguments),
        "collected": computation.collected,
        "constants": [_constant(constant, names) for constant in computation.recipe.constants],
        "steps": [[step_form(function, names), list(operands)] for function, operands in computation.recipe.steps],
        "writes": computation.recipe.writes,
        "result": plan.result,
    }


def plan_of(form: dict[str, Any], real_of: RealOf, run: GraphRun, writes: bool) -> Return:
    """The plan of a form, with its graph; `writes` says whether that writes its inputs."""
    constants = tuple(decode(constant, real_of) for constant in form["constants"])
    steps = tuple((step_of(step, real_of), tuple(operands)) for step, operands in form["steps"])
    recipe = Recipe(constants, steps, form["writes"])
    entry = Ambient.now()
    computation = Computation(run, tuple(form["arguments"]), form["collected"], recipe, entry, None, writes)
    return Return(computation, form["result"])


def step_form(function: Any, names: Names) -> Any:
    """A step of a recipe: a function of smelt's or Python's own, or one with its first arguments bound."""
    if type(function) is functools.partial:
        if function.keywords:
            raise NotPersistable("a step has keywords")
        return ["#partial", step_form(function.func, names), *[_constant(each, names) for each in function.args]]
    if not may_be_step(function):
        raise NotPersistable(
            f"a step is a function of the program's own: {getattr(function, '__qualname__', function)!r}"
        )
    return ["#", names.number(function)]


def step_of(form: Any, real_of: RealOf) -> Callable[..., Any]:
    """The step of a form."""
    if form[0] == "#partial":
        return functools.partial(step_of(form[1], real_of), *[decode(each, real_of) for each in form[2:]])
    function: Callable[..., Any] = real_of(form)
    if not may_be_step(function):
        raise ValueError(f"{function!r} is no step")
    return function


def _constant(real: Any, names: Names) -> Any:
    """What a recipe starts from: a plain value that nobody changes, or an object that is meant itself."""
    return names.itself(real) if type(real) in (list, dict, set) else encode(real, names.other)


def may_be_step(function: Any) -> bool:
    """Whether a file may name it to be called: a function of smelt's, or of a plain type or of numbers in Python."""
    if type(function) is types.FunctionType:
        return function.__module__.startswith("smelt.") and function.__code__.co_filename.startswith(own_folders()[-1])
    owner = getattr(function, "__objclass__", None) or getattr(function, "__self__", None) or function
    return any(owner is each for each in _STEPS)
