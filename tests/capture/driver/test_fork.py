"""Processes that fork whatever other threads do, and code that runs between two steps of the compiler.

Each program runs in a process of its own, with a time after which it is taken to hang.
"""

from pathlib import Path

import pytest

from tests.processes import run

_BEGIN = """
import gc, os, signal, sys, threading, time
import torch, smelt

def in_child(work, seconds=180):
    \"\"\"What `work` returns in a child of a fork; the child is ended where it hangs.\"\"\"
    child = os.fork()
    if child == 0:
        try:
            ok = work() in (None, True)
        except BaseException:
            import traceback
            traceback.print_exc()
            ok = False
        sys.stderr.flush()
        os._exit(0 if ok else 1)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            assert status == 0, status
            return
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("the child hangs")

def program(x):
    return (x * 2).sin() + 1

x = torch.arange(8.0)
expected = program(x)
"""

_PROGRAMS = {
    "while a thread captures": """
waits, there = threading.Event(), threading.Event()
def backend(module, inputs):
    there.set()
    if blocking:
        waits.wait()
    return module.forward
blocking = True
compiled = smelt.compile(program, backend=backend)
thread = threading.Thread(target=compiled, args=(x,))
thread.start()
assert there.wait(180)
def work():
    global blocking
    blocking = False
    assert gc.isenabled()
    from torch.utils import _python_dispatch
    assert not _python_dispatch._is_in_torch_dispatch_mode
    return torch.equal(compiled(x), expected) and torch.allclose(smelt.compile(program)(x), expected)
in_child(work)
waits.set()
thread.join()
assert torch.equal(compiled(x), expected)
""",
    "while a thread generates code": """
from smelt.codegen.llvm import compile as engine
make, there = engine._object, threading.Event()
def slowly(*given, **named):
    there.set()
    time.sleep(0.5)
    return make(*given, **named)
engine._object = slowly
compiled = smelt.compile(program)
thread = threading.Thread(target=compiled, args=(x,))
thread.start()
assert there.wait(180)
in_child(lambda: torch.allclose(compiled(x), expected))
thread.join()
""",
    "while a thread compiles a backward, and sizes": """
from smelt.runtime.autograd.differentiable import Differentiable
from smelt.pipeline.sizes.dispatch import SizedGraph
there, waits = threading.Event(), threading.Event()
def held(kind, name):
    function = getattr(kind, name)
    def wait(*given):
        if threading.current_thread() is not threading.main_thread() and not there.is_set():
            there.set()
            waits.wait()
        return function(*given)
    setattr(kind, name, wait)
def training(x):
    return (x.exp() * x.shape[0]).sum()
for kind, name in ((Differentiable, "_make"), (SizedGraph, "_make")):
    there.clear()
    waits.clear()
    compiled = smelt.compile(training, dynamic=True)
    held(kind, name)
    def train(size=5):
        leaf = torch.ones(size, requires_grad=True)
        compiled(leaf).backward()
        return torch.allclose(leaf.grad, torch.full((size,), size * 2.718281828))
    thread = threading.Thread(target=train)
    thread.start()
    assert there.wait(180)
    in_child(lambda: train() and train(7))
    waits.set()
    thread.join()
""",
    "after OpenMP was used": """
torch.set_num_threads(2)
big = torch.randn(1 << 20)
compiled = smelt.compile(program)
before = compiled(big).numpy().tobytes()  # what eager shares out between threads hangs in the child
in_child(lambda: compiled(big).numpy().tobytes() == before)
in_child(lambda: in_child(lambda: compiled(big).numpy().tobytes() == before))
""",
    "in the middle of its own compilation": """
def backend(module, inputs):
    if os.getpid() == parent:
        in_child(lambda: torch.allclose(smelt.compile(program)(x), expected))
    return module.forward
parent = os.getpid()
assert torch.equal(smelt.compile(program, backend=backend)(x), expected)
""",
    "workers of a DataLoader": """
from torch.utils.data import DataLoader
compiled = smelt.compile(program)
compiled(torch.ones(2, 8))
class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return compiled(torch.full((8,), float(index)))
def collate(rows):
    return compiled(torch.stack(rows))
for how in ("fork", None):
    loader = DataLoader(Numbers(), 2, num_workers=2, collate_fn=collate, multiprocessing_context=how, timeout=180)
    found = torch.cat(list(loader))
    assert torch.allclose(found, program(program(torch.arange(8.0)[:, None].expand(8, 8))), atol=1e-6)
""",
    "a signal handler that runs compiled code": """
inner = smelt.compile(lambda x: (x * 3).cos())
runs = []
def handle(*_):
    smelt_inner = inner if len(runs) % 2 else smelt.compile(lambda x: (x * 3).cos())
    assert torch.allclose(smelt_inner(x), (x * 3).cos())
    runs.append(1)
    signal.setitimer(signal.ITIMER_REAL, 0.02)  # by itself it might be faster than the handler, which never ended then
signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 0.01)
while len(runs) < 30:
    smelt.reset()
    assert torch.allclose(smelt.compile(program)(x), expected)
    leaf = torch.ones(3, requires_grad=True)
    smelt.compile(program, dynamic=True)(leaf).sum().backward()
    assert torch.allclose(leaf.grad, 2 * torch.cos(torch.full((3,), 2.0)))
signal.setitimer(signal.ITIMER_REAL, 0)
""",
}


@pytest.mark.parametrize("when", _PROGRAMS)
def test_nobody_waits_in_vain(when: str) -> None:
    done = run(_BEGIN + _PROGRAMS[when], warns=False, seconds=600)
    assert done.returncode == 0, done.stdout + done.stderr


_WORKERS = """
import multiprocessing, sys
import torch, smelt

def program(x):
    return (x * 2).sin() + 1

compiled = smelt.compile(program)

def work(number):
    return bool(torch.allclose(compiled(torch.full((4,), float(number))), program(torch.full((4,), float(number)))))

if __name__ == "__main__":
    compiled(torch.ones(4))
    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
        assert pool.map_async(work, range(4)).get(300) == [True] * 4
"""


@pytest.mark.parametrize("how", ["fork", "spawn", "forkserver"])
def test_processes_of_every_kind(how: str, tmp_path: Path) -> None:
    script = tmp_path / "workers.py"
    script.write_text(_WORKERS)
    done = run(_WORKERS, file=str(script), arguments=[how], warns=False, seconds=600)
    assert done.returncode == 0, done.stdout + done.stderr
