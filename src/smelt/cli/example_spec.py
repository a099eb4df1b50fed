"""What a command is to look at: `train.py:example` → a function or module with its arguments.

    # train.py
    def example():
        return Net(), (torch.randn(8, 100),)        # or (model, args, kwargs)

The function after the colon takes nothing and returns the program and what to call it with. Before the colon stands a
file or a module that can be imported.
"""

import argparse
import importlib
import os
import runpy
import sys
from collections.abc import Callable
from typing import Any

from smelt.base.fast_dataclass import dataclass

SHAPE = "FILE.py:FUNCTION or MODULE:FUNCTION, where FUNCTION() returns (model, args) or (model, args, kwargs)"


class BadTarget(Exception):
    """The target cannot be loaded; the message says why and what it should look like."""


@dataclass(frozen=True, slots=True)
class Target:
    model: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", help=SHAPE)


def load(text: str) -> Target:
    """The program a target names."""
    place, colon, name = text.rpartition(":")
    if not colon or not place or not name:
        raise BadTarget(f"{text!r} is no target; write {SHAPE}")
    sys.argv = [place]  # as `python place` has it: what stands there now is the command's own
    namespace = _namespace(place)
    if name not in namespace:
        raise BadTarget(f"{place} has no {name!r}")
    example = namespace[name]()
    if not (isinstance(example, tuple) and len(example) in (2, 3) and callable(example[0])):
        raise BadTarget(f"{name}() returned {type(example).__name__}, not (model, args) or (model, args, kwargs)")
    model, args, *rest = example
    if not isinstance(args, tuple | list):
        raise BadTarget(f"the arguments that {name}() returns must be a tuple, not {type(args).__name__}; (x,) for one")
    return Target(model, tuple(args), dict(rest[0]) if rest else {})


def _namespace(place: str) -> dict[str, Any]:
    if place.endswith(".py"):
        if not os.path.exists(place):
            raise BadTarget(f"there is no file {place}")
        sys.path.insert(0, os.path.dirname(os.path.abspath(place)))
        return runpy.run_path(place)
    sys.path.insert(0, os.getcwd())
    try:
        return vars(importlib.import_module(place))
    except ModuleNotFoundError as error:
        raise BadTarget(f"{place} cannot be imported: {error}") from None
