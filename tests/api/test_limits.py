"""First calls where something runs short: frames, stack, memory. They give eager's answers, and the process lives.

Each case in a process of its own, because what goes wrong here ends it.
"""

import sys

import pytest

from tests.processes import run, run_new

_BEFORE = """
import sys, threading, warnings
import torch
import smelt

warnings.simplefilter("always")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2))
x = torch.randn(3, 4)

def function(x):
    return (x.sin() * 2 + x).softmax(-1)

def broken(x):
    y = x.sin()
    smelt.graph_break()
    return y * 2

def same(found, expected):
    torch.testing.assert_close(found, expected)
"""

_DEEP = """
def deep(levels, call):
    return call() if levels == 0 else deep(levels - 1, call)

def at(left, call):
    depth, frame = 0, sys._getframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    return deep(sys.getrecursionlimit() - depth - left, call)
"""

CASES = {
    "first calls near the recursion limit": _DEEP
    + """
for left in (900, 500, 200, 100, 60, 30, 20, 12):
    for original in (function, broken, model):
        smelt.reset()
        compiled = smelt.compile(original)
        same(at(left, lambda: compiled(x)), original(x))
        same(at(left, lambda: compiled(x)), original(x))
    assert smelt.counters["graphs"] > 0
""",
    "training near the recursion limit": _DEEP
    + """
def step(call):
    model.zero_grad()
    call(x).sum().backward()
    return [p.grad.clone() for p in model.parameters()]

expected = step(model)
for left in (500, 100, 50):
    smelt.reset()
    compiled = smelt.compile(model)
    same(at(left, lambda: step(compiled)), expected)
assert smelt.counters["joint_graphs"] > 0
""",
    "recursion ends where it would have ended": """
def counted(x, levels):
    depth[0] = max(depth[0], levels)
    return again(x + 1, levels + 1)

@smelt.disable
def again(x, levels):
    return called[0](x, levels)

def reached(function):
    depth[0] = 0
    called[0] = function
    try:
        function(x, 0)
    except RecursionError:
        return depth[0]
    raise AssertionError("no RecursionError")

depth, called = [0], [counted]
for limit in (1000, 300):
    sys.setrecursionlimit(limit)
    eager = reached(counted)
    compiled = reached(smelt.compile(counted))
    assert 0.5 * eager <= compiled <= 1.05 * eager, (eager, compiled)
    same(smelt.compile(function)(x), function(x))
""",
    "limits that the program sets": _DEEP
    + """
def changing(x):
    sys.setrecursionlimit(sys.getrecursionlimit() + 100)
    return x + 1

compiled = smelt.compile(changing)
for _ in range(5):
    same(at(60, lambda: compiled(x)), x + 1)
before = sys.getrecursionlimit()
assert before == 1500, before

def down(levels):
    return 0 if levels == 0 else 1 + down(levels - 1)

assert down(before - 50) == before - 50
try:
    down(before + 50)
except RecursionError:
    pass
else:
    raise AssertionError("the limit is another than was set")
""",
}
for _kilobytes in (128, 256, 384, 512, 1024):
    CASES[f"a thread with {_kilobytes} KiB of stack"] = f"""
threading.stack_size({_kilobytes} * 1024)
compiled, known = smelt.compile(model), smelt.compile(function)
same(known(x), function(x))
found = []

def work():
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        result = compiled(x)
        result.sum().backward()
        found.extend([result, known(x), known(x[:2]), [str(each.message) for each in warned]])

thread = threading.Thread(target=work)
thread.start()
thread.join()
same(found[0], model(x))
same(found[1], function(x))
same(found[2], function(x[:2]))
assert ({_kilobytes} > 256) or any("KiB of stack" in text for text in found[3]), found[3]
assert ({_kilobytes} <= 256) or not any("KiB of stack" in text for text in found[3]), found[3]
same(compiled(x), model(x))  # this thread has stack enough
assert smelt.counters["graphs"] > 1
"""


def _run(script: str, *, new: bool = False) -> None:
    script = _BEFORE + script + "\nprint('right')"
    done = run_new(script) if new else run(script, warns=False)
    assert done.stdout.splitlines()[-1:] == ["right"], (done.returncode, done.stderr[-4000:])


@pytest.mark.parametrize("name", CASES)
def test_it_goes_on(name: str) -> None:
    _run(CASES[name], new=name.startswith("first calls"))  # to the last frame: there are some below a forked script


@pytest.mark.skipif(sys.platform != "linux", reason="how much memory is left is known on Linux alone")
@pytest.mark.parametrize("megabytes", [40, 150, 400])
@pytest.mark.parametrize("limit", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_memory_is_short(limit: str, megabytes: int) -> None:
    _run(f"""
import resource
field = 0 if {limit!r} == "RLIMIT_AS" else 5
expected = model(x), function(x)
expected[0].sum().backward()
gradient, model[0].weight.grad = model[0].weight.grad, None
compiled, compiled_function = smelt.compile(model), smelt.compile(function)
with open("/proc/self/statm") as file:
    used = int(file.read().split()[field]) * resource.getpagesize()
hard = resource.getrlimit(resource.{limit})[1]
resource.setrlimit(resource.{limit}, (used + ({megabytes} << 20), hard))
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    result, other = compiled(x), compiled_function(x)
    result.sum().backward()
resource.setrlimit(resource.{limit}, (hard, hard))
same([result, other, model[0].weight.grad], [*expected, gradient])
assert any({limit!r} in str(each.message) for each in warned), [str(each.message) for each in warned]
""")


@pytest.mark.skipif(sys.platform != "linux", reason="how much memory is left is known on Linux alone")
def test_memory_is_short_at_the_first_backward() -> None:
    _run("""
import resource
model(x).sum().backward()
expected, model[0].weight.grad = model[0].weight.grad, None
result = smelt.compile(model)(x).sum()
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
hard = resource.getrlimit(resource.RLIMIT_AS)[1]
resource.setrlimit(resource.RLIMIT_AS, (used + (60 << 20), hard))
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    result.backward()
resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
same(model[0].weight.grad, expected)
assert any("RLIMIT_AS" in str(each.message) for each in warned), [str(each.message) for each in warned]
""")
