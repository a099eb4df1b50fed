"""Scripts in processes of their own, without importing torch in each: they are forked from one that did nothing else.

    done = run("print(torch.ones(2), smelt.counters['graphs'])")     done.stdout, done.stderr, done.returncode
    process = start("while True: pass")     process.runs(), process.kill(), process.done()

A process is as new as one that has just run `begin`: torch, smelt and the compiler are imported, and nothing else has
happened. What a script does to it, up to its end, nobody else sees. What hangs is ended after `seconds`.

`run_new` starts an interpreter for the script alone. It takes seconds, and is for scripts that need one: those that
look at how an interpreter begins or ends, count frames to the last, or have a seed of hashes of their own.
"""

import atexit
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import shared_kernels

ROOT = Path(__file__).parent.parent
PLAIN = "import torch\nimport smelt\n"
COMPILER = f"""{PLAIN}
import importlib, os, pathlib, pkgutil
import llvmlite.binding
import smelt.codegen, smelt.fuse, smelt.pipeline
for package in (smelt.codegen, smelt.fuse, smelt.pipeline):  # as a first call does
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
torch.testing.assert_close(torch.ones(1), torch.ones(1))  # the first comparison imports sympy
from tests import shared_kernels
shared_kernels.share(pathlib.Path(os.environ["{shared_kernels.FOLDER}"]))
"""

# Reads a line for each script, has it run by a child, and answers with what became of that. For each way to begin there
# is a server of its own, which is a child of the first one: torch is imported once.
_SERVER = """
import atexit, faulthandler, gc, json, os, signal, sys, threading, traceback, types, warnings

def child(order):
    os.setsid()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have ignored it for what it runs aside
    for place, name in enumerate((os.devnull, order["stdout"], order["stderr"])):
        os.dup2(os.open(name, os.O_RDWR), place)
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")
    faulthandler.enable()
    if not order["warns"]:
        warnings.simplefilter("ignore")
    sys.argv = [order["file"], *order["arguments"]]
    if os.path.isabs(order["file"]):
        sys.path[0] = os.path.dirname(order["file"])
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=__builtins__, __file__=order["file"], torch=torch)
    main.__dict__.update((name, sys.modules[name]) for name in ("smelt",) if name in sys.modules)
    code = 0
    try:
        exec(compile(order["script"], order["file"], "exec"), main.__dict__)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush(), sys.stderr.flush()
    os._exit(code)

known = {}

def ended(number, seconds):
    if number not in known:
        signal.signal(signal.SIGALRM, lambda *_: os.kill(number, signal.SIGKILL))
        signal.alarm(seconds)
        found, status = os.waitpid(number, 0 if seconds else os.WNOHANG)
        signal.alarm(0)
        if not found:
            return "runs"
        known[number] = os.waitstatus_to_exitcode(status)
    return known[number]

orders, answers, began, servers = sys.stdin, os.fdopen(os.dup(1), "w"), None, {}
while line := orders.readline():
    order = json.loads(line)
    begin = order["begin"]
    if begin != began and begin not in servers:
        there, back = os.pipe(), os.pipe()
        if not os.fork():
            os.close(there[1]), os.close(back[0])
            exec(begin, {})
            gc.collect(), gc.freeze()
            orders, answers, began, servers = os.fdopen(there[0]), os.fdopen(back[1], "w"), begin, {}
            continue
        os.close(there[0]), os.close(back[1])
        servers[begin] = os.fdopen(there[1], "w"), os.fdopen(back[0])
    if begin != began:
        try:
            print(line, end="", file=servers[begin][0], flush=True)
        except OSError:
            pass  # it has ended, as one ends whose `begin` raises: there is no answer
        print(servers[begin][1].readline() or "\\n", end="", file=answers, flush=True)
        continue
    number = order["number"] or os.fork()
    if not number:
        child(order)
    print(ended(number, order["seconds"]) if order["number"] else number, file=answers, flush=True)
"""


@dataclass(frozen=True)
class Done:
    """What a script left."""

    returncode: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Started:
    """A script that runs."""

    begin: str
    number: int
    out: Path
    errors: Path

    def runs(self) -> bool:
        return self._asked(0) == "runs"

    def kill(self) -> None:
        os.kill(self.number, signal.SIGKILL)

    def done(self, seconds: int = 300) -> Done:
        """What it left, once it has ended or been ended."""
        code = int(self._asked(seconds))
        found = Done(code, self.out.read_text(), self.errors.read_text())
        for file in (self.out, self.errors):
            file.unlink()
        return found

    def _asked(self, seconds: int) -> str:
        return _ask({"begin": self.begin, "number": self.number, "seconds": seconds})


def start(
    script: str,
    *,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str | None] | None = None,
    file: str = "<script>",
    warns: bool = True,
    begin: str = COMPILER,
) -> Started:
    """Have a script run in a process that has run `begin`; None takes a variable out of the environment."""
    files = [tempfile.mkstemp() for _ in range(2)]
    for number, _ in files:
        os.close(number)
    (_, out), (_, errors) = files
    order = {"number": 0, "script": script, "arguments": list(arguments), "environment": _all(environment)}
    order |= {"file": file, "begin": begin, "warns": warns, "stdout": out, "stderr": errors}
    return Started(begin, int(_ask(order)), Path(out), Path(errors))


def run(script: str, *, seconds: int = 300, **how: Any) -> Done:
    """Run a script as `start` does, up to its end."""
    return start(script, **how).done(seconds)


def run_new(
    script: str, *, arguments: Sequence[str] = (), environment: Mapping[str, str | None] | None = None
) -> Done:
    """Run a script in an interpreter of its own, in which nothing has been imported. That takes seconds."""
    command = [sys.executable, "-X", "faulthandler", "-W", "ignore", "-c", script, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=_all(environment), timeout=300)
    return Done(ran.returncode, ran.stdout, ran.stderr)


def _all(environment: Mapping[str, str | None] | None) -> dict[str, str]:
    variables = {**os.environ, **(environment or {})}
    return {name: text for name, text in variables.items() if text is not None}


def _ask(order: dict[str, Any]) -> str:
    server = _server(os.getpid())
    assert server.stdin is not None and server.stdout is not None
    print(json.dumps(order), file=server.stdin, flush=True)
    answer = server.stdout.readline().strip()
    assert answer, f"what scripts are forked from has ended:\n{order['begin']}"
    return answer


def run_module(module: str, *arguments: str, **how: Any) -> Done:
    """As `python -m module arguments` runs it."""
    script = f"import runpy\nrunpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    return run(script, arguments=arguments, **how)


@functools.cache
def _server(process: int) -> "subprocess.Popen[str]":
    """What the scripts are forked from, one for each process of the tests."""
    server = subprocess.Popen(
        [sys.executable, "-c", "import torch\n" + _SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "SMELT_CACHE": "0"},
    )
    atexit.register(_end, server)
    return server


def _end(server: "subprocess.Popen[str]") -> None:
    assert server.stdin is not None
    server.stdin.close()
    server.wait()
