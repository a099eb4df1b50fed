"""Scripts that are forked from a process with torch and smelt: each finds a new one, and nothing of it stays."""

import signal

from tests.processes import run


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
    assert run("import time\ntime.sleep(60)", seconds=1).returncode == -signal.SIGALRM
    assert run("print('right')").stdout == "right\n"


def test_flags_are_the_interpreters() -> None:
    script = "import sys, warnings\nwarnings.warn('heard')\nprint(sys.warnoptions)"
    done = run(script, flags=("-W", "ignore"))
    assert done.stdout == "['ignore']\n" and "heard" not in done.stderr
    assert "heard" in run(script).stderr


def test_an_interpreter_for_the_script_alone() -> None:
    script = "import sys\nprint(sys._getframe().f_back)\nsys.exit(3)"
    new = run(script, new=True)
    assert (new.returncode, new.stdout) == (3, "None\n")
    assert run(script).stdout != "None\n"
