"""Exceptions that arrive from outside while smelt captures and compiles: nothing may stay behind, wherever they do.

A few hundred fixed places here; `make test-interrupts` tries all of them.
"""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import smelt
from smelt.capture.driver.tracebacks import without_smelt
from tests.capture.interrupted.points import DELICATE
from tests.processes import COMPILER, run

_WORLDS = ("simple", "broken", "writing", "nested", "loaded", "storing")
_PLACES = 36  # of each
_BEGIN = f"""
import torch
from tests.capture.interrupted.locks import watch_locks
watch_locks()
{COMPILER}
import tests.capture.interrupted.running
"""


def _run(script: str) -> str:
    done = run(script, begin=_BEGIN)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("world", _WORLDS)
def test_nothing_stays_behind(world: str) -> None:
    words = ["--work", world, "--most", str(_PLACES)]
    told = _run(f"from tests.capture.interrupted.campaign import main\nassert main({words}) == 0")
    tried = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
    assert [each["failure"] for each in tried if each["done"]] == [None] * _PLACES


def test_locks_are_watched() -> None:
    """Those that smelt makes while it is imported are among them."""
    _run("from tests.capture.interrupted.locks import forget_locks\nassert forget_locks() > 0")


_SIGNALS = """
import random, signal, sys
from tests.capture.interrupted.snapshot import differences, snapshot
from tests.capture.interrupted.worlds import WORLDS
import torch, smelt

def warm():
    smelt.reset()
    world = WORLDS["nested"](smelt.compile)
    return world, world.step()

warm()
expected, before, chance, hits = warm()[1], snapshot(), random.Random(7), 0
for _ in range(40):
    smelt.reset()
    world = WORLDS["nested"](smelt.compile)
    try:
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.001, 0.2))
        world.step()
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        hits += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert not differences(before, snapshot()), differences(before, snapshot())
    world.x.grad = None
    found = world.step()
    assert all(map(torch.allclose, found, expected))
    assert torch.equal(torch.ones(2) + 1, torch.full((2,), 2.0))
assert hits > 5, hits
"""


def test_signals_leave_nothing_behind() -> None:
    _run(_SIGNALS)


_FINALLY = """
import torch, smelt
from smelt.capture.driver.engine import Engine

log = []

def program(x):
    try:
        with torch.no_grad():
            y = x * 2
            smelt.graph_break()
            z = y + 1
        return z
    finally:
        log.append("finally")

planned, calls = Engine.plan_for, []

def interrupted(self, frames):
    calls.append(1)
    if len(calls) == 1:
        raise KeyboardInterrupt
    return planned(self, frames)

Engine.plan_for = interrupted
try:
    smelt.compile(program)(torch.ones(3, requires_grad=True))
    raise AssertionError("it was lost")
except KeyboardInterrupt:
    pass
assert log == ["finally"], log
assert torch.is_grad_enabled()
"""


def test_the_program_handles_what_arrives_while_it_is_captured_on() -> None:
    """Its `finally` and `with` are left as by an exception at the line where it stands."""
    _run(_FINALLY)


def test_the_functions_that_are_tried_exist() -> None:
    """They are told by name; one that was renamed would be left out in silence."""
    found = {"_push_mode", "_pop_mode"}
    for kind in (TorchDispatchMode, TorchFunctionMode, torch.no_grad, torch.enable_grad):
        found |= {f"{kind.__name__}.{name}" for name in ("__enter__", "__exit__") if name in vars(kind)}
    defined = re.compile(rf"def ({'|'.join({re.escape(name.split('.')[-1]) for name in DELICATE})})\b")
    for file in Path(smelt.__file__).parent.rglob("*.py"):
        if defined.search(text := file.read_text()):
            found |= set(_functions(ast.parse(text), ""))
    assert DELICATE - found == set()


def _functions(node: ast.AST, prefix: str) -> Iterator[str]:
    """The qualified names of functions below a node of a syntax tree."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            yield prefix + child.name
            yield from _functions(child, f"{prefix}{child.name}.<locals>.")
        else:
            yield from _functions(child, f"{prefix}{child.name}." if isinstance(child, ast.ClassDef) else prefix)


def test_an_entry_of_a_traceback_may_have_no_line() -> None:
    """As one of an instruction that no line of the source has, where a signal may arrive."""

    def fails() -> None:
        raise ValueError("here")

    code = fails.__code__
    units = len(code.co_code) // 2
    nowhere = [0x80 | 15 << 3 | min(8, units - start) - 1 for start in range(0, units, 8)]
    fails.__code__ = code.replace(co_linetable=bytes(nowhere))
    with pytest.raises(ValueError, match="here") as raised:
        fails()
    found = without_smelt(raised.value.__traceback__)
    lines = []
    while found is not None:
        lines.append(found.tb_lineno)
        found = found.tb_next
    assert lines[-1] is None and lines[0] is not None
