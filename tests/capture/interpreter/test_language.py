"""The rest of the language and of the standard library, as models use it: captured whole, and right."""

# ruff: noqa: B010, C400, C408, F841, SIM905, UP003, UP031, UP032, UP033  (all ways to write these are what is tested)

import abc
import collections
import copy
import dataclasses
import enum
import functools
import inspect
import itertools
import math
import operator
import typing
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.capture.programs import compare

X = torch.arange(6.0).reshape(2, 3) / 3


class Color(enum.Enum):
    RED = 1
    BLUE = "b"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 5


class Flags(enum.Flag):
    A = enum.auto()
    B = enum.auto()


@dataclasses.dataclass
class Point:
    x: Any
    y: Any = 2
    tags: list = dataclasses.field(default_factory=list)

    def total(self):
        return self.x + self.y


@dataclasses.dataclass(frozen=True)
class Fixed:
    a: int
    b: str = "b"

    def __post_init__(self):
        if self.a < 0:
            raise ValueError("negative")


@dataclasses.dataclass(order=True, eq=True)
class Ranked:
    n: int


class Pair(typing.NamedTuple):
    left: Any
    right: Any = 3

    def swapped(self):
        return Pair(self.right, self.left)


Named = collections.namedtuple("Named", "a b", defaults=(4,))


def matched(x):
    told = []
    plain = [0, "a", [1, 2], [1, 2, 3], None, 2.5, Color.RED]
    for subject in [*plain, ("p", x), {"k": 1, "z": 2}, {"k": 2}, Point(1, 5), Point(3)]:
        match subject:
            case 0 | 1:
                told.append("small")
            case str(text):
                told.append(text)
            case [first, second] if first == 1:
                told.append((first, second))
            case [a, *rest]:
                told.append(len(rest))
            case {"k": 1, **others}:
                told.append(others)
            case {"k": k}:
                told.append(k)
            case Point(x=1, y=n):
                told.append(n)
            case Point(n):
                told.append(-n)
            case Color.RED:
                told.append("red")
            case None:
                told.append("none")
            case float() as number:
                told.append(number)
            case _:
                told.append("other")
    return x * len(told), told


def stars(x):
    def f(*args, k=0, **named):
        return len(args), k, sorted(named)

    a, b = [1, 2], (3,)
    first, *middle, last = range(5)
    head, (inner, *tail) = x, [1, *a]
    return (
        f(*a, *b, **{"k": 2}, **dict(z=1)),
        [*a, *b, *range(2)],
        (*b, *a),
        {*a, *b} == {1, 2, 3},
        {**{"p": 1}, "q": 2, **{"p": 3}},
        middle,
        last,
        tail,
        x + first,
    )


def deleted(x):
    things, table = [1, 2, 3, 4, 5], {"a": 1, "b": 2}
    del things[0], things[-1], table["a"]
    del things[::2]
    value = 3
    del value
    box = Point(1)
    del box.tags
    return x, things, table, hasattr(box, "tags")


def scopes(x):
    count = 0

    def bump(by=1):
        nonlocal count
        count += by
        return count

    total = [bump() for _ in range(3)]
    return x * count, total, bump(by=2), count


def words(x):
    name, n, ratio = "smelt", 42, 3.14159
    return (
        x,
        f"{name!r:>10}|{n:05d}|{ratio:.2f}|{n:#x}|{n:,}|{name[::-1]}|{ratio:{n // 6}.{2}f}|{x.shape}|{Color.RED}",
        "{:>4}-{a}".format(n, a=name),
        "%s is %d" % (name, n),
        name.upper().lower().title().center(9, "*"),
        ",".join(str(i) for i in range(3)),
        name.split("m"),
        name.replace("s", "S").startswith(("S", "x")),
        name.partition("e"),
        "a b  c".split(),
        name.find("l"),
        name[1:4:2],
        "x" * 3 + name,
        name.encode(),
        str(n).zfill(5),
        "é".isalpha(),
        name in "a smelt b",
        sorted(name),
        ord("a"),
        chr(98),
        " t ".strip(),
    )


def chained(x):
    n = 3
    if 1 < n <= 3 < 5 and not n == 4 != 5:
        x = x + 1
    return x, 1 < n < 2, (m := n + 1) * m, [y := 2, y**2], n if n else m


def sliced(x):
    things = list(range(10))
    things[2:5] = ["a"]
    things[::3] = [0] * len(things[::3])
    return x[::2, 1:], things, things[::-2], things[slice(1, 6, 2)], tuple(things)[-3:], "abc"[::-1], range(10)[2:8:3]


def sets(x):
    a, b = {1, 2, 3}, frozenset([3, 4])
    c = set()
    c.add(1)
    c.update([5, 6])
    c.discard(9)
    c.remove(5)
    a |= {7}
    return (
        x,
        a & b,
        a | b,
        a - b,
        a ^ b,
        a <= {1, 2, 3, 7, 9},
        a.isdisjoint(c),
        b.union([1]),
        len(c),
        1 in a,
        sorted(a),
        {i % 3 for i in range(9)},
    )


def views(x):
    table = {"a": x, "b": 2, "c": 3}
    keys = table.keys()
    return (
        x + len(keys),
        list(keys),
        "a" in keys,
        sorted(keys & {"a", "z"}),
        [k for k, v in table.items() if not isinstance(v, torch.Tensor)],
        list(reversed(table)),
        dict(sorted({"q": 2, "p": 1}.items())),
        {v: k for k, v in {"u": 1}.items()},
        len(table | {"d": 4}),
        table.keys() == {"a", "b", "c"},
        list(table.values())[1:],
        next(iter(table)),
    )


def higher_order(x):
    things = ["bb", "a", "ccc"]
    return (
        sorted(things, key=len),
        sorted(things, key=lambda s: (-len(s), s), reverse=True),
        min(things, key=len),
        max(3, 1, 2, key=lambda n: -n),
        max([], default=5),
        sum((x * i for i in range(3)), x),
        any(t == "a" for t in things),
        all(len(t) for t in things),
        list(map(lambda a, b: a + b, [1, 2], [3, 4])),
        list(filter(lambda t: "c" not in t, things)),
        list(filter(None, [0, 1, "", 2])),
        list(zip(things, range(5), strict=False)),
        list(enumerate(things, start=1)),
        list(reversed(things)),
        [*map(str, range(3))],
        dict(zip("ab", (x, 1), strict=True)),
        tuple(i * i for i in range(4)),
        functools.reduce(lambda a, b: a * b, range(1, 5)),
        functools.reduce(operator.add, [x, x, x]),
    )


def add(a, b=1, *, c=0):
    return a + b + c


def tools(x):
    inc = functools.partial(add, b=5)
    deeper = functools.partial(inc, c=2)
    return inc(x), deeper(x, b=1), inc.func is add, inc.keywords, square(3), square(3), wrapped(x), wrapped.__name__


@functools.lru_cache(maxsize=None)
def square(n):
    return n * n


def twice(function):
    @functools.wraps(function)
    def inner(*args, **kwargs):
        return function(*args, **kwargs) * 2

    return inner


@twice
def wrapped(t):
    return t + 1


def iterated(x):
    return (
        list(itertools.chain([1], (2, 3), "ab")),
        list(itertools.chain.from_iterable([[1, 2], [3]])),
        list(itertools.product([1, 2], "ab")),
        list(itertools.product(range(2), repeat=2)),
        list(itertools.islice(range(10), 2, 8, 3)),
        list(itertools.islice(itertools.count(3, 2), 3)),
        list(itertools.repeat(x, 2)),
        list(itertools.accumulate([1, 2, 3])),
        list(itertools.accumulate([x, x], operator.mul)),
        list(itertools.zip_longest([1, 2], [3], fillvalue=0)),
        list(itertools.pairwise([1, 2, 3])),
        list(itertools.combinations([1, 2, 3], 2)),
        list(itertools.permutations([1, 2])),
        list(itertools.takewhile(lambda n: n < 3, range(9))),
        list(itertools.dropwhile(lambda n: n < 7, range(9))),
        list(itertools.starmap(pow, [(2, 3), (3, 2)])),
    )


def operators(x):
    return (
        operator.add(x, 1),
        operator.itemgetter(1)([5, 6]),
        operator.itemgetter("a", "b")({"a": 1, "b": x}),
        operator.attrgetter("x")(Point(7)),
        operator.methodcaller("upper")("a"),
        operator.mul(2, 3),
        operator.not_(0),
        operator.index(3),
        operator.neg(x),
    )


def numbers(x):
    return (
        x * math.pi,
        math.floor(2.7),
        math.ceil(2.1),
        math.prod([2, 3]),
        math.isclose(0.1 + 0.2, 0.3),
        math.log2(8),
        math.inf,
        divmod(7, 3),
        round(2.567, 2),
        7 // -2,
        -7 % 3,
        2**-1,
        1 << 4 | 3,
        ~5,
        (3.0).is_integer(),
        (5).bit_length(),
        int("12"),
        float("1e3"),
        complex(1, 2).imag,
        bool([]),
        pow(3, 4, 5),
        1_000 == 1e3,
    )


def collected(x):
    groups = collections.defaultdict(list)
    for i, word in enumerate(["a", "b", "a"]):
        groups[word].append(i)
    ordered = collections.OrderedDict(a=1, b=2)
    ordered.move_to_end("a")
    return x, groups["a"], dict(groups), groups, "z" in groups, ordered, list(ordered), Named(1), dict.fromkeys("ab", 0)


def enums(x):
    return (
        x * Level.HIGH,
        Color.RED.name,
        Color("b").value,
        Color["RED"] is Color.RED,
        Level.LOW < Level.HIGH,
        Color.RED == Color.BLUE,
        [c.name for c in Color],
        Level.HIGH + 1,
        isinstance(Level.LOW, int),
        {Color.RED: 1}[Color.RED],
        Flags.A | Flags.B,
        bool(Flags.A & Flags.B),
        len(Color),
    )


def records(x):
    p = Point(x, y=3)
    q = dataclasses.replace(p, y=x * 2)
    p.tags.append(1)
    f = Fixed(1)
    pair = Pair(x)
    return (
        p.total(),
        q.total(),
        q.tags,
        f,
        Fixed(2) == Fixed(2, "b"),
        Fixed(1) == Fixed(3),
        Ranked(1) < Ranked(2),
        pair.swapped(),
        pair._replace(left=1),
        pair._asdict()["right"],
        Pair._fields,
        [field.name for field in dataclasses.fields(p)],
        Named(1, 2)._replace(a=5),
        pair[1],
        len(pair),
    )


def copied(x):
    nested = {"a": [x, [1, 2]], "b": (3,)}
    shallow, deep = copy.copy(nested), copy.deepcopy([1, [2, {"k": 3}]])
    nested["a"][1].append(9)
    return shallow["a"] is nested["a"], shallow["a"][1], deep, x + 1


class Typed:
    def __init__(self, name):
        self.name = name

    def __get__(self, owner, kind):
        return self if owner is None else owner.__dict__.get(self.name, 0) + 1

    def __set__(self, owner, value):
        owner.__dict__[self.name] = value * 2


class Lazy:
    def __init__(self, function):
        self.function = function

    def __get__(self, owner, kind):
        return self.function(owner)


class Base(abc.ABC):
    count = 0
    typed = Typed("held")

    def __init__(self, n):
        self.n = n
        self.typed = n

    @abc.abstractmethod
    def work(self, t): ...

    @property
    def half(self):
        return self.n / 2

    @half.setter
    def half(self, value):
        self.n = value * 2

    @classmethod
    def make(cls, *args):
        return cls(*args)

    @staticmethod
    def shift(t):
        return t + 10

    @functools.cached_property
    def costly(self):
        return self.n * 100

    @Lazy
    def lazily(self):
        return self.n + 0.5


class Child(Base):
    def __init__(self, n, extra=0):
        super().__init__(n)
        self.extra = extra

    def work(self, t):
        return t * self.n + self.extra

    @classmethod
    def make(cls, *args):
        made = super().make(*args)
        made.extra = 1
        return made

    @property
    def half(self):
        return super().half + 1

    def __getattr__(self, name):
        if name.startswith("dyn_"):
            return name[4:]
        raise AttributeError(f"no {name}")


def classes(x):
    c = Child.make(4)
    return (
        c.work(x),
        c.half,
        c.typed,
        c.dyn_size,
        getattr(c, "missing", "default"),
        hasattr(c, "other"),
        Child.shift(x),
        c.costly,
        c.costly,
        c.lazily,
        isinstance(c, Base),
        isinstance(c, (int, abc.ABC)),
        issubclass(Child, Base),
        Child.__name__,
        type(c) is Child,
        c.__class__.__mro__[1] is Base,
        super(Child, c).half,
        Base.work is not Child.work,
    )


class Vector:
    def __init__(self, *items):
        self.items = list(items)

    def __len__(self):
        return len(self.items)

    def __bool__(self):
        return bool(self.items)

    def __eq__(self, other):
        return isinstance(other, Vector) and self.items == other.items

    def __hash__(self):
        return hash(tuple(self.items))

    def __contains__(self, item):
        return item in self.items

    def __iter__(self):
        return iter(self.items)

    def __getitem__(self, key):
        return self.items[key]

    def __setitem__(self, key, value):
        self.items[key] = value

    def __delitem__(self, key):
        del self.items[key]

    def __add__(self, other):
        if not isinstance(other, Vector):
            return NotImplemented
        return Vector(*(a + b for a, b in zip(self, other, strict=True)))

    def __radd__(self, other):
        return Vector(*(other + a for a in self))

    def __mul__(self, k):
        return Vector(*(a * k for a in self))

    __rmul__ = __mul__

    def __iadd__(self, other):
        self.items.append(other)
        return self

    def __neg__(self):
        return self * -1

    def __lt__(self, other):
        return len(self) < len(other)

    def __call__(self, t, *, k=1):
        return t * len(self) * k

    def __repr__(self):
        return f"Vector({', '.join(map(str, self.items))})"

    def __index__(self):
        return len(self)

    def __reversed__(self):
        return iter(self.items[::-1])


def overloads(x):
    v, w = Vector(1, 2), Vector(3, 4)
    v[0] = 5
    u = v + w
    s = 1 + v
    t = 2 * v
    v += 9
    del w[0]
    return (
        len(v),
        bool(Vector()),
        not v,
        u == Vector(8, 6),
        u != w,
        2 in v,
        [*v],
        v[1:],
        s.items,
        t.items,
        (-u).items,
        w < v,
        w > v,
        v(x, k=2),
        repr(u),
        f"{u} {w!r}",
        sum(v),
        max(v, key=lambda n: -n),
        [10, 20, 30, 40][w],
        list(reversed(u)),
        list(zip(u, v, strict=False)),
    )


class Counted(type):
    def __call__(cls, *args, **kwargs):
        made = super().__call__(*args, **kwargs)
        made.counted = True
        return made


class Meta(metaclass=Counted):
    def __init__(self, n):
        self.n = n


def metaclasses(x):
    made = Meta(3)
    return x * made.n, made.counted, isinstance(made, Meta), type(Meta) is Counted


def reflection(x):
    box = Point(1)
    setattr(box, "x", 5)
    names = [n for n in ("x", "y", "q") if hasattr(box, n)]
    delattr(box, "y")
    same = box
    signature = inspect.signature(add)
    return (
        x + box.x,
        names,
        box.y,
        same is box,
        vars(box)["x"],
        callable(add),
        callable(box),
        list(signature.parameters),
        add.__name__,
        add.__defaults__,
        type(3).__name__,
        isinstance(True, int),
        isinstance(3, (str, float)),
        isinstance([], collections.abc.Sequence),
        isinstance({}, collections.abc.Mapping),
        issubclass(int, object),
    )


def comprehended(x):
    return (
        [[i * j for j in range(2)] for i in range(3)],
        {i: x * i for i in range(2)},
        [a for a in range(10) if a % 2 if a > 4],
        [(a, b) for a in range(2) for b in "ab"],
        list(i for i in range(3)),
        {k: [v] for k, v in zip("ab", range(2), strict=True)},
    )


def loops(x):
    for i in range(3):
        for j in range(3):
            if j == 2:
                break
        else:
            x = x * 100
        if i == 1:
            continue
        x = x + i
    else:
        x = x - 1
    n = 5
    while n > 0:
        n -= 2
        if n == 1:
            break
    else:
        x = x * 0
    return x, n


WHOLE: list[Callable[..., Any]] = [
    matched,
    stars,
    deleted,
    scopes,
    words,
    chained,
    sliced,
    sets,
    views,
    higher_order,
    tools,
    iterated,
    operators,
    numbers,
    collected,
    enums,
    records,
    copied,
    classes,
    overloads,
    metaclasses,
    reflection,
    comprehended,
    loops,
]


@pytest.mark.parametrize("function", WHOLE, ids=lambda f: f.__name__)
def test_captured_whole(function: Callable[..., Any]) -> None:
    runner = compare(function, X)
    assert [(record.code, record.reason, record.line) for record in runner.breaks] == []
    assert runner.recompiles == []
