"""A capture as data: guards, recipe, the way back, in numbers of objects that `named` tells to other processes.

    self.lin.weight: tensor f32[4, 4]   →   [number of ("key", "weight"), [number of ("tensor", …)], [], 1, "self.…"]

Accessors and checks are written once each and referred to by number. What has no form raises `NotPersistable`, which
says why.
"""

import functools
import json
import os
import sys
import types
from dataclasses import astuple
from typing import Any

from smelt.base.fast_dataclass import dataclass
from smelt.capture.calls.lru_cache import Remembered
from smelt.capture.guards.dynamic_sizes import History
from smelt.capture.guards.tree import GuardTree
from smelt.capture.model.marks import entered_by
from smelt.capture.persist.object_names import Names, NotPersistable, file_of, is_library
from smelt.capture.persist.plan_form import plan_form, step_form
from smelt.capture.replay.plan import EntryState, Return
from smelt.capture.replay.rollback import WritePolicy
from smelt.ir.json_values import encode

_IDENTIFIED = {"is": 1, "type": 1, "class has": 2}  # where in a check the object stands that is meant itself


@dataclass(frozen=True, slots=True)
class SerializedCapture:
    """The parts of a capture that make it up."""

    roots: tuple[Any, ...]
    plan: Return
    entry_state: EntryState
    history: History
    write_policy: WritePolicy
    tree: GuardTree


def record_of(capture: SerializedCapture, graph: Any) -> dict[str, Any]:
    """All of it."""
    names = Names()
    remembered = [_call(each, names) for each in capture.tree.remembered.values()]
    tree = _Tree(names, [each.guard for each in capture.tree.remembered.values()])
    roots = [tree.node(root) for root in capture.roots]
    entry_state = capture.entry_state
    (frame,) = entry_state.frames
    _refuse_compiled(names)
    answers = capture.tree.asked.values()
    asked = [[names.itself(kind), names.itself(wanted), answer] for kind, wanted, answer in answers]
    machine = [[names.other(function), encode(answer, refuse)] for function, answer in capture.tree.machine.items()]
    plan = plan_form(capture.plan, names)
    return {
        "accessors": tree.accessors,
        "asked": asked,
        "machine": machine,
        "remembered": remembered,
        "checks": tree.checks,
        "roots": roots,
        "plan": plan,
        "relations": [list(relation) for relation in entry_state.relations],
        "frame": [frame.function, list(frame.slots)],
        "write_policy": [list(each) if isinstance(each, tuple) else each for each in astuple(capture.write_policy)],
        "history": encode(capture.history.seen(), refuse),
        "graph": graph,
        "objects": names.forms,
        "files": stamps_of(names.reals, frame.info.code.co_filename),
        "program": program_stamps(),
    }


class _Tree:
    """Guards as numbers of accessors and checks, each of which is written once."""

    def __init__(self, names: Names, remembered: list[Any]) -> None:
        self.names = names
        self.remembered = remembered
        self.accessors: list[Any] = []
        self.checks: list[Any] = []
        self._known: dict[str, int] = {}

    def node(self, node: Any) -> list[Any]:
        accessor, checks, children, collected, text = node
        if accessor[0] == "value":
            form = ["value", self.names.itself(accessor[1])]
        else:
            form = [accessor[0], *[encode(part, self.names.other) for part in accessor[1:]]]
        numbers = [self._number(self.checks, self._check(check)) for check in checks]
        below = [self.node(child) for child in children]
        return [self._number(self.accessors, form), numbers, below, int(collected), text]

    def _check(self, check: Any) -> list[Any]:
        kind, *parts = check
        if kind == "predicate":
            return self._predicate(parts[0])
        if kind == "of class":
            return ["of class", step_form(parts[0], self.names), encode(parts[1], self.names.other)]
        place = _IDENTIFIED.get(kind, 0)
        return [
            kind,
            *[
                self.names.itself(part) if number == place else encode(part, self.names.other)
                for number, part in enumerate(parts, 1)
            ],
        ]

    def _predicate(self, function: Any) -> list[Any]:
        """A guard that is a function: of smelt's own, or one with its first arguments given."""
        for number, guard in enumerate(self.remembered):
            if function is guard:
                return ["remembered", number]
        inner = function.func if type(function) is functools.partial else function
        if getattr(inner, "__closure__", None) is not None:
            raise NotPersistable(f"a guard is a function: {function.__qualname__}")
        return ["predicate", step_form(function, self.names)]

    def _number(self, table: list[Any], form: Any) -> int:
        text = f"{id(table)} {json.dumps(form)}"
        if text not in self._known:
            self._known[text] = len(table)
            table.append(form)
        return self._known[text]


def _call(call: Remembered, names: Names) -> list[Any]:
    """A call of a cached function: with what, and what it answered."""
    args = [encode(each, names.other) for each in call.args]
    named = [[name, encode(each, names.other)] for name, each in call.kwargs.items()]
    return [names.other(call.function), args, named, names.answer(call.answer)]


def _refuse_compiled(names: Names) -> None:
    """What is done with other compiled functions depends on how those are compiled."""
    for real in names.reals:
        if type(real) is types.FunctionType and entered_by(real) is not None:
            raise NotPersistable(f"{real.__qualname__} is compiled, too")


def stamps_of(reals: list[Any], file: str) -> list[list[Any]]:
    """The files that code and classes with their bases come from, and the function itself, by size and time."""
    files, modules = {file}, set[str]()
    for real in reals:
        if isinstance(real, types.CodeType):
            files.add(real.co_filename)
        elif isinstance(real, type):
            modules.update(base.__module__ for base in real.__mro__)
        elif isinstance(real, types.FunctionType):
            modules.add(real.__module__)
    files |= {file_of(sys.modules.get(name)) for name in modules}
    return [[file, *stamp_of(file)] for file in sorted(files) if not is_library(file) and os.path.isfile(file)]


def program_stamps() -> list[list[Any]]:
    """The files of the program itself that are loaded, packages that are installed apart: what one of them does to
    another's classes, no guard asks."""
    files = {file_of(module) for module in list(sys.modules.values())}
    own = [file for file in files if file and "site-packages" not in file and not is_library(file)]
    return [[file, *stamp_of(file)] for file in sorted(own)]


def stamp_of(file: str) -> list[int]:
    try:
        status = os.stat(file)
    except OSError:
        return []
    return [status.st_size, status.st_mtime_ns]


def refuse(value: Any) -> Any:
    raise NotPersistable(f"a {type(value).__qualname__} cannot be serialized")
