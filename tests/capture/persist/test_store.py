"""Captures that outlive the process: used where capturing would yield the same, and nowhere else."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import smelt
from smelt.base.events import collect
from smelt.capture.persist import deserialize, plan_form, serialize
from tests.capture.fake_gpus import Gpus
from tests.capture.generated.grammar import program_of
from tests.capture.generated.loaded import failure_of
from tests.capture.generated.repro import repro
from tests.capture.stored_captures import Worlds, worlds
from tests.processes import run

__all__ = ["worlds"]

X = torch.arange(6.0).reshape(2, 3)
Make = Callable[[ModuleType], tuple[Any, ...]]


def given(module: ModuleType) -> tuple[Any, ...]:
    """The arguments, unless the module makes some of its own."""
    make = vars(module).get("arguments")
    return make() if make is not None else (X.clone(),)


HEAD = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n"

# Programs whose captures are kept, and loaded.
RECALLED = {
    "a function": "def program(x):\n    return torch.sin(x) * 2",
    "helpers and globals": "K = 3\ndef helper(x, k=2):\n    return x * k + K\ndef program(x):\n    return helper(x)",
    "a closure": "def maker(k):\n    def program(x):\n        return x * k\n    return program\nprogram = maker(3)",
    "a module": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
        self.norm = nn.LayerNorm(3)
    def forward(self, x):
        for layer in self.layers:
            x = F.relu(layer(x))
        return self.norm(x)
def program(net, x):
    return net(x)
def arguments():
    return Net(), torch.arange(6.0).reshape(2, 3)
""",
    "a class of results": """
from dataclasses import dataclass
@dataclass
class Output:
    loss: torch.Tensor
    more: dict
    note: str = "kept"
def program(x):
    return Output(x.sum(), {"x": x + 1, "n": [x, 2]})
""",
    "properties, class methods, enums, slots": """
import enum
class Kind(enum.Enum):
    A = 1
    B = 2
class Thing:
    __slots__ = ("k",)
    scale = 2.5
    def __init__(self, k):
        self.k = k
    @property
    def twice(self):
        return self.k * 2
    @classmethod
    def made(cls):
        return cls.scale
    @staticmethod
    def plus(x):
        return x + 1
def program(x, thing, kind):
    return thing.plus(x * thing.twice * Thing.made()) if kind is Kind.A else x
def arguments():
    return torch.ones(2), Thing(3), Kind.A
""",
    "writes to lists, dicts, attributes, globals": """
class Meter:
    pass
seen, count = [], 0
def program(x, meter, table):
    global count
    count += 1
    seen.append(x + 1)
    table["y"] = x * 2
    meter.last = x.sum()
    return len(seen), table, meter.last, count
def arguments():
    return torch.ones(2), Meter(), {"x": 1}
""",
    "a written input": "def program(x):\n    x.add_(1)\n    return x * 2",
    "batch norm in training": """
net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
with torch.no_grad():
    for p in net.parameters():
        p.fill_(0.1)
def program(x):
    return net(x), net[1].running_mean.clone(), net[1].num_batches_tracked.clone()
def arguments():
    return (torch.arange(300.0).reshape(1, 3, 10, 10),)
""",
    "no gradients inside": "def program(x):\n    with torch.no_grad():\n        y = x * 2\n    return y + x",
    "one tensor known by two names": """
class Holder:
    pass
def program(holder):
    holder.a.add_(1)
    return holder.a + holder.b
def arguments():
    holder = Holder()
    holder.a = holder.b = torch.ones(2)
    return (holder,)
""",
    "answers that are cached": """
import functools
class Thing:
    v = 2
@functools.lru_cache
def flag(name, times=1):
    return name == "a"
@functools.cache
def thing(kind):
    return kind()
@functools.cache
def table(n):
    return torch.arange(float(n))
class Holder:
    @functools.lru_cache
    def level(self, k):
        return k * 2
holder = Holder()
def program(x):
    for _ in range(3):
        x = x + table(3) if flag("a", times=2) else x
    return x * thing(Thing).v * holder.level(3)
""",
    "what the machine says": """
def program(x):
    return x * 2 if torch.cuda.is_available() else x * torch.get_num_threads()
""",
    "autocast inside": """
torch.manual_seed(0)
net = nn.Linear(3, 3)
def program(x):
    with torch.autocast("cpu", torch.bfloat16):
        return net(x)
""",
    "keys of an ordered dict": """
from collections import OrderedDict
table = OrderedDict(a=2, b=3)
def program(x):
    for k in table.values():
        x = x * k + 1
    return x
""",
    "a recurrent network": "torch.manual_seed(0)\nnet = nn.LSTM(3, 3)\ndef program(x):\n    return net(x)[0]",
    "a class made in a function": """
def maker():
    class Inner:
        k = 2
        def apply(self, x):
            return x * self.k
    return Inner()
inner = maker()
def program(x):
    return inner.apply(x)
""",
}


@pytest.mark.parametrize("name", RECALLED)
def test_loaded(worlds: Worlds, name: str) -> None:
    first = worlds.run(HEAD + RECALLED[name], given)
    assert (first.loaded, first.graphs) == (0, 1)
    second = worlds.run(HEAD + RECALLED[name], given)
    assert (second.loaded, second.graphs) == (1, 1)


CACHED = "import functools\nK = 2\n@functools.cache\ndef k(a):\n    return K\n#\ndef program(x):\n    return x * k(1)"

# What another process may have otherwise: (program, what is replaced in it, by what).
STALE = {
    "the body of a helper": (
        "def helper(x):\n    return x * 2\ndef program(x):\n    return helper(x)",
        "x * 2",
        "x * 3",
    ),
    "a constant in a function": ("def program(x):\n    return x * 2.0", "2.0", "3.0"),
    "a sign of zero": ("Z = 0.0\ndef program(x):\n    return x.clone().fill_(Z)", "Z = 0.0", "Z = -0.0"),
    "a truth value for a number": ("K = True\ndef program(x):\n    return x * 1, K", "K = True", "K = 1"),
    "a default": ("def helper(x, k=2):\n    return x * k\ndef program(x):\n    return helper(x)", "k=2", "k=3"),
    "a keyword default": ("def f(x, *, k=2):\n    return x * k\ndef program(x):\n    return f(x)", "k=2", "k=3"),
    "a global": ("K = 2\ndef program(x):\n    return x * K", "K = 2", "K = 3"),
    "a global in a dict": ("C = {'k': 2}\ndef program(x):\n    return x * C['k']", "2", "3"),
    "a global in a list": ("C = [1, 2]\ndef program(x):\n    return x * C[1]", "2]", "3]"),
    "a global in a tuple": ("C = (1, (2,))\ndef program(x):\n    return x * C[1][0]", "2,", "3,"),
    "the length of a list": ("C = [1, 2]\ndef program(x):\n    return x * len(C)", "[1, 2]", "[1, 2, 3]"),
    "what a closure holds": (
        "def maker(k):\n    def program(x):\n        return x * k\n    return program\nprogram = maker(2)",
        "maker(2)",
        "maker(3)",
    ),
    "a class attribute": ("class A:\n    k = 2\ndef program(x):\n    return x * A().k", "k = 2", "k = 3"),
    "a float on a class": ("class A:\n    k = 2.5\ndef program(x):\n    return x * A().k", "2.5", "3.5"),
    "an attribute that hides a class's": (
        "class A:\n    k = 2\na = A()\n\ndef program(x):\n    return x * a.k",
        "a = A()\n",
        "a = A()\na.k = 3\n",
    ),
    "a method": (
        "class A:\n    def m(self, x):\n        return x * 2\ndef program(x):\n    return A().m(x)",
        "x * 2",
        "x * 3",
    ),
    "a property": (
        "class A:\n    @property\n    def k(self):\n        return 2\ndef program(x):\n    return x * A().k",
        "return 2",
        "return 3",
    ),
    "a property for a method": (
        "class A:\n    #\n    def k(self):\n        return 2\n"
        "def program(x):\n    return x * 2 if callable(A().k) else x",
        "#",
        "@property",
    ),
    "a static method": (
        "class A:\n    @staticmethod\n    def m(x):\n        return x * 2\ndef program(x):\n    return A.m(x)",
        "x * 2",
        "x * 3",
    ),
    "a base class": (
        "class A:\n    pass\nclass B(object):\n    pass\nb = B()\n"
        "def program(x):\n    return x * 2 if isinstance(b, A) else x + 1",
        "(object)",
        "(A)",
    ),
    "an inherited method": (
        "class A:\n    def m(self, x):\n        return x * 2\nclass B(A):\n    pass\n"
        "def program(x):\n    return B().m(x)",
        "pass",
        "def m(self, x):\n        return x * 3",
    ),
    "an enum": (
        "import enum\nclass E(enum.Enum):\n    A = 2\ndef program(x):\n    return x * E.A.value",
        "A = 2",
        "A = 3",
    ),
    "a decorator": (
        "def twice(f):\n    def w(x):\n        return f(x) * 2\n    return w\n@twice\n"
        "def program(x):\n    return x + 1",
        "f(x) * 2",
        "f(x) * 3",
    ),
    "a decorator that is gone": (
        "def twice(f):\n    def w(x):\n        return f(x) * 2\n    return w\n@twice\ndef h(x):\n    return x + 1\n"
        "def program(x):\n    return h(x)",
        "@twice",
        "",
    ),
    "another function under the name": (
        "def f(x):\n    return x * 2\ndef g(x):\n    return x * 3\nh = f\ndef program(x):\n    return h(x)",
        "h = f",
        "h = g",
    ),
    "a dataclass's default": (
        "from dataclasses import dataclass\n@dataclass\nclass D:\n    k: int = 2\n"
        "def program(x):\n    return x * D().k",
        "= 2",
        "= 3",
    ),
    "two sentinels that become one": (
        "class S:\n    pass\na = S()\nb = S()\ndef program(x):\n    return x * 2 if a is b else x + 1",
        "b = S()",
        "b = a",
    ),
    "one sentinel that becomes two": (
        "class S:\n    pass\na = S()\nb = a\ndef program(x):\n    return x * 2 if a is b else x + 1",
        "b = a",
        "b = S()",
    ),
    "one tensor that becomes two": (
        "a = torch.ones(2)\nb = a\ndef program(x):\n    a.add_(1)\n    return a + b",
        "b = a",
        "b = torch.ones(2)",
    ),
    "a name that is found in the globals by now": (
        "#\ndef program(x):\n    return x * len((1, 2))",
        "#",
        "def len(what):\n    return 5",
    ),
    "whether a parameter has gradients": (
        "net = nn.Linear(3, 3)\nnn.init.ones_(net.weight)\nnn.init.ones_(net.bias)\n\n"
        "def program(x):\n    return net(x)",
        "\n\n",
        "\nnet.requires_grad_(False)\n",
    ),
    "training or not": ("net = nn.Dropout(1.0)\n\ndef program(x):\n    return net(x)", "\n\n", "\nnet.eval()\n"),
    "a hook": (
        "net = nn.ReLU()\n\ndef program(x):\n    return net(x - 3)",
        "\n\n",
        "\nnet.register_forward_hook(lambda m, a, y: y + 1)\n",
    ),
    "a hook on all modules": (
        "net = nn.ReLU()\nimport torch.nn.modules.module as M\n#\ndef program(x):\n    return net(x - 3)",
        "#",
        "net._forward_hooks[7] = lambda m, a, y: y + 1",
    ),
    "the number of layers": (
        "net = nn.Sequential(*[nn.ReLU() for _ in range(2)])\ndef program(x):\n    return net(x - 3) + len(net)",
        "range(2)",
        "range(3)",
    ),
    "the class of a layer": (
        "net = nn.Sequential(nn.ReLU())\ndef program(x):\n    return net(x - 3)",
        "nn.ReLU()",
        "nn.Sigmoid()",
    ),
    "a dtype": ("D = torch.float16\ndef program(x):\n    return x.to(D)", "float16", "float64"),
    "a string": ("S = 'relu'\ndef program(x):\n    return getattr(F, S)(x - 3)", "'relu'", "'silu'"),
    "a slot of a class": (
        "class A:\n    __slots__ = ('k',)\na = A()\na.k = 2\ndef program(x):\n    return x * a.k",
        "a.k = 2",
        "a.k = 3",
    ),
    "a function's attribute": (
        "def f(x):\n    return x * f.k\nf.k = 2\ndef program(x):\n    return f(x)",
        "f.k = 2",
        "f.k = 3",
    ),
    "the order of a dict": (
        "T = {'a': 1, 'b': 2}\ndef program(x):\n    return x * next(iter(T.values()))",
        "{'a': 1, 'b': 2}",
        "{'b': 2, 'a': 1}",
    ),
    "an answer that is cached": (
        CACHED,
        "K = 2",
        "K = 3",
    ),
    "the type of an answer that is cached": (
        CACHED,
        "K = 2",
        "K = 2.0",
    ),
    "another cached function": (
        CACHED,
        "#",
        "k = functools.cache(lambda a: 5)",
    ),
    "a function that is cached no more": (
        CACHED,
        "#",
        "def k(a):\n    return 5",
    ),
    "what a cached function has for the answer of another": (
        CACHED.replace("x * k(1)", "x * l(k(1))").replace("#", "L = 3\nl = functools.cache(lambda a: a + L)\n"),
        "L = 3",
        "L = 4",
    ),
    "what an object holds that is a cached answer": (
        CACHED.replace("K = 2", "class A:\n    pass\nK = A()\nK.v = 2").replace("k(1)", "k(1).v"),
        "v = 2",
        "v = 3",
    ),
    "what a cached function writes, the first time that it is called": (
        "import functools\nG = 1\nk = functools.cache(lambda: globals().update(G=5) or 2)\nk()\nG = 1\n#\n"
        "def program(x):\n    return x * k() * G",
        "#",
        "k.cache_clear()",
    ),
    "the types of keys of an ordered dict": (
        "from collections import OrderedDict\nD = OrderedDict({1: 2})\n"
        "def program(x):\n    for k in D:\n        x = x.long() * k\n    return x",
        "{1",
        "{1.0",
    ),
    "how many threads there are": (
        "torch.set_num_threads(2)\n#\ndef program(x):\n    return x * torch.get_num_threads()",
        "#",
        "torch.set_num_threads(1)",
    ),
    "what a registry holds": (
        "R = {}\ndef f(x):\n    return x * 2\ndef g(x):\n    return x * 3\nR['f'] = f\n"
        "def program(x):\n    return R['f'](x)",
        "R['f'] = f",
        "R['f'] = g",
    ),
}


@pytest.mark.parametrize("name", STALE)
def test_stale(worlds: Worlds, name: str) -> None:
    text, before, after = STALE[name]
    changed = text.replace(before, after, 1)
    assert changed != text
    assert worlds.run(HEAD + text, given).loaded == 0
    assert worlds.run(HEAD + text, given).loaded == 1  # or this would test nothing
    assert worlds.run(HEAD + changed, given).loaded == 0


MODES: dict[str, Callable[[], Any]] = {
    "no gradients": torch.no_grad,
    "inference mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "a default device": lambda: torch.device("cpu"),
}


@pytest.mark.parametrize("name", MODES)
def test_each_mode_has_its_own(worlds: Worlds, name: str) -> None:
    text = HEAD + "w = torch.ones(3, 3, requires_grad=True)\ndef program(x):\n    return x @ w"
    assert worlds.run(text, given).loaded == 0
    with MODES[name]():
        assert worlds.run(text, given).loaded == 0
        assert worlds.run(text, given).loaded == 1
    worlds.run(text, given)
    assert worlds.run(text, given).loaded == 1


# What is looked at and is another in another process without any guard's telling.
TRANSIENT = {
    "where an object lies": "class A:\n    pass\ndef program(x):\n    return x * (id(A) * 0 + 2)",
    "an answer that is cached, asked for inside a block": (
        "import functools\n@functools.lru_cache\ndef k():\n    return torch.is_grad_enabled()\n"
        "def program(x):\n    with torch.no_grad():\n        return x * 2 if k() else x + 1"
    ),
    "a break": "def program(x):\n    print('')\n    return x * 2",
}


@pytest.mark.parametrize("name", TRANSIENT)
def test_not_kept(worlds: Worlds, name: str) -> None:
    worlds.run(HEAD + TRANSIENT[name], given)
    assert worlds.run(HEAD + TRANSIENT[name], given).loaded == 0


def test_another_machine(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    text = HEAD + "def program(x):\n    return x * 2 if torch.cuda.is_available() else x + 1"
    worlds.run(text, given)
    there = not torch.cuda.is_available()
    with monkeypatch.context() as alone:
        alone.setattr(torch._C, "_cuda_getDeviceCount", lambda: int(there), raising=False)
        alone.setattr(torch.cuda, "_is_compiled", lambda: there)
        alone.setattr(torch.cuda, "_nvml_based_avail", lambda: False)
        assert torch.cuda.is_available() is there
        assert worlds.run(text, given).loaded == 0
    worlds.run(text, given)
    assert worlds.run(text, given).loaded == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_another_current_gpu(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is one GPU, their number is asked for once; where there are several, the current one at each call."""
    text = HEAD + "def program(x):\n    return x * 2 + torch.cuda.current_device()"
    outcomes = []
    for count, current in ((1, 0), (1, 0), (2, 1), (2, 1), (2, 0), (1, 0)):
        with monkeypatch.context() as alone:
            Gpus(alone, count).current = current
            ran = worlds.run(text, given)
            outcomes.append(ran.loaded)
            assert torch.equal(ran.result, X * 2 + current)
    assert outcomes[0] == 0 and outcomes[1] == 1 and outcomes[2] == 0


def test_no_cached_function_is_called_that_the_program_would_not_call(worlds: Worlds) -> None:
    text = "import functools\nK, calls = 2, []\n@functools.cache\ndef k(a):\n    calls.append(a)\n    return a\n"
    text += "def program(x):\n    return x * k(K) if K < 5 else x"
    worlds.run(HEAD + text, given)
    assert worlds.run(HEAD + text, given).loaded == 1
    worlds.run(HEAD + text.replace("K, calls = 2", "K, calls = 7"), given)
    assert sys.modules["kept_world"].calls == []


def test_other_compiled_functions_are_not_kept(worlds: Worlds) -> None:
    text = HEAD + "import smelt\n@smelt.compile(backend='eager')\ndef f(x):\n    return x * 2\n"
    text += "def program(x):\n    return f(x)"
    worlds.run(text, given)
    assert worlds.run(text, given).loaded == 0


def test_a_size_that_changes_after_recalling_becomes_a_symbol(worlds: Worlds) -> None:
    text = HEAD + "def program(x):\n    return x * 2"
    worlds.run(text, lambda module: (torch.ones(2, 3),))

    def twice(module: ModuleType) -> tuple[Any, ...]:
        return (torch.ones(2, 3),)

    found = worlds.run(text, twice)
    assert found.loaded == 1
    module = sys.modules["kept_world"]
    from smelt.capture import CompiledRegion
    from tests.capture.stored_captures import Plainly

    smelt.reset()
    region = CompiledRegion(Plainly())
    for size in (2, 5, 7, 9):
        assert torch.equal(region.call(module.program, torch.ones(size, 3)), torch.full((size, 3), 2.0))
    assert smelt.counters["captures_loaded"] == 1 and smelt.counters["graphs"] == 2


def test_a_dimension_that_is_marked_is_not_loaded(worlds: Worlds) -> None:
    text = HEAD + "def program(x):\n    return x * 2"
    worlds.run(text, given)

    def marked(module: ModuleType) -> tuple[Any, ...]:
        x = X.clone()
        smelt.mark_dynamic(x, 0)
        return (x,)

    assert worlds.run(text, marked).loaded == 0


def test_whoever_watches_sees_it_captured(worlds: Worlds) -> None:
    text = HEAD + "def program(x):\n    return x * 2"
    worlds.run(text, given)
    with collect() as seen:
        assert worlds.run(text, given).loaded == 0
    assert any(event.channel == "graph" for event in seen)


def test_a_changed_file_is_told_by_its_time(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    text = HEAD + "def program(x):\n    return x * 2"
    worlds.run(text, given)
    assert worlds.run(text, given).loaded == 1
    monkeypatch.setattr(deserialize, "stamp_of", lambda file: [1, 2])
    assert worlds.run(text, given).loaded == 0


def test_damaged_records_are_captured_anew(worlds: Worlds) -> None:
    text = HEAD + "def program(x):\n    return x * 2"
    worlds.run(text, given)
    from smelt.ir.artifact_file.container import manifest_in, unpack
    from smelt.runtime.cache import CacheFile, open_store

    store = open_store()
    assert store is not None
    (path,) = store.directory.glob("*.smelt")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert worlds.run(text, given).loaded == 0
    assert worlds.run(text, given).loaded == 1
    # One that is whole, and says something else.
    key = manifest_in(unpack(whole))["key"]
    nonsense = {"objects": [["module", "os"]], "roots": [[0]], "files": []}
    for stored in ({}, *({"capture": each} for each in ({}, [], "nothing", None, nonsense))):
        assert store.put(key, CacheFile(stored))
        assert worlds.run(text, given).loaded == 0
        assert worlds.run(text, given).loaded == 1


def test_a_file_can_name_no_code_to_run(worlds: Worlds) -> None:
    for function in (os.system, eval, exec, print, subprocess.run, type(test_stale), type, test_stale):
        assert not plan_form.may_be_step(function)
    for function in (list, dict, list.extend, object.__new__, serialize.refuse):
        assert plan_form.may_be_step(function)


SCRIPT = """
import torch, smelt
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.lin, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)
    def forward(self, x):
        return {"y": torch.relu(self.norm(self.lin(x))), "n": 1}

net, twin = Net().double(), Net().double()
compiled = smelt.compile(net)
x = torch.sin(torch.arange(32.0)).reshape(4, 8).double()
for model in (compiled, twin):
    for _ in range(3):
        loss = model(x)["y"].square().sum()
        loss.backward()
    with torch.no_grad():
        model.eval()(x), model.train()
for one, two in zip(net.parameters(), twin.parameters(), strict=True):
    torch.testing.assert_close(one.grad, two.grad)
torch.testing.assert_close(net.norm.running_var, twin.norm.running_var)
wanted = torch.autograd.grad(twin(x)["y"].sum(), twin.lin.weight, create_graph=True)[0].norm()
got = torch.autograd.grad(compiled(x)["y"].sum(), net.lin.weight, create_graph=True)[0].norm()
torch.testing.assert_close(got, wanted)
got.backward(), wanted.backward()
torch.testing.assert_close(net.lin.weight.grad, twin.lin.weight.grad)
print(smelt.counters["captures_loaded"], smelt.counters["graphs"], smelt.counters["cache_misses"])
"""


def test_two_processes(tmp_path: Path) -> None:
    """All the way, training, evaluation and second derivatives: the second process captures and compiles nothing."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    environment = {"SMELT_CACHE": "1", "SMELT_CACHE_DIR": str(tmp_path / "cache")}
    done = [run(SCRIPT, file=str(script), environment=environment) for _ in range(2)]
    assert [each.returncode for each in done] == [0, 0], done
    said = [each.stdout.split() for each in done]
    assert said[0][0] == "0" and said[0][1] == said[1][1]
    assert said[1][0] >= "1"


@pytest.mark.parametrize("seeds", [range(60), pytest.param(range(60, 300), marks=pytest.mark.slow)], ids=str)
def test_programs_that_are_loaded_are_what_python_makes_of_them(seeds: range) -> None:
    loaded = 0
    for seed in seeds:
        failure, count = failure_of(program_of(seed))
        assert failure is None, f"{failure}\n\n{repro(program_of(seed))}"
        loaded += count
    assert loaded > len(seeds) // 3  # or nothing would be tried: programs that raise, or return iterators, are not kept
