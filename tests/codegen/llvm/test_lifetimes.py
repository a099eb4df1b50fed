"""LLVM's objects that an exception left behind: the collector finds them in any order, and frees them.

Each program runs in a process of its own, as what is wrong here ends it.
"""

import pytest

from tests.processes import run

_BEGIN = """
import gc
import torch, smelt
from smelt.codegen.llvm import compile as engine
from smelt.codegen.llvm.link import CannotLink

engine._object = engine._object.unshared
gc.disable()
gc.collect()

def program(x):
    return (x * 2).sin() + 1

def left_behind():
    \"\"\"A cycle with all that an interrupted compilation held.\"\"\"
    def interrupted(*_):
        raise KeyboardInterrupt
    original, engine.STEP = engine.STEP, interrupted
    try:
        smelt.compile(program)(x)
    except KeyboardInterrupt as error:
        held = [error]
        held.append(held)
    else:
        raise AssertionError("it was lost")
    engine.STEP = original

x = torch.arange(8.0)
expected = program(x)
"""
_GOES_ON = """
gc.collect()
for _ in range(3):
    smelt.reset()
    assert torch.allclose(smelt.compile(program)(x), expected)
"""


@pytest.mark.parametrize("step", ["_optimized", "_emitted"])
def test_an_interrupted_compilation_is_freed(step: str) -> None:
    script = f"{_BEGIN}for _ in range(20):\n    left_behind()\n    gc.collect()\n{_GOES_ON}"
    _succeeds(script.replace("STEP", step))


def test_code_that_llvm_loaded_is_freed() -> None:
    script = f"""
{_BEGIN}
def refuse(image, library):
    raise CannotLink("for a test")
engine.link = refuse
for _ in range(20):
    smelt.reset()
    compiled = smelt.compile(program)
    assert torch.allclose(compiled(x), expected)
    cycle = [compiled]
    cycle.append(cycle)
    del compiled, cycle
    smelt.reset()
    gc.collect()
"""
    _succeeds(script)


def test_interrupted_while_llvm_has_loaded_it() -> None:
    script = f"""
{_BEGIN}
def refuse(image, library):
    raise CannotLink("for a test")
engine.link = refuse
engine.llvm().ExecutionEngine.finalize_object
for _ in range(20):
    left_behind()
    gc.collect()
{_GOES_ON}"""
    _succeeds(script.replace("engine.STEP", "engine.llvm().ExecutionEngine.finalize_object"))


def _succeeds(script: str) -> None:
    done = run(script, warns=False)
    assert done.returncode == 0, done.stdout + done.stderr
