"""Signal handlers and finalizers of the program, due at chosen steps of the compiler: they run in the program's state.

Each program runs in a process of its own. The signal arrives on its main thread, at the step that is named.
"""

import pytest

from tests.processes import PLAIN, run

_BEGIN = """
import gc, os, signal, sys, warnings
import torch, smelt

warnings.simplefilter("error")  # of the compiler too: what a handler does is no fault of its own
armed, handled, waited, collects = [], [], [], False

def program(x):
    return (x * 2).sin() + 1

class Garbage:
    def __init__(self):
        self.itself = self
    def __del__(self):
        handle()

def arrive():
    before = len(handled)
    if collects:
        Garbage()
        gc.set_threshold(1)
    else:
        signal.raise_signal(signal.SIGUSR1)
    made = [[] for _ in range(10)]
    waited.append(len(handled) == before)

def signalling(holder, name):
    \"\"\"Have the signal arrive when a function is next called while `armed` says so.\"\"\"
    original = getattr(holder, name)
    def step(*given, **named):
        if armed:
            armed.clear()
            arrive()
        return original(*given, **named)
    setattr(holder, name, step)

count = torch.zeros(())
inner = smelt.compile(lambda x: (x * 3).cos())

def handle():
    count.add_(1)
    y = torch.ones(2) * 3
    assert type(y) is torch.Tensor and y.tolist() == [3.0, 3.0]
    for each in (inner, smelt.compile(lambda x: (x * 3).cos())):
        assert torch.allclose(each(x), (x * 3).cos())
    handled.append((torch._C._len_torch_dispatch_stack(), torch.is_inference_mode_enabled(), gc.isenabled()))

signal.signal(signal.SIGUSR1, lambda *_: handle())
x = torch.arange(8.0)
expected = program(x)

def train(compiled):
    leaf = torch.ones(3, requires_grad=True)
    compiled(leaf).sum().backward()
    assert torch.allclose(leaf.grad, 2 * torch.cos(torch.full((3,), 2.0)))
"""

_STEPS = {
    "capture": ("smelt.capture.driver.engine", "capture", "assert torch.allclose(smelt.compile(program)(x), expected)"),
    "a trace": ("smelt.meta.fake_tensor", "Recorder.__torch_dispatch__", "train(smelt.compile(program))"),
    "code generation": (
        "smelt.codegen.llvm.compile",
        "_object",
        "assert torch.allclose(smelt.compile(program)(x), expected)",
    ),
    "a backward": ("smelt.runtime.autograd.differentiable", "Differentiable._make", "train(smelt.compile(program))"),
    "new sizes": ("smelt.pipeline.sizes.dispatch", "SizedGraph._make", "train(smelt.compile(program, dynamic=True))"),
    "after a break": (
        "smelt.capture.driver.engine",
        "Engine._planned",
        "assert torch.allclose(smelt.compile(broken)(x), expected)",
    ),
    "a compiled backward": (
        "smelt.pipeline.backward.compiled_backward",
        "CompiledBackwards._made",
        "smelt.config.compiled_autograd = True\ntrain(program)",
    ),
    "aot_function": (
        "smelt.autograd.aot",
        "_Stage.build",
        "train(smelt.aot_function(program, lambda module, inputs: module.forward))",
    ),
}


@pytest.mark.parametrize("what", ["a handler", "a finalizer"])
@pytest.mark.parametrize("step", _STEPS)
def test_the_program_s_code_runs_once_its_state_is_back(what: str, step: str) -> None:
    module, name, call = _STEPS[step]
    _succeeds(f"""{_BEGIN}
def broken(x):
    y = x * 2
    smelt.graph_break()
    return y.sin() + 1

{call}
handled.clear()
count.zero_()
smelt.reset()
import importlib
holder = importlib.import_module({module!r})
*path, name = {name!r}.split(".")
for each in path:
    holder = getattr(holder, each)
signalling(holder, name)
armed.append(1)
collects = {what == "a finalizer"}
{call}
assert handled == [(0, False, True)], handled
assert waited == [True]
assert count.item() == 1
{call}
""")


def test_what_a_handler_raises_is_the_program_s() -> None:
    """It is no fault of the compiler, and what was compiled meanwhile stays."""
    _succeeds(f"""{_BEGIN}
from smelt.meta import fake_tensor
def handle(*_):
    raise TimeoutError("now")
signal.signal(signal.SIGUSR1, handle)
signalling(fake_tensor.Recorder, "__torch_dispatch__")
compiled = smelt.compile(program)
armed.append(1)
try:
    compiled(x)
except TimeoutError as error:
    assert str(error) == "now"
else:
    raise AssertionError("it was lost")
graphs = smelt.counters["graphs"]
assert graphs == 1
assert torch.allclose(compiled(x), expected)
assert smelt.counters["graphs"] == graphs
""")


def test_an_interrupt_ends_a_compilation() -> None:
    _succeeds(f"""{_BEGIN}
from smelt.meta import fake_tensor
signal.signal(signal.SIGUSR1, signal.default_int_handler)
signalling(fake_tensor.Recorder, "__torch_dispatch__")
armed.append(1)
try:
    smelt.compile(program)(x)
except KeyboardInterrupt:
    assert not waited, "it came too late"
else:
    raise AssertionError("it was lost")
assert torch.allclose(smelt.compile(program)(x), expected)
""")


def test_a_handler_compiles_while_the_compiler_is_imported() -> None:
    done = run(
        f"""{_BEGIN}
class Arriving:
    def find_spec(self, name, path, target=None):
        if name in wanted:
            wanted.remove(name)
            arrive()

wanted = {{"smelt.meta.rules.pointwise", "smelt.pipeline.compile", "smelt.codegen.llvm.link"}}
assert not wanted & sys.modules.keys()
sys.meta_path.insert(0, Arriving())
assert torch.allclose(smelt.compile(program)(x), expected)
assert not wanted
assert waited == [True] * 3
assert len(handled) == 1  # as of any signal that arrives again before it is handled
""",
        begin=PLAIN,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_backend_that_forks_or_sets_handlers() -> None:
    """A child has its handlers at once, as it may never come back; a handler that was set meanwhile stays."""
    _succeeds(f"""{_BEGIN}
others = []
def backend(module, inputs):
    child = os.fork()
    if not child:
        signal.raise_signal(signal.SIGUSR1)
        os._exit(len(handled) - 1)
    assert os.waitpid(child, 0)[1] == 0
    before = signal.signal(signal.SIGUSR1, lambda *_: others.append(1))
    signal.raise_signal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)
    signal.signal(signal.SIGUSR2, lambda *_: others.append(2))
    return module.forward

signal.signal(signal.SIGUSR2, signal.getsignal(signal.SIGUSR1))
assert torch.allclose(smelt.compile(program, backend=backend)(x), expected)
assert others == [1] and not handled
for number in (signal.SIGUSR1, signal.SIGUSR2):
    signal.raise_signal(number)
assert others == [1, 2] and len(handled) == 1
""")


@pytest.mark.parametrize("kind", ["collector", "method of the collector", "handler", "finalizer"])
def test_what_python_calls_in_the_middle_is_no_part_of_the_program(kind: str) -> None:
    """It is not compiled with it, and need not be one graph where the program must be."""
    _succeeds(f"""
import gc, signal
import torch, smelt

ran = []
def aside(*_):
    ran.append(torch.ones(2).tolist())  # a graph break, if it is captured

class Watches:
    def collected(self, *_):
        aside()
    def __del__(self):
        aside()

def program(x):
    y = (x * 2).sin()
    if kind == "handler":
        signal.raise_signal(signal.SIGUSR1)
    elif kind == "finalizer":
        del watches[:]
    else:
        gc.collect()
    return y + 1

kind = {kind!r}
watches = []
x = torch.arange(8.0)
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
expected = smelt.compile(program)(x)
of_program = {{name: smelt.counters[name] for name in ("graphs", "graph_breaks")}}
smelt.reset()
if kind == "handler":
    signal.signal(signal.SIGUSR1, aside)
elif kind == "finalizer":
    watches.append(Watches())
else:
    gc.callbacks.append(aside if kind == "collector" else Watches().collected)
assert torch.equal(smelt.compile(program)(x), expected)
gc.callbacks.clear()
assert ran and ran[0] == [1.0, 1.0], ran
assert of_program == {{name: smelt.counters[name] for name in of_program}}
""")


def _succeeds(script: str) -> None:
    done = run(script)
    assert done.returncode == 0, done.stdout + done.stderr
