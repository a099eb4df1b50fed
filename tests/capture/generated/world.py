"""What generated programs find around them: classes, functions and state, read as text and executed once per run.

Plain Python and smelt each get a world of their own, so nothing that one of them writes can reach the other.
`STATE` names what a program may change; it is compared after every call.
"""

import abc
import collections
import contextlib
import copy
import dataclasses
import enum
import functools
import inspect
import io
import itertools
import logging
import math
import operator
import sys
import types
import typing
import unittest
import warnings
import weakref

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree
from torch.utils._ordered_set import OrderedSet

import smelt

__all__ = [  # for the programs
    "F", "OrderedSet", "copy", "inspect", "io", "itertools", "math", "np", "pytree", "sys", "warnings",
]  # fmt: skip


class Fault(Exception):
    def __init__(self, text, code=0):
        super().__init__(text)
        self.code = code


class Deeper(Fault):
    def __str__(self):
        return f"deeper {self.code}"


class Manager:
    def __init__(self, log, k):
        self.log, self.k = log, k

    def __enter__(self):
        self.log.append("enter")
        return self.k

    def __exit__(self, kind, error, trace):
        self.log.append(("exit", None if kind is None else kind.__name__))
        return self.k == 3


class Switch(contextlib.ContextDecorator):
    on = 0

    def __enter__(self):
        Switch.on += 1
        return self

    def __exit__(self, *error):
        Switch.on -= 1
        return False


@contextlib.contextmanager
def logged(log):
    log.append("in")
    try:
        yield len(log)
    except KeyError as error:
        log.append(repr(error))
        raise Fault("from logged") from error
    finally:
        log.append("out")


@contextlib.contextmanager
def breaking():
    print("before")
    yield
    smelt.graph_break()


@dataclasses.dataclass
class Point:
    x: object
    k: int = 1
    marks: list = dataclasses.field(default_factory=list)

    def total(self):
        return self.x + self.k


@dataclasses.dataclass(frozen=True, order=True)
class Pair:
    left: int
    right: int


Named = collections.namedtuple("Named", "first second", defaults=(7,))


class Color(enum.Enum):
    RED = 1
    BLUE = 2

    @property
    def twice(self):
        return self.value * 2


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 3


class Meta(type):
    made = 0

    def __call__(cls, *args, **kwargs):
        Meta.made += 1
        return super().__call__(*args, **kwargs)

    def __getattr__(cls, name):
        if name == "origin":
            return cls.__name__
        raise AttributeError(name)


class Tracked(metaclass=Meta):
    def __init__(self, k):
        self.k = k

    def __getattr__(self, name):
        if name.startswith("no"):
            raise AttributeError(name)
        return (name, self.k)


class Clamped:
    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, instance, owner=None):
        return self if instance is None else getattr(instance, self.name, 0)

    def __set__(self, instance, value):
        setattr(instance, self.name, min(value, 5))


class Slotted:
    __slots__ = ("k", "t")

    def __init__(self, t, k):
        self.t, self.k = t, k


class Box:
    kind = "box"
    shared = []  # noqa: RUF012
    level = Clamped()

    def __init__(self, n=0, t=None):
        self.n, self.last, self.items, self.table = n, t, [], {}

    @property
    def double(self):
        return self.n * 2

    @double.setter
    def double(self, value):
        self.n = value // 2

    @classmethod
    def fresh(cls, n):
        return cls(n)

    @staticmethod
    def scaled(t, k):
        return t * k

    @functools.cached_property
    def summary(self):
        return f"{self.kind}:{self.n}"

    def __call__(self, t, *rest, k=1, **more):
        return t * k + len(rest) + len(more)

    def __len__(self):
        return len(self.items)

    def __bool__(self):
        return self.n > 0

    def __iter__(self):
        return iter((self.n, 1))

    def __contains__(self, item):
        return item == self.n

    def __eq__(self, other):
        return isinstance(other, Box) and self.n == other.n

    def __hash__(self):
        return 5

    def __getitem__(self, key):
        return self.table[key]

    def __setitem__(self, key, value):
        self.table[key] = value

    def __delitem__(self, key):
        del self.table[key]

    def walk(self, k):
        for item in range(k):
            self.n += 1
            yield item + self.n


class Child(Box):
    kind = "child"

    def __init__(self, n=0, t=None):
        super().__init__(n + 1, t)
        self.name = "kid"

    @property
    def double(self):
        return super().double + 1

    def __call__(self, t, *rest, k=1, **more):
        return super().__call__(t, *rest, k=k + 1, **more) - 1

    def __getattr__(self, name):
        if name == "extra":
            return 3
        raise AttributeError(name)


class Vector:
    def __init__(self, t):
        self.t = t

    def __add__(self, other):
        return Vector(self.t + (other.t if isinstance(other, Vector) else other))

    def __radd__(self, other):
        return Vector(other - self.t)

    def __iadd__(self, other):
        self.t = self.t + 1 + other
        return self

    def __matmul__(self, other):
        return (self.t * other).sum()

    def __lt__(self, other):
        return bool(self.t.sum() < other.t.sum())

    def __neg__(self):
        return Vector(-self.t)

    def __repr__(self):
        return f"Vector{tuple(self.t.shape)}"


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(2.0))
        self.register_buffer("steps", torch.zeros(()))
        self.calls = 0

    def forward(self, t):
        self.calls += 1
        self.steps += 1
        return t * self.scale + self.steps


class Left(Vector):
    order = 1

    def total(self):
        return self.t + 1


class Right(Vector):
    order = 2

    def total(self):
        return self.t * 2


class Diamond(Left, Right):
    def total(self):
        return super().total() + super(Left, self).total()


class Maker:
    def __init__(self, t):
        self.t = t

    def __class_getitem__(cls, item):
        return functools.partial(cls)


class Closer:
    def __init__(self, log):
        self.log = log

    def close(self):
        self.log.append("close")


@contextlib.contextmanager
def attempting(log):
    try:
        yield
    except ValueError as error:
        log.append(str(error))


def heads(k):
    for i in range(k):
        got = yield i
        if got is not None:
            return got
    return "end"


def attempt(function, default):
    try:
        return function()
    except (ArithmeticError, LookupError):
        return default


def weak(value):
    return weakref.ref(value)() is value


def gen(count):
    for i in range(count):
        yield i
        if i == 2:
            raise Fault("in gen")


def echo(start):
    got = start
    try:
        while got is not None:
            got = yield got * 2
    except Fault:  # when a dropped generator is closed is not to be seen: an exception's traceback may keep it alive
        seen.append("fault")
    return "done"


def relay(k):
    result = yield from echo(k)
    seen.append(result)
    yield -1


def helper(a, b=None, *rest, k=1, **more):
    if k > 2:
        print("helper", k, sorted(more))
    return (a * k if b is None else a * k - b) + len(rest)


def strict(a, /, b, *, c=2):
    return a * c + b


def noisy(t, k):
    t = t + 1
    print("noisy", k)
    return t * k


def item(t, k):
    t = t * 2
    return t + t.sum().item() * k


def branchy(t, k):
    global counter
    t = t - 1
    if t.sum() > k:
        counter = counter + 1
        return t.relu()
    return t + k


def guarded(t, k, log):
    try:
        with Manager(log, k):
            t = t + 1
            print("guarded")
            if k == 2:
                raise KeyError(k)
            t = t * 2
    except KeyError as error:
        log.append(repr(error))
        t = t - 1
    finally:
        log.append(k)
    return t


def looped(t, k):
    for i in range(k):
        t = t + i
        if i == 1:
            smelt.graph_break()
        t = t * 2
    return t


def deep(t, k):
    return branchy(noisy(t, k) + 1, k) * 2


def apply(function, *args, **kwargs):
    return function(*args, **kwargs)


def counted(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        wrapper.calls += 1
        return function(*args, **kwargs)

    wrapper.calls = 0
    return wrapper


@counted
def decorated(t, k=2):
    return t * k


@functools.cache
def cached(k):
    return k * 3 % 5


@functools.singledispatch
def describe(value):
    return "thing"


@describe.register
def _(value: int):
    return f"int {value}"


@describe.register
def _(value: Box):
    return value.kind


def flagged(function):
    """A function with a wrapper that looks like it, as libraries put on functions of torch."""

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        wrapper.calls += 1
        if setting.deep:
            seen.append(function.__name__)
        return function(*args, **kwargs) * setting.scale

    wrapper.calls = 0
    return wrapper


wrapped = types.SimpleNamespace(relu=flagged(F.relu), add=flagged(torch.add), sin=flagged(torch.Tensor.sin))
kept = types.SimpleNamespace(relu=F.relu, linear=F.linear, add=torch.add, sin=torch.Tensor.sin)


@contextlib.contextmanager
def patched(owner, name):
    """A function of torch replaced by its wrapper, for a while."""
    before = getattr(owner, name)
    setattr(owner, name, flagged(before))
    try:
        yield
    finally:
        setattr(owner, name, before)


class Offset:
    """Not a data descriptor, until its class has `__set__`."""

    def __init__(self, k):
        self.k = k

    def __get__(self, instance, owner=None):
        return self if instance is None else self.k


class OnlyDeleted(Offset):
    def __delete__(self, instance):
        seen.append(("deleted", self.k))


class Sides:
    def sides(self):
        return 4


class Round:
    def sides(self):
        return 0

    def extra(self):
        return "round"


class Morph(Sides):
    """A class that programs change."""

    offset = Offset(3)
    only = OnlyDeleted(4)
    label = "morph"

    def __init__(self, k):
        self.k = k
        self.__dict__["offset"] = k
        self.__dict__["only"] = k

    def total(self, t):
        return t + self.k

    def sides(self):
        return super().sides() + 1


def later_set(self, instance, value):
    seen.append(("set", value))


class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self): ...


@typing.runtime_checkable
class HasTotal(typing.Protocol):
    def total(self): ...


class Looking(type):
    def __instancecheck__(cls, instance):
        return getattr(instance, "n", 0) > cls.least

    def __subclasscheck__(cls, kind):
        return kind.__name__.startswith("B")


class Large(metaclass=Looking):
    least = 1


class Hooked:
    def __init__(self, k):
        self.k = k

    def __getattribute__(self, name):
        if name == "refused":
            raise AttributeError("refused")
        return super().__getattribute__(name)

    def __getattr__(self, name):
        if name.startswith("no"):
            raise AttributeError(name)
        return (name, self.k)

    @staticmethod
    def rootless(*args):
        return super().__repr__()

    @classmethod
    def above(cls):
        return super().__name__


class Odd:
    """Special methods that answer what they are told to."""

    def __init__(self, answer):
        self.answer = answer

    def _say(self, *args):
        return self.answer

    __bool__ = __len__ = __index__ = __contains__ = __iter__ = __str__ = __repr__ = __format__ = __length_hint__ = _say


class Listed:
    def __init__(self, k):
        self.k = k

    def __len__(self):
        seen.append("len")
        return self.k

    def __getitem__(self, place):
        if place >= self.k:
            raise IndexError(place)
        return place * 2


class Told(collections.namedtuple("Told", "first second")):
    __slots__ = ()

    def __repr__(self):
        return f"told {self.first}"


class Bag(list):
    """A list with a method and an attribute of its own."""

    note = "bag"

    def total(self):
        return sum(item for item in self if isinstance(item, int))

    def append(self, item):
        self.note = "grown"
        super().append(item)


class Pantry(dict):
    """A dict that counts its reads, and has something for what is missing."""

    reads = 0

    def __getitem__(self, key):
        self.reads += 1
        return super().__getitem__(key)

    @property
    def missing(self):
        return self.get("missing", 0)


class Duo(tuple):
    """A tuple of two, made by `__new__`."""

    def __new__(cls, first, second):
        return super().__new__(cls, (first, second))

    def swapped(self):
        return Duo(self[1], self[0])


class Sole:
    """A class of one instance."""

    only = None

    def __new__(cls, k):
        if cls.only is None:
            cls.only = super().__new__(cls)
            cls.only.marks = []
        return cls.only

    def __init__(self, k):
        self.marks.append(k)


class Unlike:
    """A class whose instances are something else where `k` is odd."""

    def __new__(cls, k):
        return k if k % 2 else super().__new__(cls)


class DoubledLater(torch.autograd.Function):
    """Three times the gradient, which a derivative of the forward would not give."""

    @staticmethod
    def forward(ctx, t, k=2):
        ctx.k = k
        return t * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 3 * ctx.k, None


def doubled_later(t, k):
    return DoubledLater.apply(t, k)


check = unittest.TestCase()
nan = float("nan")
nans = [nan, 1.0]
ordered = collections.OrderedDict(a=1, b=2)
counts = collections.defaultdict(int, a=1)


class Collector(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append((record.levelname, record.getMessage()))


collector = Collector()
logger = logging.Logger("generated", logging.INFO)
logger.addHandler(collector)

counter = 0
seen = []
registry = {"k": 1}
setting = types.SimpleNamespace(scale=2, deep=True)
net = Net()
pick = operator.itemgetter(1)

STATE = {
    "counter", "seen", "registry", "setting", "net", "collector", "Box", "Child", "Meta", "Switch", "decorated",
    "Point", "ordered", "counts", "Large", "wrapped", "Sole",
}  # fmt: skip
