# ruff: noqa: E501
"""Attacks on kept captures: what a capture relied on that no guard, digest or key tells of, told from eager's answer."""

import builtins
import math
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import smelt
from smelt.capture import CompiledRegion
from tests.capture.persist.test_store import HEAD, given
from tests.capture.stored_captures import Plainly, Worlds, worlds
from tests.processes import run, run_new

__all__ = ["worlds"]

# (program, what is replaced in it, by what): the third process has it otherwise, with nothing of the code changed.
STALE = {
    "a class that is registered with another": (
        "import abc\nclass Base(abc.ABC):\n    pass\nclass B:\n    pass\nb = B()\n#\n"
        "def program(x):\n    return x * 2 if isinstance(b, Base) else x + 1",
        "#",
        "Base.register(B)",
    ),
    "a class that is registered with one of collections": (
        "import collections.abc as C\nclass B:\n    pass\nb = B()\n#\n"
        "def program(x):\n    return x * 2 if isinstance(b, C.Sequence) else x + 1",
        "#",
        "C.Sequence.register(B)",
    ),
    "a metaclass that answers for instances": (
        "K = 0\nclass M(type):\n    def __instancecheck__(cls, x):\n        return K > 0\nclass A(metaclass=M):\n    pass\n"
        "class B:\n    pass\nb = B()\ndef program(x):\n    return x * 2 if isinstance(b, A) else x + 1",
        "K = 0",
        "K = 1",
    ),
    "a subclass hook": (
        "import abc\nK = 0\nclass A(abc.ABC):\n    @classmethod\n    def __subclasshook__(cls, x):\n        return K > 0\n"
        "class B:\n    pass\nb = B()\ndef program(x):\n    return x * 2 if isinstance(b, A) else x + 1",
        "K = 0",
        "K = 1",
    ),
    "a hashable class by collections": (
        "import collections.abc as C\nclass B:\n    pass\nb = B()\n#\n"
        "def program(x):\n    return x * 2 if isinstance(b, C.Sized) else x + 1",
        "#",
        "B.__len__ = lambda self: 3",
    ),
    "a protocol that a class meets": (
        "import typing\n@typing.runtime_checkable\nclass P(typing.Protocol):\n    def scale(self): ...\n"
        "class B:\n    pass\nb = B()\n#\ndef program(x):\n    return x * 2 if isinstance(b, P) else x + 1",
        "#",
        "B.scale = lambda self: 1",
    ),
    "a protocol that an object meets": (
        "import typing\n@typing.runtime_checkable\nclass P(typing.Protocol):\n    k: int\n"
        "class B:\n    pass\nb = B()\n#\ndef program(x):\n    return x * 2 if isinstance(b, P) else x + 1",
        "#",
        "b.k = 1",
    ),
    "an object that can be called": (
        "class B:\n    pass\nb = B()\n#\ndef program(x):\n    return x * 2 if callable(b) else x + 1",
        "#",
        "B.__call__ = lambda self: 3",
    ),
    "a new object that can be called": (
        "class B:\n    pass\n#\ndef program(x):\n    return x * 2 if callable(B()) else x + 1",
        "#",
        "B.__call__ = lambda self: 3",
    ),
    "what a base between has": (
        "class A:\n    def m(self, x):\n        return x * 2\nclass B(A):\n    pass\nclass C(B):\n"
        "    def m(self, x):\n        return super().m(x)\n#\ndef program(x):\n    return C().m(x)",
        "#",
        "B.m = lambda self, x: x * 3",
    ),
    "what a base between has, of an object": (
        "class A(nn.Module):\n    def forward(self, x):\n        return x * 2\nclass B(A):\n    pass\nclass C(B):\n"
        "    def forward(self, x):\n        return super().forward(x)\n#\nc = C()\ndef program(x):\n    return c(x)",
        "#",
        "B.forward = lambda self, x: x * 3",
    ),
    "what no base has": (
        "class A:\n    pass\nclass C(A):\n    def m(self, x):\n"
        "        return super().m(x) if hasattr(super(), 'm') else x * 2\n#\ndef program(x):\n    return C().m(x)",
        "#",
        "A.m = lambda self, x: x * 3",
    ),
    "what an enum's member has besides its value": (
        "import enum\nK = 2\nclass E(enum.Enum):\n    def __new__(cls, label):\n        made = object.__new__(cls)\n"
        "        made._value_ = label\n        made.k = K\n        return made\n    A = 'a'\ne = E.A\n"
        "def program(x):\n    return x * e.k",
        "K = 2",
        "K = 3",
    ),
    "how many members an enum has": (
        "import enum\nE = enum.Enum('E', 'A B', module=__name__)\ndef program(x):\n    return x * len(E)",
        "'A B'",
        "'A B C'",
    ),
    "which members an enum has": (
        "import enum\nE = enum.Enum('E', 'A B', module=__name__)\n"
        "def program(x):\n    return x * sum(e.value for e in E)",
        "'A B'",
        "'A B C'",
    ),
    "which member an enum has for a value": (
        "import enum\nE = enum.Enum('E', 'A B', module=__name__)\n"
        "def program(x):\n    return x * 2 if E(1).name == 'A' else x + 1",
        "'A B'",
        "'B A'",
    ),
    "the value of a member of an enum by its name": (
        "import enum\nE = enum.Enum('E', {'A': 2}, module=__name__)\ndef program(x):\n    return x * E['A'].value",
        "2",
        "3",
    ),
    "the value of an alias in an enum": (
        "import enum\nE = enum.Enum('E', {'A': 2, 'B': 3}, module=__name__)\nK = 'A'\n"
        "def program(x):\n    return x * getattr(E, K).value",
        "{'A': 2, 'B': 3}",
        "{'A': 3, 'B': 2}",
    ),
    "a flag": (
        "import enum\nclass E(enum.Flag):\n    A = 1\n    B = 2\nf = E.A\n"
        "def program(x):\n    return x * 2 if E.A in f else x + 1",
        "f = E.A",
        "f = E.B",
    ),
    "the order of fields": (
        "from collections import namedtuple\nP = namedtuple('P', 'a b')\np = P(2, 3)\ndef program(x):\n    return x * p.a",
        "'a b'",
        "'b a'",
    ),
    "the order of fields of a new one": (
        "from collections import namedtuple\nP = namedtuple('P', 'a b')\ndef program(x):\n    return x * P(2, 3).a",
        "'a b'",
        "'b a'",
    ),
    "the default of a field": (
        "from collections import namedtuple\nP = namedtuple('P', 'a b', defaults=(2,))\n"
        "def program(x):\n    return x * P(1).b",
        "(2,)",
        "(3,)",
    ),
    "a named tuple with an order of its own": (
        "from collections import namedtuple\nclass P(namedtuple('P', 'a b')):\n    __slots__ = ()\np = P(2, 3)\n#\n"
        "def program(x):\n    for k in p:\n        x = x * k + 1\n    return x",
        "#",
        "P.__iter__ = lambda self: iter((self[1], self[0]))",
    ),
    "an operator of PyTorch's": (
        "op = torch.ops.aten.add.Tensor\ndef program(x):\n    return op(x, x)",
        "aten.add.Tensor",
        "aten.mul.Tensor",
    ),
    "an operator of PyTorch's, any overload": (
        "op = torch.ops.aten.add\ndef program(x):\n    return op(x, x)",
        "aten.add",
        "aten.mul",
    ),
    "an operator in a table": (
        "ops = {'o': torch.ops.aten.relu.default}\ndef program(x):\n    return ops['o'](x - 3)",
        "aten.relu.default",
        "aten.neg.default",
    ),
    "whose globals a decorated function has": (
        "import functools, types\nsource = '''\nimport functools\ndef deco(f):\n    @functools.wraps(f)\n"
        "    def w(x):\n        return f(x) * K\n    return w\n'''\nimport sys\n"
        "def made(name, k):\n    m = sys.modules[name] = types.ModuleType(name)\n    m.K = k\n    exec(source, vars(m))\n"
        "    return m\none, two = made('kept_one', 2), made('kept_two', 3)\n@one.deco\ndef h(x):\n    return x + 1\n"
        "def program(x):\n    return h(x)",
        "@one.deco",
        "@two.deco",
    ),
    "whose globals a method has": (
        "import types, sys\nsource = '''\ndef forward(self, x):\n    return x * K\n'''\n"
        "def made(name, k):\n    m = sys.modules[name] = types.ModuleType(name)\n    m.K = k\n    exec(source, vars(m))\n"
        "    m.forward.__module__ = __name__\n    return m\none, two = made('kept_one', 2), made('kept_two', 3)\n"
        "class A(nn.Module):\n    forward = one.forward\na = A()\ndef program(x):\n    return a(x)",
        "= one.forward",
        "= two.forward",
    ),
    "the name of a class": (
        "class A:\n    pass\n#\ndef program(x):\n    return x * len(A.__name__)",
        "#",
        "A.__name__ = 'Abcd'",
    ),
    "how a class is worded": (
        "class A:\n    pass\n#\ndef program(x):\n    return x * 2, str(A)",
        "#",
        "A.__qualname__ = 'Abcd'",
    ),
    "where a function stands": (
        "#\ndef f(x):\n    return x\ndef program(x):\n    return f(x) * f.__code__.co_firstlineno",
        "#",
        "#\n\n",
    ),
    "a pattern for sequences": (
        "import collections.abc as C\nclass B:\n    def __len__(self):\n        return 1\n    def __getitem__(self, k):\n"
        "        if k:\n            raise IndexError\n        return 5\nb = B()\n#\ndef program(x):\n    match b:\n"
        "        case []:\n            return x\n        case [*_]:\n            return x * 3\n        case _:\n"
        "            return x + 1",
        "#",
        "C.Sequence.register(B)",
    ),
    "how an object is hashed": (
        "class A:\n    pass\na, b = A(), A()\nT = {a: 2}\n#\ndef program(x):\n    return x * 2 if b in T else x + 1",
        "#",
        "A.__hash__ = lambda self: 1\nA.__eq__ = lambda self, other: True\nT = {a: 2}",
    ),
    "a descriptor that hides attributes": (
        "class D:\n    def __get__(self, a, b=None):\n        return 3\nclass A:\n    k = D()\na = A()\na.__dict__['k'] = 2\n"
        "#\ndef program(x):\n    return x * a.k",
        "#",
        "D.__set__ = lambda *a: None",
    ),
    "an attribute that becomes a descriptor": (
        "class D:\n    k = 2\nclass A:\n    d = D()\na = A()\n#\ndef program(x):\n    return x * a.d.k",
        "#",
        "class O:\n    k = 3\nD.__get__ = lambda *a: O",
    ),
    "a metaclass's attribute": (
        "class M(type):\n    pass\nclass A(metaclass=M):\n    k = 2\n#\ndef program(x):\n    return x * A.k",
        "#",
        "M.k = property(lambda cls: 3)",
    ),
    "the truth of a class": (
        "class M(type):\n    pass\nclass A(metaclass=M):\n    k = 2\n#\ndef program(x):\n    return x * 2 if A else x + 1",
        "#",
        "M.__bool__ = lambda cls: False",
    ),
    "the text of a member": (
        "import enum\nclass E(enum.Enum):\n    A = 1\ne = E.A\n#\ndef program(x):\n    return x * 2, f'{e} {e!r} {str(e)}'",
        "#",
        "E.__str__ = lambda self: 'other'\nE.__repr__ = lambda self: 'other'",
    ),
    "equality of members": (
        "import enum\nclass E(enum.Enum):\n    A = 1\n    B = 2\ne = E.A\n#\n"
        "def program(x):\n    return x * 2 if e == E.B else x + 1",
        "#",
        "E.__eq__ = lambda self, other: True",
    ),
    "an abstract class": (
        "class A:\n    pass\nn = 0\n#\ndef program(x):\n    a = A()\n    return x * 2",
        "#",
        "A.__del__ = lambda self: None",
    ),
    "dataclass fields": (
        "import dataclasses\nD = dataclasses.make_dataclass('D', [('a', int, 2), ('b', int, 3)])\nd = D()\n"
        "def program(x):\n    for f in dataclasses.fields(d):\n        x = x * getattr(d, f.name) + 1\n    return x",
        "[('a', int, 2), ('b', int, 3)]",
        "[('b', int, 3), ('a', int, 2)]",
    ),
    "a factory": (
        "import dataclasses\nK = 2\n@dataclasses.dataclass\nclass D:\n"
        "    a: list = dataclasses.field(default_factory=lambda: [K])\n"
        "def program(x):\n    return x * D().a[0]",
        "K = 2",
        "K = 3",
    ),
    "another factory": (
        "import dataclasses\ndef f():\n    return [2]\ndef g():\n    return [3]\n@dataclasses.dataclass\nclass D:\n"
        "    a: list = dataclasses.field(default_factory=f)\n"
        "def program(x):\n    return x * D().a[0]",
        "default_factory=f",
        "default_factory=g",
    ),
    "a mixed-in class of a new object": (
        "class M:\n    pass\nclass A(M):\n    def __init__(self):\n        self.k = 2\n#\n"
        "def program(x):\n    return x * A().k",
        "#",
        "M.__setattr__ = lambda self, name, value: object.__setattr__(self, name, 3)",
    ),
    "a partial": (
        "import functools\ndef f(x, k):\n    return x * k\np = functools.partial(f, k=2)\ndef program(x):\n    return p(x)",
        "k=2",
        "k=3",
    ),
    "a partial method": (
        "import functools\nclass A:\n    def f(self, x, k):\n        return x * k\n    p = functools.partialmethod(f, k=2)\n"
        "a = A()\ndef program(x):\n    return a.p(x)",
        "k=2",
        "k=3",
    ),
    "what a getter gets": (
        "import operator\ng = operator.itemgetter(0)\ndef program(x):\n    return x * g((2, 3))",
        "(0)",
        "(1)",
    ),
    "a regular expression": (
        "import re\nr = re.compile('a')\ndef program(x):\n    return x * 2 if r.match('a') else x + 1",
        "'a')\n",
        "'b')\n",
    ),
    "a singledispatch": (
        "import functools\n@functools.singledispatch\ndef f(k, x):\n    return x * 2\n#\n"
        "def program(x):\n    return f(1, x)",
        "#",
        "@f.register(int)\ndef _(k, x):\n    return x * 3",
    ),
    "numpy's scalar": (
        "import numpy as np\nk = np.float32(2)\ndef program(x):\n    return x * k",
        "(2)",
        "(3)",
    ),
    "numpy's scalar on a class": (
        "import numpy as np\nclass A:\n    k = np.int64(2)\ndef program(x):\n    return x * A.k, x * float(A.k)",
        "(2)",
        "(3)",
    ),
    "a fraction": (
        "from fractions import Fraction\nk = Fraction(2)\ndef program(x):\n    return x * float(k)",
        "(2)",
        "(3)",
    ),
    "an object equal by its class": (
        "class V:\n    def __init__(self, v):\n        self.v = v\n    def __eq__(self, o):\n        return self.v == o.v\n"
        "    def __hash__(self):\n        return hash(self.v)\na, b = V(1), V(2)\n"
        "def program(x):\n    return x * 2 if a == b else x + 1",
        "V(2)",
        "V(1)",
    ),
    "a frozen set": (
        "S = frozenset({'a', 'b'})\ndef program(x):\n    return x * 2 if 'a' in S else x + 1",
        "{'a', 'b'}",
        "{'c', 'b'}",
    ),
    "a range": ("R = range(3)\ndef program(x):\n    return x * sum(R)", "(3)", "(4)"),
    "a slice": ("S = slice(0, 1)\ndef program(x):\n    return x[S]", "(0, 1)", "(1, 2)"),
    "a shape": ("S = torch.Size([2, 3])\ndef program(x):\n    return x.reshape(S)", "[2, 3]", "[3, 2]"),
    "a device": (
        "D = torch.device('cpu')\ndef program(x):\n    return x * 2 if D.index is None else x + 1",
        "'cpu'",
        "'cpu', 0",
    ),
    "a tensor's attribute": (
        "w = torch.ones(3)\nw.k = 2\ndef program(x):\n    return x * w * w.k",
        "w.k = 2",
        "w.k = 3",
    ),
    "a tensor's attribute that hides a method": (
        "w = torch.ones(3)\n#\ndef program(x):\n    return x * w.sum()",
        "#",
        "w.sum = lambda: 5",
    ),
    "strides of a parameter": (
        "w = torch.arange(9.0).reshape(3, 3)\n#\ndef program(x):\n    return (x @ w).view(-1), w.stride()[0] * x",
        "#",
        "w = w.t().contiguous().t()",
    ),
    "a weight that is tied": (
        "a, b = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)\n"
        "torch.nn.init.ones_(a.weight)\ntorch.nn.init.ones_(b.weight)\n#\n"
        "def program(x):\n    return b(a(x)), a.weight is b.weight",
        "#",
        "b.weight = a.weight",
    ),
    "a bias that is none": (
        "torch.manual_seed(0)\na = nn.Linear(3, 3, bias=True)\n#\ndef program(x):\n    return a(x)",
        "#",
        "a.bias = None",
    ),
    "a parametrization": (
        "torch.manual_seed(0)\na = nn.Linear(3, 3)\n#\ndef program(x):\n    return a(x)",
        "#",
        "class Twice(nn.Module):\n    def forward(self, w):\n        return w * 2\n"
        "torch.nn.utils.parametrize.register_parametrization(a, 'weight', Twice())",
    ),
    "a method replaced on an instance": (
        "class A(nn.Module):\n    def forward(self, x):\n        return x * 2\na = A()\n#\ndef program(x):\n    return a(x)",
        "#",
        "a.forward = lambda x: x * 3",
    ),
    "a function of PyTorch's that is replaced": (
        "import torch as T\n#\ndef program(x):\n    return F.relu(x - 3)",
        "#",
        "class G:\n    @staticmethod\n    def relu(x, inplace=False):\n        return x * 5\nF = G",
    ),
    "a tensor method that is replaced": (
        "#\ndef program(x):\n    return (x - 3).kept_hard() if hasattr(x, 'kept_hard') else x",
        "#",
        "K = 1",
    ),
    "a default that is changed": (
        "def f(x, k=[2]):\n    return x * k[0]\n#\ndef program(x):\n    return f(x)",
        "#",
        "f.__defaults__[0][0] = 3",
    ),
    "the class of an object": (
        "class A:\n    k = 2\nclass B(A):\n    k = 3\na = A()\n#\ndef program(x):\n    return x * a.k",
        "#",
        "a.__class__ = B",
    ),
    "the bases of a class": (
        "class A:\n    k = 2\nclass B:\n    k = 3\nclass C(A):\n    pass\n#\nc = C()\ndef program(x):\n    return x * c.k",
        "#",
        "C.__bases__ = (B,)",
    ),
    "the bases of a class, asked": (
        "class A:\n    pass\nclass B:\n    pass\nclass C(A):\n    pass\n#\nc = C()\n"
        "def program(x):\n    return x * 2 if isinstance(c, A) else x + 1",
        "#",
        "C.__bases__ = (B,)",
    ),
    "bases of the same name": (
        "class A:\n    pass\nO = A\nclass A:\n    pass\nclass C(A):\n    pass\nc = C()\n"
        "def program(x):\n    return x * 2 if isinstance(c, O) else x + 1",
        "C(A)",
        "C(O)",
    ),
    "builtins": (
        "import builtins\n#\ndef program(x):\n    return x * 2 if kept_name() else x\n"
        "builtins.kept_name = lambda: True",
        "lambda: True",
        "lambda: False",
    ),
    "what a member of an enum was given later": (
        "import enum\nclass E(enum.Enum):\n    A = 1\nE.A.k = [2]\ne = E.A\ndef program(x):\n    return x * e.k[0]",
        "[2]",
        "[3]",
    ),
    "an operator that a module holds": (
        "class A(nn.Module):\n    def __init__(self, act):\n        super().__init__()\n        self.act = act\n"
        "    def forward(self, x):\n        return self.act(x - 3)\na = A(torch.ops.aten.relu.default)\n"
        "def program(x):\n    return a(x)",
        "relu.default",
        "abs.default",
    ),
    "a submodule that is to be imported": (
        "import sys, types\nm = sys.modules['kept_p'] = types.ModuleType('kept_p')\nm.__path__ = []\n"
        "sys.modules['kept_p.q'] = m.q = types.ModuleType('kept_p.q')\n#\ndef program(x):\n    try:\n"
        "        import kept_p.q\n        return x * 2\n    except ImportError:\n        return x * 3",
        "#",
        "del sys.modules['kept_p.q']",
    ),
    "the class that is a member's value": (
        "import enum\nclass P:\n    k = 2\nclass Q:\n    k = 3\nW = P\nclass E(enum.Enum):\n    A = (W,)\ne = E.A\n"
        "def program(x):\n    return x * e.value[0].k",
        "W = P",
        "W = Q",
    ),
    "the class that is the value of a member by its name": (
        "import enum\nclass P:\n    k = 2\nclass Q:\n    k = 3\nW = P\nclass E(enum.Enum):\n    A = (W,)\n"
        "def program(x):\n    return x * E['A'].value[0].k",
        "W = P",
        "W = Q",
    ),
    "what a class of PyTorch's between comes to have": (
        "from torch.nn.modules.conv import _ConvNd\n_ConvNd.kept_m = lambda self, x: x * 2\n"
        "vars(nn.Conv2d).get('kept_m') and delattr(nn.Conv2d, 'kept_m')\nclass Net(nn.Conv2d):\n"
        "    def kept_m(self, x):\n        return super().kept_m(x)\n#\nnet = Net(1, 1, 1)\n"
        "def program(x):\n    return net.kept_m(x)",
        "#",
        "nn.Conv2d.kept_m = lambda self, x: x * 3",
    ),
    "a signature": (
        "import inspect\ndef f(x):\n    return x\n#\ns = t = inspect.signature(f)\n"
        "def program(x):\n    return x * len(s.parameters) if s is t else x",
        "#",
        "def f(x, y=2):\n    return x",
    ),
    "a truth value in a set": ("S = {1}\ndef program(x):\n    return x * 2, [str(k) for k in S]", "{1}", "{True}"),
    "a sign of zero in a set": ("S = {0.0}\ndef program(x):\n    return x * 2, [str(k) for k in S]", "0.0", "-0.0"),
    "the end of a range": ("R = range(0, 3, 2)\ndef program(x):\n    return x * R.stop", "0, 3, 2", "0, 4, 2"),
    "two equal strings": (
        "A = 'abc'\nB = A\ndef program(x):\n    return x * 2 if A is B else x + 1",
        "B = A",
        "B = ''.join(['a', 'bc'])",
    ),
    "a tensor that says it is a parameter": (
        "class T(torch.Tensor):\n    pass\nt = torch.ones(2).as_subclass(T)\n#\n"
        "def program(x):\n    return x * 2 if isinstance(t, nn.Parameter) else x + 1",
        "#",
        "t._is_param = True",
    ),
    "whether a cached answer is another object": (
        "import functools\nclass A:\n    pass\nT = A()\nU = T\n@functools.cache\ndef k():\n    return U\n"
        "def program(x):\n    return x * 2 if k() is T else x + 1",
        "U = T",
        "U = A()",
    ),
    "what a cached function is called with": (
        "import functools\nclass A:\n    def __init__(self, v):\n        self.v = v\na, b = A(2), A(3)\nc = a\n"
        "@functools.cache\ndef k(o):\n    return o.v\ndef program(x):\n    return x * k(c)",
        "c = a",
        "c = b",
    ),
    "what a cached method sees": (
        "import functools\nclass A:\n    K = 2\n    @classmethod\n    @functools.cache\n    def k(cls):\n"
        "        return cls.K\ndef program(x):\n    return x * A.k()",
        "K = 2",
        "K = 3",
    ),
    "a cache that forgets": (
        "import functools\nK = 2\n@functools.lru_cache(maxsize=1)\ndef k(a):\n    return K + a\n"
        "def program(x):\n    return x * k(1) + k(2) * k(1)",
        "K = 2",
        "K = 3",
    ),
    "the weights of a recurrent network": (
        "torch.manual_seed(0)\nn = nn.GRU(3, 3)\n#\ndef program(x):\n    return n(x)[0]",
        "#",
        "n._parameters['weight_hh_l0'] = nn.Parameter(n.weight_hh_l0.detach() * 2)",
    ),
    "one weight for two": (
        "torch.manual_seed(0)\nn = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))\nw = torch.ones(3, 3)\n#\n"
        "def program(x):\n    return torch.func.functional_call(n, {'0.weight': w}, (x,))",
        "#",
        "n[1].weight = n[0].weight",
    ),
    "what the process says of itself": (
        "torch.set_warn_always(False)\n#\ndef program(x):\n    return x * 2, torch.is_warn_always_enabled()",
        "#",
        "torch.set_warn_always(True)",
    ),
}


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    torch.set_warn_always(False)
    vars(builtins).pop("kept_name", None)
    for kind in (torch.nn.Conv2d, torch.nn.modules.conv._ConvNd):
        if "kept_m" in vars(kind):
            delattr(kind, "kept_m")
    for name in ("kept_one", "kept_two", "kept_p", "kept_p.q"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", STALE)
def test_stale(worlds: Worlds, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text, before, after = STALE[name]
    changed = text.replace(before, after, 1)
    assert changed != text
    with monkeypatch.context() as alone:
        alone.setenv("SMELT_CACHE", "0")
        worlds.run(HEAD + changed, given)  # captured here, it is right
    for each in (text, text, changed, text):
        worlds.run(HEAD + each, given)  # which holds what comes out against plain Python's


def test_a_class_that_changes_between_two_captures(worlds: Worlds) -> None:
    """What was found out about a class for one record is not taken for granted in the next."""
    text = HEAD + "class A:\n    def m(self, x):\n        return x * 2\nclass B(A):\n    pass\nclass C(B):\n"
    text += "    def m(self, x):\n        return super().m(x)\nc = C()\ndef program(x):\n    return c.m(x)"
    worlds.run(text, given)
    worlds.run(text, given)
    module = sys.modules["kept_world"]
    module.B.m = lambda self, x: x * 3  # type: ignore[attr-defined]
    smelt.reset()
    got = CompiledRegion(Plainly()).call(module.program, torch.ones(2, 3))
    assert torch.equal(got, torch.full((2, 3), 3.0))


def test_a_function_of_a_library_that_is_replaced(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is found under the name is another function, and so is what the names of the program lead to."""
    text = HEAD + "import math\ndef program(x):\n    return torch.sin(x) * math.sqrt(4)"
    for module, name, other in ((math, "sqrt", lambda x: x * 7), (math, "sqrt", math.cos), (torch, "sin", torch.cos)):
        worlds.run(text, given)
        assert worlds.run(text, given).loaded == 1
        with monkeypatch.context() as alone:
            alone.setattr(module, name, other)
            assert worlds.run(text, given).loaded == 0


def test_modules_that_load_more_when_they_are_asked(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    class Lazy(types.ModuleType):
        def __getattr__(self, name: str) -> object:
            raise ImportError(f"no module named {name}")

    monkeypatch.setitem(sys.modules, "kept_lazy", Lazy("kept_lazy"))
    for loaded in (0, 1):
        assert worlds.run(HEAD + "def program(x):\n    return x * 2", given).loaded == loaded


# What the first process raised, or left to Python with a warning, because it could not be written down.
ODD = {
    "a number of many digits": "K = 10 ** 5000\ndef program(x):\n    return x * 2 if K > 5 else x",
    "such an argument": "def program(x, k):\n    return x * 2 if k > 5 else x\n"
    "def arguments():\n    return torch.ones(2), 10 ** 5000",
    "a deep tuple": "t = (2,)\nfor _ in range(400):\n    t = (t,)\ndef program(x):\n    y = t\n"
    "    while isinstance(y, tuple):\n        y = y[0]\n    return x * y",
    "a class with a strange module": "class A:\n    __module__ = property(lambda self: 3)\n    k = 2\na = A()\n"
    "def program(x):\n    return x * a.k",
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.filterwarnings("error")
def test_what_has_no_form_is_captured_all_the_same(worlds: Worlds, name: str) -> None:
    for _ in range(2):
        assert worlds.run(HEAD + ODD[name], given).graphs == 1


def test_classes_that_say_what_they_equal_are_not_compared(worlds: Worlds) -> None:
    """Their metaclass is the program's, and capture runs nothing of it: Python does, and nothing is kept."""
    program = "class M(type):\n    def __eq__(cls, other):\n        return True\n"
    program += "class A(metaclass=M):\n    k = 2\na = A()\ndef program(x):\n    return x * a.k"
    for _ in range(2):
        assert worlds.run(HEAD + program, given).loaded == 0  # which holds what comes out against plain Python's


DRIVER = """
import importlib, os, sys
import torch, smelt
from smelt.capture import CompiledRegion
from tests.capture.stored_captures import Plainly, assert_same
x = torch.arange(6.0).reshape(2, 3)
sys.dont_write_bytecode = True
for name in sys.argv[1:]:
    plain = importlib.import_module(name)
    assert_same(CompiledRegion(Plainly()).call(plain.program, x.clone()), plain.program(x.clone()))
print(smelt.counters["captures_loaded"])
"""


@dataclass
class Processes:
    """Real ones, with one cache."""

    folder: Path

    def run(self, files: dict[str, str], seed: int | None = None, where: str = "one", **settings: str) -> int:
        """What is `program` in files called so, compiled, must be plain Python's; how many captures were loaded.

        With a seed hashes are others.
        """
        home = self.folder / where
        home.mkdir(exist_ok=True)
        for name, text in {**files, "driver.py": DRIVER}.items():
            if not (home / name).exists() or (home / name).read_text() != text:
                (home / name).write_text(text)
        environment = {"SMELT_CACHE": "1", "SMELT_CACHE_DIR": str(self.folder / "cache"), **settings}
        names = [name[:-3] for name in files if name.startswith("program")]
        if seed is None:
            done = run(DRIVER, file=str(home / "driver.py"), arguments=names, environment=environment)
        else:
            script = f"import sys\nsys.path.insert(0, {str(home)!r})\n{DRIVER}"
            done = run_new(script, arguments=names, environment={"PYTHONHASHSEED": str(seed), **environment})
        assert done.returncode == 0, done.stderr
        return int(done.stdout.split()[-1])


@pytest.fixture
def processes(tmp_path: Path) -> Processes:
    return Processes(tmp_path)


NAMES = "NAMES = ['alpha', 'beta', 'gamma', 'delta', 'eps']\n"
ORDERS = {
    "a loop": "def program(x):\n    for k, n in enumerate(set(NAMES)):\n        x = x * 2 + k * len(n)\n    return x",
    "text": "def program(x):\n    return x * 2, '-'.join(list(set(NAMES)))",
    "keys": "def program(x):\n    for n, k in {n: len(n) for n in set(NAMES)}.items():\n        x = x * k + 1\n    return x",
    "choices": "def program(x):\n    return x * 2, next(iter(set(NAMES))), min(set(NAMES), key=len)",
    "a hash": "def program(x):\n    return x * 2, 'abc'.__hash__() % 97",
}


def test_hashes_are_others_in_each_process(processes: Processes) -> None:
    files = {f"program{number}.py": NAMES + text for number, text in enumerate(ORDERS.values())}
    for seed in (1, None, 2):
        processes.run(files, seed)


BASE = "class Base:\n    def m(self, x):\n        return x * 2\n"
MIDDLE = "from base import Base\nclass Middle(Base):\n    pass\n"
PROGRAM = "from middle import Middle\nclass Net(Middle):\n    def m(self, x):\n        return super().m(x) + 1\n"
PROGRAM += "net = Net()\ndef program(x):\n    return net.m(x)\n"


def test_a_method_that_a_base_in_another_file_comes_to_have(processes: Processes) -> None:
    files = {"base.py": BASE, "middle.py": MIDDLE, "program.py": PROGRAM}
    assert [processes.run(files) for _ in range(2)] == [0, 1]
    files["middle.py"] = MIDDLE.replace("pass", "def m(self, x):\n        return x * 5")
    assert processes.run(files) == 0


def test_another_copy_of_the_program(processes: Processes) -> None:
    settings = "from collections import namedtuple\nP = namedtuple('P', 'a b')\np = P(2, 3)\n"
    files = {"settings.py": settings, "program.py": "import settings\ndef program(x):\n    return x * settings.p.a\n"}
    assert [processes.run(files) for _ in range(2)] == [0, 1]
    files["settings.py"] = settings.replace("'a b'", "'b a'")
    assert processes.run(files, where="two") == 0


# What is another by a variable of the environment alone: no file is, and no code.
BY_ENVIRONMENT = {
    "a number": "K = 2 if CHOSEN else 3\ndef program(x):\n    return x * K",
    "a variable that is read inside": "def program(x):\n    return x * 2 if os.environ.get('KEPT_A') == '1' else x + 1",
    "a cached answer": "import functools\n@functools.cache\ndef flag(name):\n    return os.environ.get(name) == '1'\n"
    "def program(x):\n    return x * 2 if flag('KEPT_A') else x + 1",
    "a cached tensor": "import functools\n@functools.cache\ndef table(n):\n    return torch.arange(float(n), dtype=D)\n"
    "D = torch.float32 if CHOSEN else torch.float64\ndef program(x):\n    return x * table(3)",
    "the class of a layer": "class P(nn.Module):\n    def forward(self, x):\n        return x * 2\nclass Q(nn.Module):\n"
    "    def forward(self, x):\n        return x * 3\nnet = nn.Sequential((P if CHOSEN else Q)())\n"
    "def program(x):\n    return net(x)",
    "a function of PyTorch's": "old = torch.cosh\nif CHOSEN:\n    torch.cosh = torch.sinh\n"
    "def program(x):\n    return torch.cosh(x)",
    "a method of PyTorch's": "if CHOSEN:\n    torch.Tensor.relu6 = lambda self: self - 1\n"
    "def program(x):\n    return F.relu6(x) if not CHOSEN else x.relu6()",
    "code without a file": "names = dict(torch=torch, __name__=__name__)\n"
    "text = f'class C:\\n    v = {2 + CHOSEN}\\ndef f(x):\\n    return x * C.v'\n"
    "exec(compile(text, '<input-1>', 'exec'), names)\nprogram = names['f']",
}


def test_what_the_environment_decides(processes: Processes) -> None:
    head = "import os, torch\nfrom torch import nn\nimport torch.nn.functional as F\n"
    head += "CHOSEN = os.environ.get('KEPT_A') == '1'\n"
    files = {f"program{number}.py": head + text for number, text in enumerate(BY_ENVIRONMENT.values())}
    assert processes.run(files, KEPT_A="1") == 0
    assert processes.run(files, KEPT_A="1") == len(files)
    processes.run(files, KEPT_A="0")
    processes.run(files, KEPT_A="1")
