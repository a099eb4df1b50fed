"""Scripts in processes of their own, without importing torch in each: they are forked from one that did nothing else.

    done = run("print(torch.ones(2), smelt.counters['graphs'])")     done.stdout, done.stderr, done.returncode

A process is as new as one that has just imported torch and smelt. What a script does to it, up to its end, nobody else
sees. What hangs is ended after `seconds`. `new=True` starts an interpreter for the script alone, as for scripts that
count frames: there are some below a forked one.
"""

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).parent.parent
_BEGIN = "import torch\nimport smelt\n"

# Reads a line for each script, forks, and answers with what became of the child.
_SERVER = """
import json, os, signal, sys, traceback, types

def child(order):
    for place, name in enumerate((os.devnull, order["stdout"], order["stderr"])):
        os.dup2(os.open(name, os.O_RDWR), place)
    os.environ.update(order["environment"])
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")
    sys.argv = [order["file"]]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__["__builtins__"], main.__file__ = __builtins__, order["file"]
    signal.alarm(order["seconds"])
    code = 0
    try:
        exec(compile(order["script"], order["file"], "exec"), main.__dict__)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush(), sys.stderr.flush()
    os._exit(code)

orders, answers = sys.stdin, os.fdopen(os.dup(1), "w")
for line in orders:
    number = os.fork()
    if not number:
        child(json.loads(line))
    print(os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]), file=answers, flush=True)
"""


@dataclass(frozen=True)
class Done:
    """What a script left."""

    returncode: int
    stdout: str
    stderr: str


def run(
    script: str,
    *,
    flags: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
    file: str = "<script>",
    seconds: int = 300,
    new: bool = False,
) -> Done:
    """Run a script in a process that has imported torch and smelt under the interpreter's `flags`."""
    environment = dict(environment or {})
    if new or not hasattr(os, "fork"):
        command = [sys.executable, *flags, "-c", _BEGIN + script]
        ran = subprocess.run(
            command, capture_output=True, text=True, cwd=_ROOT, env={**os.environ, **environment}, timeout=seconds
        )
        return Done(ran.returncode, ran.stdout, ran.stderr)
    with tempfile.NamedTemporaryFile("w+") as out, tempfile.NamedTemporaryFile("w+") as errors:
        order = {"script": script, "file": file, "seconds": seconds, "environment": environment}
        server = _server(flags, os.getpid())
        assert server.stdin is not None and server.stdout is not None
        print(json.dumps({**order, "stdout": out.name, "stderr": errors.name}), file=server.stdin, flush=True)
        answer = server.stdout.readline()
        return Done(int(answer), Path(out.name).read_text(), Path(errors.name).read_text())


@functools.cache
def _server(flags: tuple[str, ...], process: int) -> "subprocess.Popen[str]":
    """What the scripts are forked from, one for each process of the tests."""
    server = subprocess.Popen(
        [sys.executable, *flags, "-c", _BEGIN + _SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=_ROOT,
        env={**os.environ, "SMELT_CACHE": "0"},
    )
    atexit.register(_end, server)
    return server


def _end(server: "subprocess.Popen[str]") -> None:
    assert server.stdin is not None
    server.stdin.close()
    server.wait()
