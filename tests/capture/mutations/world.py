"""The world that mutations change: classes, metaclasses, descriptors, enums, functions, containers, modules, settings.

Read as text and executed once per run: plain Python and smelt each have one of their own. What its hooks are asked they
note in `seen`, which is compared after each call.
"""

import abc
import collections
import contextlib
import dataclasses
import enum
import functools
import operator
import types
import typing

import torch

__all__ = ["collections", "contextlib", "functools", "operator", "types", "typing"]  # for reads and changes

seen = []


def note(what, answer):
    seen.append(what)
    return answer


# classes, plain and abstract


class Root:
    size = 2
    names = ("k",)

    def __init__(self, k=1):
        self.k = k

    def area(self):
        return self.k * self.size


class Mixin:
    extra = 4

    def area(self):
        return self.k * 100


class Middle(Root):
    """Doc of Middle."""


class Leaf(Middle):
    __match_args__ = ("k",)


class Stranger:
    size = 5
    k = 7


class Abstract(abc.ABC):  # noqa: B024
    kind = "abstract"


class Nominal(Abstract):
    pass


class Hooked(abc.ABC):  # noqa: B024
    @classmethod
    def __subclasshook__(cls, kind):
        return note("hook", hasattr(kind, "quack"))


@typing.runtime_checkable
class Named(typing.Protocol):
    name: str


@typing.runtime_checkable
class Speaks(typing.Protocol):
    def speak(self): ...


class Talker:
    def speak(self):
        return "hello"


class Quiet:
    pass


# metaclasses


class Meta(type):
    level = 1

    def describe(cls):
        return (cls.__name__, cls.level)

    @property
    def tag(cls):
        return cls.level * 10


class Typed(metaclass=Meta):
    value = 3


class Asking(type):
    answer = True

    def __instancecheck__(cls, real):
        return note("instance", cls.answer)

    def __subclasscheck__(cls, kind):
        return note("subclass", cls.answer)


class Wanted(metaclass=Asking):
    pass


class Operated(type):
    entries: typing.ClassVar = {"a": 1, "b": 2}

    def __getitem__(cls, key):
        return cls.entries[key]

    def __len__(cls):
        return len(cls.entries)

    def __iter__(cls):
        return iter(cls.entries)

    def __contains__(cls, key):
        return key in cls.entries

    def __bool__(cls):
        return bool(cls.entries)

    def __add__(cls, other):
        return len(cls.entries) + other

    def __call__(cls, *args):
        return note("made", super().__call__(*args))


class Table(metaclass=Operated):
    def __init__(self, k=0):
        self.k = k


class Same(type):
    twin = True

    def __eq__(cls, other):
        return cls.twin if isinstance(other, Same) else NotImplemented

    def __hash__(cls):
        return 5


class One(metaclass=Same):
    pass


class Two(metaclass=Same):
    pass


class Parametrized:
    factor = 2

    def __class_getitem__(cls, key):
        return note("item", (key, cls.factor))


# objects that are not what they seem


class Proxy:
    shows = Root

    @property
    def __class__(self):
        return self.shows


class Lazy:
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return note("lazy", len(name))


class Watched:
    k = 1

    def __getattribute__(self, name):
        return object.__getattribute__(self, name)


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self):
        self.a = 1


class Sized:
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __contains__(self, item):
        return item in self.items

    def __getitem__(self, place):
        return self.items[place]

    def __iter__(self):
        return iter(self.items)


class Callable:
    def __call__(self, x):
        return x + 1


class Number:
    def __init__(self, k):
        self.k = k

    def __add__(self, other):
        return self.k + (other.k if isinstance(other, Number) else other)

    def __radd__(self, other):
        return self.k + other + 1000

    def __eq__(self, other):
        return isinstance(other, Number) and other.k == self.k

    def __hash__(self):
        return hash(self.k)

    def __lt__(self, other):
        return self.k < other.k

    def __neg__(self):
        return -self.k

    def __index__(self):
        return self.k

    def __float__(self):
        return float(self.k)

    def __str__(self):
        return f"number {self.k}"

    def __repr__(self):
        return f"Number({self.k})"

    def __format__(self, spec):
        return f"<{self.k}{spec}>"


class Managed:
    entered = 5

    def __enter__(self):
        return self.entered

    def __exit__(self, *error):
        return False


# descriptors


class Data:
    offset = 0

    def __get__(self, owner, kind=None):
        return self if owner is None else vars(owner).get("_data", 1) + self.offset

    def __set__(self, owner, value):
        vars(owner)["_data"] = value


class Getting:
    offset = 0

    def __get__(self, owner, kind=None):
        return 20 + self.offset


class Deleting:
    def __get__(self, owner, kind=None):
        return 30

    def __delete__(self, owner):
        seen.append("deleted")


class Waiting:
    """No descriptor yet."""


class Owner:
    data = Data()
    getting = Getting()
    deleting = Deleting()
    waiting = Waiting()

    def __init__(self):
        self._data = 3
        self._x = 2

    @property
    def x(self):
        return self._x

    @x.setter
    def x(self, value):
        self._x = value

    @functools.cached_property
    def once(self):
        return self._x * 11

    @classmethod
    def of_class(cls):
        return cls.__name__

    @staticmethod
    def static(k=1):
        return k + 1


# enums


class Color(enum.Enum):
    RED = 1
    BLUE = 2

    def __init__(self, value):
        self.weight = value * 10

    @property
    def twice(self):
        return self.value * 2

    def plus(self, k):
        return self.value + k


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 3


class Bits(enum.Flag):
    R = 1
    W = 2


class Word(str, enum.Enum):  # noqa: UP042
    A = "a"
    B = "b"


# records


@dataclasses.dataclass
class Point:
    x: int = 1
    y: int = 2


@dataclasses.dataclass(frozen=True)
class Frozen:
    left: int = 1


Pair = collections.namedtuple("Pair", "first second", defaults=(7,))


class Dictionary(dict):
    def __missing__(self, key):
        return len(key)


class Fault(Exception):
    code = 1


class Worse(Fault):
    code = 2


# functions


def scaled(x, k=2, *, bias=1):
    return x * k + bias


def shifted(x, k=3, *, bias=5):
    return x - k - bias


def closing(k):
    def inner(x):
        return x + k

    return inner


def stored():
    return 1


def other_stored():
    return 2


inner = closing(4)
partial = functools.partial(scaled, k=3)


@functools.lru_cache
def cached(k):
    return note("cached", k + tools.offset)


@functools.singledispatch
def dispatched(value):
    return "any"


@dispatched.register
def _(value: int):
    return "int"


def yes(*args, **kwargs):
    return True


def no(*args, **kwargs):
    return False


def three(*args, **kwargs):
    return 3


def noting(*args, **kwargs):
    return note("asked", 1)


def raising(*args, **kwargs):
    raise Fault("no")


def nameless(*args):
    raise AttributeError("nameless")


def setting(self, owner, value):
    seen.append("set")


def matched(value):
    match value:
        case Leaf(k=k):
            return ("leaf", k)
        case Root():
            return "root"
        case Wanted() | Typed():
            return "wanted"
        case Abstract() | Hooked():
            return "abstract"
        case Named():
            return "named"
    return "nothing"


def matched_by_place(value):
    match value:
        case Leaf(k):
            return k
        case Point(x, 2):
            return x
        case Pair(first):
            return ("pair", first)
        case int(n):
            return n
    return "nothing"


def matched_plainly(value):
    match value:
        case [first, *_]:
            return first
        case {"a": first}:
            return first
        case Color.RED:
            return "red"
        case 1:
            return "one"
    return "nothing"


def caught(kind):
    try:
        raise kind("thrown")
    except Fault as error:
        return ("fault", error.code)
    except Exception as error:
        return ("other", type(error).__name__)


def managing(manager):
    with manager as entered:
        return entered


def super_area(each):
    return super(Middle, each).area()


scaled_code = scaled.__code__
bin_before, len_before, isinstance_before, type_before = bin, len, isinstance, type
tools = types.ModuleType("tools")
tools.offset = 1
tools.scale = lambda x: x * 2
tools.nested = types.ModuleType("nested")
tools.nested.k = 9


# modules


class Net(torch.nn.Module):
    factor = 2

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((3,), 0.5))
        self.register_buffer("offset", torch.ones(3))
        self.inner = torch.nn.ReLU()
        self.flag = True

    def forward(self, x):
        y = self.inner(x * self.weight + self.offset) * self.factor
        return y + 1 if self.training else y


class Adding(torch.nn.Module):
    def forward(self, x):
        return x + 10


def pre_hook(module, args):
    return (args[0] * 2,)


def hook(module, args, result):
    return result + 100


# objects

root, middle, leaf, stranger = Root(2), Middle(3), Leaf(4), Stranger()
nominal, talker, quiet = Nominal(), Talker(), Quiet()
typed, wanted, table, one = Typed(), Wanted(), Table(3), One()
proxy, lazy, watched, slotted, sized = Proxy(), Lazy(), Watched(), Slotted(), Sized([1, 2])
caller, number, managed, owner = Callable(), Number(6), Managed(), Owner()
point, frozen, pair, dictionary = Point(), Frozen(), Pair(1), Dictionary(a=1)
net, adding = Net(), Adding()
numbers, mapping, bag = [1, 2, 3], {"a": 1, "b": 2}, {1, 2}
ordered = collections.OrderedDict(a=1, b=2)
defaults = collections.defaultdict(int, a=5)
by_class = {One: "one", int: "int", Root: "root"}
queue = collections.deque([1, 2, 3], maxlen=4)
kinds = (Leaf, int)
space = types.SimpleNamespace(k=1)
plain_tensor = torch.full((3,), 2.0)
parameter = torch.nn.Parameter(torch.full((3,), 3.0))
buffer = torch.nn.Buffer(torch.full((3,), 4.0))
union = Root | int
member = Color.RED
scale = 2
current = leaf
everything = [root, leaf, stranger, nominal, typed, wanted, proxy, slotted, number, point, 1, "a", None, numbers]
