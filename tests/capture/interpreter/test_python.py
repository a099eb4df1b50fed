"""Python as people write it, captured whole: one graph, no break, the plain answer."""

# ruff: noqa: RUF005  (concatenation of shapes is what is tested)

import collections
import dataclasses
import functools
import math
import operator
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smelt
from tests.capture.programs import Captured, compare

X = torch.arange(6.0).reshape(2, 3) / 3
Y = torch.ones(2, 3) * 0.5


def arithmetic(x, y):
    z = (x + y) * 2 - x / (y + 3)
    z -= 1
    return z**2, -z, x @ y.T, x // 2, x % 2, 1 - x


def functions(x, y):
    return torch.relu(x), F.gelu(y), torch.cat([x, y], dim=1), torch.stack((x, y)), x.sum(dim=-1, keepdim=True)


def unpacking(x, y):
    a, (b, *rest) = x, [y, x, y]
    first, second = x.unbind(0)
    return a + b, rest, first * second


def keywords(x, y):
    def helper(a, /, b, *extra, scale=2.0, **named):
        return a * scale + b + sum(extra) + named.get("shift", 0)

    return helper(x, b=y), helper(x, y, 1, 2, scale=3, shift=4), helper(*[x, y], **{"scale": 1.0})


def conditions(x, y):
    if x.shape[0] == 2 and not x.requires_grad:
        x = x + 1
    elif x.dim() > 5:
        x = x - 1
    z = y if y is None else y * 2
    return x * 1 if z is not None else y


def loops(x, y):
    for i in range(3):
        x = x + i
    for i, part in enumerate([x, y]):
        x = x + part * i
    for name, (a, b) in {"p": (x, y), "q": (y, x)}.items():
        x = a * len(name) + b
    n = 0
    while n < 3:
        n += 1
        if n == 2:
            continue
        y = y * n
    for a, b in zip([1, 2], (3, 4), strict=True):
        x = x + a * b
    for k in reversed(range(3)):
        x = x - k
    else:
        x = x * 2
    return x, y, n


def comprehensions(x, y):
    parts = [t * i for i, t in enumerate((x, y)) if i >= 0]
    table = {k: v + 1 for k, v in zip("ab", parts, strict=True)}
    return table, {len(parts), 5}, sum(p.sum() for p in parts) if False else parts[0].sum()


def closures(x, y):
    scale = 3

    def outer():
        nonlocal scale
        scale += 1

        def inner(z):
            return z * scale + x

        return inner

    f = outer()
    return f(y), (lambda t, k=2: t * k)(x), functools.partial(operator.mul, y)(2)


def recursion(x, y):
    def power(t, n):
        return t if n == 0 else power(t * y, n - 1)

    return power(x, 3)


def containers(x, y):
    things: list[Any] = []
    things.append(x)
    things.extend([y, 3])
    things += [x + y]
    things[2] = things[0] * 2
    del things[0]
    record = {"a": x}
    record["b"] = y
    record.update(c=x - y)
    taken = record.pop("a")
    return things, record, taken, things[-1], things[:2], "b" in record, record.get("zzz"), len(things)


def strings(x, y):
    name = f"{x.shape[0]:>3}|{x.dtype!s}|{'-'.join(['a', 'b'])}"
    return x + len(name), name.upper()


def builtins_of_all_kinds(x, y):
    assert isinstance(x, torch.Tensor) and not isinstance(x, int)
    k = max(x.shape) + min(3, 1) + abs(-2) + int(math.sqrt(16)) + round(2.6) + sum([1, 2])
    ok = all([True, 1]) and any([0, k]) and callable(torch.relu) and hasattr(x, "shape") and not hasattr(x, "nothing")
    return x * k if ok else y, x.ndim, type(x) is torch.Tensor, list(map(lambda a: a + 1, [1, 2]))  # noqa: C417


def indexing(x, y):
    z = torch.zeros_like(x)
    z[0] = x[1]
    z[:, 1:] = 4
    return z, x[..., None], x[0, 1:], x[:, [0, 2]], x[::2]


def grad_modes(x, y):
    with torch.no_grad():
        a = x * 2
        with torch.enable_grad():
            b = x * 3
    c = x * 4
    with torch.set_grad_enabled(False):
        d = x * 5
    return a, b, c, d, torch.is_grad_enabled()


def in_place(x, y):
    z = x + 1
    z.add_(y).mul_(2)
    w = F.relu(z, inplace=True)
    return z, w, w is z


class Scale:
    factor = 2

    def __init__(self, amount):
        self.amount = amount

    @property
    def total(self):
        return self.amount * self.factor

    def __call__(self, t):
        return t * self.total

    def __add__(self, other):
        return Scale(self.amount + other.amount)

    @classmethod
    def make(cls, n):
        return cls(n)

    @staticmethod
    def one():
        return 1


class Shifted(Scale):
    def __init__(self, amount, shift):
        super().__init__(amount)
        self.shift = shift

    def __call__(self, t):
        return super().__call__(t) + self.shift


def classes(x, y):
    s = Scale.make(3) + Scale(4)
    s.amount += Scale.one()
    return s(x), Shifted(1, y)(x), s.total


@dataclasses.dataclass
class Pair:
    left: Any
    right: Any = 2


Named = collections.namedtuple("Named", "a b")


def records(x, y):
    p = Pair(x * 2)
    n = Named(x, b=y + p.right)
    values, indices = torch.max(x, dim=1)
    top = torch.topk(x, 2)
    return p, n, n.a + n.b, values, indices, top.values


def walrus_and_ternaries(x, y):
    if (n := len(x)) > 1:
        x = x * n
    return x if n else y, 1 < n <= 3, [i for i in range(3)][n % 3]  # noqa: C416


def sizes(x, y):
    shape = x.shape + (1,)
    a, b = x.size()
    return (
        x.view(shape),
        shape,
        x.shape[1:],
        x.shape[:-1] + (b, 1),
        (2,) + x.shape,
        x.shape * 2,
        x.new_zeros(x.shape[0]),
        a,
    )


PROGRAMS: list[Callable[..., Any]] = [
    arithmetic,
    sizes,
    functions,
    unpacking,
    keywords,
    conditions,
    loops,
    closures,
    recursion,
    containers,
    strings,
    builtins_of_all_kinds,
    indexing,
    grad_modes,
    in_place,
    classes,
    records,
    walrus_and_ternaries,
]


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_captured_whole(function: Callable[..., Any], requires_grad: bool) -> None:
    if requires_grad and function is indexing:
        pytest.skip("writes into a fresh tensor either way")
    runner = compare(function, X.clone().requires_grad_(requires_grad), Y)
    assert runner.breaks == []
    assert len(runner.graphs) == 1
    assert runner.recompiles == []


def test_comprehensions_and_sets() -> None:
    assert compare(comprehensions, X, Y).breaks == []


def test_dead_tensors_are_not_returned() -> None:
    def f(x):
        a = x + 1
        b = a * 2
        print("here")
        return b + 1

    runner = compare(f, X)
    first = runner.graphs[0].graph
    assert len(list(first.nodes)[-1].args[0]) == 1  # b alone: a is never read again


def test_an_argument_returned_is_the_argument() -> None:
    def f(x, things):
        return x, things, [x + 1]

    x, things = X.clone(), [1, 2]
    mine = Captured()(f, x, things)
    assert mine[0] is x and mine[1] is things


def test_shared_lists_stay_shared() -> None:
    def f(x):
        inner = [x * 2]
        return {"a": inner, "b": inner, "c": (inner, x)}

    mine = Captured()(f, X)
    assert mine["a"] is mine["b"] and mine["c"][0] is mine["a"]


def test_is_compiling_is_true_inside() -> None:
    def f(x):
        return x * 2 if torch.compiler.is_compiling() else x * 3

    torch.testing.assert_close(Captured()(f, X), X * 2)


def test_structures_of_which_there_is_one() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        newer = sys.version_info >= (3, 8) and sys.version_info[:2] < (9, 9)
        return x + newer + len(sys.version_info) + (sys.flags == sys.flags)

    torch.testing.assert_close(smelt.compile(call, fullgraph=True)(torch.ones(2)), call(torch.ones(2)))
