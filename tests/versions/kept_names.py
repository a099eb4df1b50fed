"""What programs may rely on, as data: the functions, numbers and structs of smelt.h, Python's names, the commands.

described()                       →   {"functions": {"smelt_run": "smelt_status smelt_run(…)"}, "numbers": …, …}
missing(kept, described())        →   what of an earlier description is not there any more, a line each
"""

import argparse
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import smelt
from smelt.cli import parser
from tests.native.deploy.c_library import INCLUDE

OPTIONS = ("smelt_open_options", "smelt_session_options")
"""Structs that may get further fields at their ends."""

Described = dict[str, dict[str, Any]]


def described() -> Described:
    header = re.sub(r"/\*.*?\*/", "", (INCLUDE / "smelt.h").read_text(), flags=re.DOTALL)
    return {
        "functions": dict(_functions(header)),
        "numbers": {name: int(number) for name, number in re.findall(r"\b(SMELT_\w+) = (-?\d+)", header)},
        "structs": dict(_structs(header)),
        "python": {name: _parameters(getattr(smelt, name)) for name in smelt.__all__},
        "commands": _commands(),
    }


def _functions(header: str) -> Iterator[tuple[str, str]]:
    for declaration in re.findall(r"SMELT_API ([^;]*?\([^;]*\));", header):
        text = " ".join(declaration.split())
        yield text.partition("(")[0].split()[-1].lstrip("*"), text


def _structs(header: str) -> Iterator[tuple[str, list[str]]]:
    for fields, name in re.findall(r"typedef struct \{(.*?)\} (\w+);", header, re.DOTALL):
        yield name, [" ".join(field.split()) for field in fields.split(";") if field.strip()]


def _parameters(value: Any) -> dict[str, str]:
    """Of what can be called: each parameter's kind, with `?` if it may be left out."""
    try:
        found = inspect.signature(value).parameters.values() if callable(value) else ()
    except ValueError:
        found = ()
    shown = [each for each in found if not each.name.startswith("_")]
    return {each.name: each.kind.name + "?" * (each.default is not each.empty) for each in shown}


def _commands() -> dict[str, list[str]]:
    (commands,) = [each for each in parser()._actions if isinstance(each, argparse._SubParsersAction)]
    return {
        name: sorted(text for action in command._actions for text in action.option_strings)
        for name, command in commands.choices.items()
    }


def missing(kept: Described, now: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What is gone, or is another thing."""
    faults = []
    for kind, names in kept.items():
        faults += [f"{kind}: {name} is gone" for name in names if name not in now[kind]]
        both = {name: (was, now[kind][name]) for name, was in names.items() if name in now[kind]}
        for name, (was, is_now) in both.items():
            faults += [f"{kind}: {name}: {fault}" for fault in _changes(kind, name, was, is_now)]
    return faults


def _changes(kind: str, name: str, was: Any, now: Any) -> list[str]:
    if kind == "python":
        gone = [f"parameter {each} is gone" for each in was if each not in now]
        changed = [f"{each} was {was[each]}, is {now[each]}" for each in was if now.get(each, was[each]) != was[each]]
        needed = [f"{each} must be given" for each in now if each not in was and not _is_optional(now[each])]
        return gone + changed + needed
    if kind == "commands":
        return [f"option {each} is gone" for each in was if each not in now]
    if kind == "structs" and name in OPTIONS:
        now = now[: len(was)]
    return [] if was == now else [f"was {was}, is {now}"]


def _is_optional(parameter: str) -> bool:
    return parameter.endswith("?") or parameter.startswith("VAR_")
