"""Scripts that are forked from a process with torch and smelt: each finds a new one, and nothing of it stays."""

import signal
import tempfile
from pathlib import Path

import pytest

from tests.processes import PLAIN, run, run_module, run_new, start


def test_each_finds_a_new_process() -> None:
    script = """
import os, sys
assert __name__ == "__main__" and sys.modules["__main__"].__dict__ is globals()
assert not hasattr(torch, "mark") and smelt.counters["graphs"] == 0 and "LLVM" not in os.environ
torch.mark = 1
smelt.compile(lambda x: x + 1)(torch.ones(3))
print(smelt.counters["graphs"], os.environ["ASKED"])
print("told", file=sys.stderr)
"""
    for _ in range(2):
        done = run("import torch, smelt\n" + script, environment={"ASKED": "for"})
        assert (done.returncode, done.stdout, done.stderr) == (0, "1 for\n", "told\n")
    assert run("import os\nprint('ASKED' in os.environ)").stdout == "False\n"


def test_how_it_ends_is_told() -> None:
    assert run("import sys\nsys.exit(3)").returncode == 3
    raised = run("1 / 0")
    assert raised.returncode == 1 and "ZeroDivisionError" in raised.stderr
    killed = run("import ctypes\nprint('before', flush=True)\nctypes.string_at(0)")
    assert (killed.returncode, killed.stdout) == (-signal.SIGSEGV, "before\n")
    hanging = "import signal, time\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)\ntime.sleep(60)"
    assert run(hanging, seconds=1).returncode == -signal.SIGKILL
    assert run("print('right')").stdout == "right\n"


def test_a_script_may_be_told_to_be_quiet() -> None:
    script = "import warnings\nwarnings.warn('heard')"
    assert "heard" not in run(script, warns=False).stderr
    assert "heard" in run(script).stderr


def test_it_is_a_program_with_arguments_and_an_end(tmp_path: Path) -> None:
    script = "import atexit, sys\natexit.register(print, 'end')\nprint(sys.argv, sys.path[0], __file__)"
    file = str(tmp_path / "program.py")
    done = run(script, arguments=["a", "b"], file=file)
    assert done.stdout == f"{[file, 'a', 'b']} {tmp_path} {file}\nend\n"
    assert "usage: python -m json.tool" in run_module("json.tool", "--help").stdout


def test_the_environment_is_that_of_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    script = "import os\nprint(*(os.environ.get(name) for name in ('ONE', 'TWO')))"
    monkeypatch.setenv("ONE", "1")
    assert run(script, environment={"TWO": "2"}).stdout == "1 2\n"
    assert run(script, environment={"ONE": None}).stdout == "None None\n"
    monkeypatch.delenv("ONE")
    assert run(script).stdout == "None None\n"


def test_what_begins_otherwise_has_a_server_of_its_own() -> None:
    """Nothing of it is seen by others; each is one thread when it is forked."""
    script = "import os, sys\nprint(*(name in sys.modules for name in ('tabnanny', 'llvmlite', 'torch', 'smelt')))\n"
    script += "tasks = f'/proc/{os.getppid()}/task'\nprint(len(os.listdir(tasks)) if os.path.exists(tasks) else 1)"
    for _ in range(2):
        assert run(script, begin=PLAIN + "import tabnanny").stdout == "True False True True\n1\n"
        assert run(script, begin=PLAIN).stdout == "False False True True\n1\n"
        assert run(script).stdout == "False True True True\n1\n"


def test_several_at_once() -> None:
    """Each is waited for when it is asked for."""
    script = "import pathlib, sys, time\nwhile not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.01)"
    with tempfile.TemporaryDirectory() as folder:
        sign = Path(folder, "sign")
        both = [start(script + "\nprint('seen')", arguments=[str(sign)]) for _ in range(2)]
        hanging = start(script, arguments=[folder + "/never"])
        assert all(process.runs() for process in (*both, hanging))
        sign.touch()
        assert [process.done().stdout for process in both] == ["seen\n"] * 2
        hanging.kill()
        assert hanging.done().returncode == -signal.SIGKILL


def test_an_interpreter_for_the_script_alone() -> None:
    script = "import sys\nprint(sys._getframe().f_back, 'torch' in sys.modules, sys.argv[1:])\nsys.exit(3)"
    new = run_new(script, arguments=["a"])
    assert (new.returncode, new.stdout) == (3, "None False ['a']\n")
    assert not run(script).stdout.startswith("None")
