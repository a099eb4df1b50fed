"""A generated program as a script that needs nothing but smelt: what of its world it uses, itself, and its calls.

    repro(program)   →   text to save and run; it prints what plain Python and what smelt makes of each call
"""

import ast
import builtins
import dataclasses
import inspect
from pathlib import Path

from tests.capture.generated import running
from tests.capture.generated.grammar import Program

_SCRIPT = '''\
import contextlib
import io
import math
import types
from typing import Any

import torch

import smelt

SOURCE = r"""
{source}"""
CALLS = {calls}


{arguments}

for backend in (None, "{backend}"):
    world = {{"__name__": "world"}}
    exec(SOURCE, world)
    function = smelt.compile(world["program"], backend=backend) if backend else world["program"]
    for number, call in enumerate(CALLS):
        given, printed = arguments(world, types.SimpleNamespace(**call)), io.StringIO()
        with contextlib.redirect_stdout(printed), torch.set_grad_enabled(call["grad_mode"]):
            try:
                outcome = function(*given)
            except Exception as error:
                outcome = repr(error)
        print(backend or "plain Python", "call", number, repr(printed.getvalue()))
        print("   ", outcome, given, vars(given[4]), world["seen"])
'''


def repro(program: Program) -> str:
    """The script."""
    calls = "[\n" + "".join(f"    {dataclasses.asdict(call)},\n" for call in program.calls) + "]"
    source = _needed(Path(running.__file__).with_name("world.py").read_text(), program) + "\n\n" + program.text
    source = source.replace('"""', "'''")  # of docstrings: the text of the world is in such quotes
    arguments = inspect.getsource(running.arguments).replace("call: Call", "call: Any")
    return _SCRIPT.format(source=source, calls=calls, arguments=arguments, backend=program.backend)


def _needed(world: str, program: Program) -> str:
    """The parts of the world that the program and its calls name, and what those name in turn."""
    parts = [part for part in ast.parse(world).body if not _is_docstring(part)]
    wanted = _names(ast.parse(program.text)) | {"Box", "Child", "seen", "smelt", "torch"} - {*dir(builtins)}
    while True:
        kept = [part for part in parts if wanted & _bound(part)]
        grown = wanted.union(*map(_names, kept))
        if grown == wanted:
            return "\n".join(_text(world, part) for part in kept)
        wanted = grown


def _text(world: str, part: ast.stmt) -> str:
    """A statement's lines, decorators included."""
    first = min([part.lineno, *(each.lineno for each in getattr(part, "decorator_list", ()))])
    return "\n".join(world.splitlines()[first - 1 : part.end_lineno])


def _is_docstring(part: ast.stmt) -> bool:
    return isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant)


def _names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _bound(part: ast.stmt) -> set[str]:
    """The names that a statement of the world is about."""
    if isinstance(part, ast.FunctionDef | ast.ClassDef):
        decorators = set().union(*map(_names, part.decorator_list)) if part.name == "_" else set()
        return {part.name} - {"_"} | decorators
    if isinstance(part, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name for alias in part.names}
    return _names(part) & {"logger"} if isinstance(part, ast.Expr) else _targets(part)


def _targets(part: ast.stmt) -> set[str]:
    return set().union(*map(_names, part.targets)) - {"__all__", "STATE"} if isinstance(part, ast.Assign) else set()
