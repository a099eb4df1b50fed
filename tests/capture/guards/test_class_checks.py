"""What capture asks of classes is asked again when they change: bases, registers, metaclasses, names, descriptors.

Each test calls a compiled function, changes the world as a later caller may, and holds the next call against plain
Python; and back again.
"""

import abc
import collections.abc
import enum
import functools
import types
import typing
import weakref
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.base.options import config
from tests.capture.programs import Captured

X = torch.ones(3)


@pytest.fixture(autouse=True)
def many_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "cache_size_limit", 64)


class Follow:
    """A function, called compiled and plainly after each change. Three times, as the third call takes a fast path."""

    def __init__(self, function: Callable[..., Any], *given: Any, breaks: bool = False) -> None:
        self.function, self.given, self.captured, self.breaks = function, given, Captured(), breaks
        self.answers: list[Any] = []

    def __call__(self, *given: Any) -> Any:
        given = given or self.given
        for _ in range(3):
            mine = self._answer(functools.partial(self.captured, self.function), given)
            plain = self._answer(self.function, given)
            assert mine == plain
        assert self.breaks or not self.captured.break_codes
        self.answers.append(plain)
        return plain

    def _answer(self, function: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        try:
            x, answer = function(X, *given)
        except Exception as error:
            return type(error), str(error)
        return x.tolist(), type(answer), answer


class Base:
    pass


def is_base(x: Any, real: Any) -> Any:
    answer = isinstance(real, Base)
    return (x + 1 if answer else x - 1), answer


def test_bases_that_change() -> None:
    class Root:
        pass

    class Between(Root):
        pass

    class Thing(Between):
        pass

    follow = Follow(is_base, Thing())
    follow()
    Between.__bases__ = (Base,)
    follow()
    Between.__bases__ = (Root,)
    follow()
    assert [answer for _, _, answer in follow.answers] == [False, True, False]


def test_bases_of_classes_that_are_asked() -> None:
    class Root:
        pass

    class Middle(Root):
        pass

    class Thing(Root):
        pass

    follow = Follow(lambda x, kind: (x + 1, issubclass(kind, Base)), Thing)
    follow()
    Thing.__bases__ = (Middle,)
    follow()
    Middle.__bases__ = (Base,)
    follow()
    assert [answer for _, _, answer in follow.answers] == [False, False, True]


@pytest.mark.parametrize("made_inside", [False, True])
def test_a_register(made_inside: bool) -> None:
    class Abstract(abc.ABC):  # noqa: B024
        pass

    class Thing:
        pass

    def program(x: Any, thing: Any) -> Any:
        real = Thing() if made_inside else thing
        answer = isinstance(real, Abstract), issubclass(Thing, Abstract)
        return (x + 1 if answer[0] else x), answer

    follow = Follow(program, Thing())
    follow()
    collections.abc.Sized.register(type("Other", (), {}))  # somebody else's, which changes nothing here
    follow()
    assert not follow.captured.recompiles
    Abstract.register(Thing)
    follow()
    assert [answer for _, _, answer in follow.answers] == [(False, False), (False, False), (True, True)]


def test_abstract_classes_of_python() -> None:
    class Thing:
        pass

    def program(x: Any, thing: Any) -> Any:
        kinds = (collections.abc.Sized, collections.abc.Mapping, collections.abc.Hashable)
        return x, [isinstance(thing, kind) for kind in kinds] + [isinstance(x, collections.abc.Mapping)]

    follow = Follow(program, Thing())
    follow()
    collections.abc.Mapping.register(Thing)
    follow()
    assert [answer for _, _, answer in follow.answers] == [[False, False, True, False], [True, True, True, False]]


def test_a_subclass_hook_of_the_program() -> None:
    asked = []

    class Hooked(abc.ABC):  # noqa: B024
        @classmethod
        def __subclasshook__(cls, kind: type) -> bool:
            asked.append(kind)
            return hasattr(kind, "quack")

    class Thing:
        pass

    follow = Follow(lambda x, thing: (x, isinstance(thing, Hooked)), Thing(), breaks=True)
    follow()
    Thing.quack = 1  # type: ignore[attr-defined]
    follow()
    assert len(asked) == 1  # it remembers, as in plain Python


def make_asking() -> Any:
    """A metaclass that says itself what is an instance, and counts how often."""

    class Asking(type):
        answer: Any = True
        asked = 0

        def __instancecheck__(cls, real: Any) -> Any:
            Asking.asked += 1
            return cls.answer

        def __subclasscheck__(cls, kind: type) -> Any:
            return cls.answer

    return Asking


def test_a_metaclass_that_answers() -> None:
    Asking = make_asking()

    class Wanted(metaclass=Asking):
        pass

    def program(x: Any) -> Any:
        return x, (isinstance(3, Wanted), isinstance(x, (int, Wanted)), issubclass(int, Wanted))

    follow = Follow(program, breaks=True)  # as it counts in a class
    before = Asking.asked
    follow()
    assert Asking.asked == before + 12  # twice in each of six calls: guards ask nothing
    Wanted.answer = 0
    follow()
    Asking.__instancecheck__ = lambda cls, real: type(real) is int
    follow()
    assert [answer for _, _, answer in follow.answers] == [(True,) * 3, (False,) * 3, (True, False, False)]


def test_a_metaclass_that_learns_to_answer() -> None:
    class Meta(type):
        pass

    class Wanted(metaclass=Meta):
        pass

    follow = Follow(lambda x: (x, isinstance(3, Wanted)))
    follow()
    Meta.__instancecheck__ = lambda cls, real: True  # type: ignore[method-assign]
    follow()
    follow.breaks = True
    del Meta.__instancecheck__
    follow()
    Wanted.__class__ = make_asking()
    follow()
    assert [answer for _, _, answer in follow.answers] == [False, True, False, True]


@typing.runtime_checkable
class Named(typing.Protocol):
    name: str


@typing.runtime_checkable
class Speaks(typing.Protocol):
    def speak(self) -> None: ...


def test_protocols_look_at_each_object() -> None:
    class Thing:
        pass

    first, second = Thing(), Thing()
    second.name = "second"  # type: ignore[attr-defined]
    follow = Follow(lambda x, thing: (x, isinstance(thing, Named)), breaks=True)
    assert follow(first)[2] is False
    assert follow(second)[2] is True
    first.name = "first"  # type: ignore[attr-defined]
    assert follow(first)[2] is True
    del second.name  # type: ignore[attr-defined]
    assert follow(second)[2] is False


def test_protocols_look_at_classes() -> None:
    class Thing:
        pass

    follow = Follow(lambda x, thing: (x, isinstance(thing, Speaks)), Thing(), breaks=True)
    assert follow()[2] is False
    follow.given[0].speak = lambda: None
    assert follow()[2] is True


def test_flags_of_tensors() -> None:
    def program(x: Any, tensor: Any) -> Any:
        return x + tensor, (isinstance(tensor, torch.nn.Parameter), isinstance(tensor, torch.nn.Buffer))

    follow = Follow(program)
    plain = torch.ones(3)
    assert follow(torch.nn.Buffer(torch.ones(3)))[2] == (False, True)
    assert follow(plain)[2] == (False, False)
    plain._is_param = True  # type: ignore[attr-defined]
    assert follow(plain)[2] == (True, False)
    plain._is_buffer = True  # type: ignore[attr-defined]
    assert follow(plain)[2] == (True, True)
    assert follow(torch.nn.Parameter(torch.ones(3), requires_grad=False))[2] == (True, False)


class Proxy:
    def __init__(self, shows: type) -> None:
        self.shows = shows

    @property
    def __class__(self) -> type:
        return self.shows

    @__class__.setter
    def __class__(self, kind: type) -> None:
        raise AttributeError


def test_proxies() -> None:
    class Abstract(abc.ABC):  # noqa: B024
        pass

    Abstract.register(Base)

    def program(x: Any, proxy: Any) -> Any:
        match proxy:
            case Base():
                matched = True
            case _:
                matched = False
        return x, (isinstance(proxy, Base), isinstance(proxy, Abstract), isinstance(proxy, Proxy), matched)

    follow = Follow(program)
    assert follow(Proxy(int))[2] == (False, False, True, False)
    assert follow(Proxy(Base))[2] == (True, True, True, True)
    proxy, follow.breaks = Proxy(Base), True
    assert follow(weakref.proxy(proxy))[2] == (True, True, False, True)


def test_class_patterns() -> None:
    class Point:
        __match_args__: Any = ("x",)

        def __init__(self) -> None:
            self.x, self.y = 1, 2

    class Wanted(metaclass=make_asking()):
        pass

    def program(x: Any, value: Any) -> Any:
        match value:
            case Point(first):
                return x, first
            case Wanted():
                return x, "wanted"
        return x, None

    follow = Follow(program, Point(), breaks=True)
    assert follow()[2] == 1
    Point.__match_args__ = ("y",)
    assert follow()[2] == 2
    Point.__match_args__ = ["y"]
    assert follow()[0] is TypeError
    Point.__match_args__ = ("y", "x")
    assert follow()[2] == 2
    assert follow(3)[2] == "wanted"
    Wanted.answer = False
    assert follow(3)[2] is None


def test_callable() -> None:
    class Thing:
        pass

    follow = Follow(lambda x, thing: (x, (callable(thing), callable(Thing()), callable(Thing))), Thing())
    assert follow()[2] == (False, False, True)
    Thing.__call__ = lambda self: 1  # type: ignore[attr-defined]
    assert follow()[2] == (True, True, True)
    del Thing.__call__  # type: ignore[attr-defined]
    assert follow()[2] == (False, False, True)


def test_names_of_classes() -> None:
    class Thing:
        """A thing."""

    def program(x: Any, thing: Any) -> Any:
        kind = type(thing)
        words = f"{kind} {kind.__name__}", repr([kind]), str(kind)
        return x, (Thing.__name__, thing.__class__.__qualname__, kind.__module__, kind.__doc__, words)

    follow = Follow(program, Thing())
    follow()
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        before = follow.answers[-1]
        setattr(Thing, name, "other")
        assert follow() != before


def test_names_in_messages() -> None:
    class Thing:
        pass

    def program(x: Any, thing: Any) -> Any:
        try:
            return x, thing.missing
        except AttributeError as error:
            return x, str(error)

    follow = Follow(program, Thing())
    assert follow()[2] == "'Thing' object has no attribute 'missing'"
    Thing.__name__ = "Renamed"
    assert follow()[2] == "'Renamed' object has no attribute 'missing'"


def test_class_items() -> None:
    asked = []

    class Thing:
        factor = 2

        def __class_getitem__(cls, key: int) -> int:
            asked.append(key)
            return key * cls.factor

    class Meta(type):
        def __getitem__(cls, key: int) -> int:
            return key + 1

    class Table(metaclass=Meta):
        pass

    follow = Follow(lambda x: (x * Thing[2], (Thing[3], Table[4])))
    assert follow()[2] == (6, 5)
    assert len(asked) == 12
    Thing.factor = 5
    assert follow()[2] == (15, 5)
    Thing.__class_getitem__ = classmethod(lambda cls, key: 0)  # type: ignore[assignment]
    Meta.__getitem__ = lambda cls, key: 9  # type: ignore[method-assign]
    assert follow()[2] == (0, 9)
    Thing.__class_getitem__ = staticmethod(lambda key: 7)  # type: ignore[assignment]
    assert follow()[2] == (7, 9)


class Same(type):
    twins = True

    def __eq__(cls, other: object) -> Any:
        return cls.twins

    def __hash__(cls) -> int:
        return 5


def test_operators_of_metaclasses() -> None:
    class One(metaclass=Same):
        pass

    class Two(metaclass=Same):
        pass

    def program(x: Any) -> Any:
        return x, (One == Two, {One: 1}.get(Two), Two in (One, int), Two in [One])

    follow = Follow(program, breaks=True)
    assert follow()[2] == (True, 1, True, True)
    Same.twins = False
    assert follow()[2] == (False, None, False, False)
    One.twins = True
    assert follow()[2] == (True, 1, True, True)


def test_a_metaclass_that_gains_operators() -> None:
    class Meta(type):
        pass

    class One(metaclass=Meta):
        pass

    class Two(metaclass=Meta):
        pass

    def program(x: Any) -> Any:
        return x, (One == Two, One in {Two: 1}, 1 if One else 2, bool(Two))

    follow = Follow(program, breaks=True)
    assert follow()[2] == (False, False, 1, True)
    Meta.__eq__ = lambda cls, other: True  # type: ignore[method-assign]
    assert follow()[2][0] is True
    Meta.__bool__ = lambda cls: False  # type: ignore[attr-defined]
    assert follow()[2][2:] == (2, False)


def test_calling_a_class_whose_metaclass_changes() -> None:
    class Plain(type):
        pass

    class Meta(type):
        def __call__(cls, *args: Any) -> Any:
            return 5

    class Thing(metaclass=Plain):
        def __init__(self) -> None:
            self.k = 1

    follow = Follow(lambda x: (x, getattr(Thing(), "k", 0)))
    assert follow()[2] == 1
    Thing.__class__ = Meta  # type: ignore[assignment]
    assert follow()[2] == 0
    Meta.__call__ = type.__call__  # type: ignore[method-assign]
    assert follow()[2] == 1


def test_attributes_of_metaclasses() -> None:
    class Meta(type):
        level = 1

        @property
        def tag(cls) -> int:
            return cls.level * 10

        def describe(cls) -> tuple[str, int]:
            return cls.__name__, cls.level

    class Thing(metaclass=Meta):
        pass

    def program(x: Any) -> Any:
        return x, (Thing.level, Thing.tag, Thing.describe(), getattr(Thing, "other", None))

    follow = Follow(program)
    assert follow()[2] == (1, 10, ("Thing", 1), None)
    Meta.level = 2
    assert follow()[2] == (2, 20, ("Thing", 2), None)
    Thing.level = 3
    assert follow()[2] == (3, 30, ("Thing", 3), None)
    Meta.other = 5  # type: ignore[attr-defined]
    assert follow()[2][3] == 5
    Thing.other = 6  # type: ignore[attr-defined]
    assert follow()[2][3] == 6
    Meta.other = property(lambda cls: 7)  # type: ignore[attr-defined]
    assert follow()[2][3] == 7
    del Meta.other, Thing.other  # type: ignore[attr-defined]
    Meta.__getattr__ = lambda cls, name: name  # type: ignore[attr-defined]
    assert follow()[2][3] == "other"


class Color(enum.Enum):
    RED = 1
    BLUE = 2

    def __init__(self, value: int) -> None:
        self.weight = value * 10


def test_members_of_enums() -> None:
    kind = enum.Enum("Kind", {"RED": 1, "BLUE": 2})
    flag = enum.Flag("Bits", {"R": 1, "W": 2})

    def program(x: Any, member: Any) -> Any:
        seen = [each.name for each in kind], len(kind), kind["RED"].value, kind(1).name, str(member)
        return x * member.value, (member._value_, member.name, getattr(member, "weight", 0), flag.R.value, *seen)

    follow = Follow(program, kind.RED, breaks=True)
    follow()
    assert not follow.captured.break_codes
    changes: list[Callable[[], Any]] = [
        lambda: setattr(kind.RED, "weight", 4),
        lambda: setattr(kind.RED, "_value_", 7),
        lambda: setattr(kind.RED, "_name_", "ROT"),
        lambda: setattr(flag.R, "_value_", 2),
        lambda: delattr(kind.RED, "weight"),
        lambda: kind._member_map_.__setitem__("RED", kind.BLUE),
        lambda: kind._value2member_map_.__setitem__(1, kind.BLUE),
        lambda: kind._member_names_.append("BLUE"),
        lambda: setattr(kind, "__str__", lambda self: "other"),
        lambda: setattr(kind, "weight", property(lambda self: 8)),
    ]
    for change in changes:
        before = follow.answers[-1]
        change()
        assert follow() != before


def test_an_enum_that_gains_operators() -> None:
    kind = enum.Enum("Kind", {"RED": 1, "BLUE": 2})
    follow = Follow(lambda x: (x, (kind.RED == kind.BLUE, {kind.RED: 1}.get(kind.BLUE))), breaks=True)
    assert follow()[2] == (False, None)
    kind.__eq__ = lambda self, other: True  # type: ignore[assignment,method-assign]
    assert follow()[2][0] is True


class Descriptor:
    def __get__(self, owner: Any, kind: Any = None) -> int:
        return 20


def test_descriptors_that_come_to_be_data_descriptors() -> None:
    class Getting(Descriptor):
        pass

    class Owner:
        held = Getting()

    owner = Owner()
    vars(owner)["held"] = 1
    follow = Follow(lambda x, owner: (x, owner.held), owner)
    assert follow()[2] == 1
    Getting.__set__ = lambda self, owner, value: None  # type: ignore[attr-defined]
    assert follow()[2] == 20
    del Getting.__set__  # type: ignore[attr-defined]
    assert follow()[2] == 1
    Getting.__delete__ = lambda self, owner: None  # type: ignore[attr-defined]
    assert follow()[2] == 20
    vars(Owner)["held"].__class__ = Descriptor
    assert follow()[2] == 1
    del vars(owner)["held"]
    assert follow()[2] == 20


def test_a_descriptor_that_deletes() -> None:
    class Deleting(Descriptor):
        def __delete__(self, owner: Any) -> None:
            vars(owner).pop("held", None)

    class Owner:
        held = Deleting()

    def program(x: Any, owner: Any) -> Any:
        vars(owner)["held"] = 1
        seen = owner.held
        inside = Owner()
        vars(inside)["held"] = 2
        return x, (seen, inside.held)

    assert Follow(program, Owner())()[2] == (20, 20)


def test_an_object_that_comes_to_be_a_descriptor() -> None:
    class Waiting:
        pass

    class Owner:
        held: Any = Waiting()

    follow = Follow(lambda x, owner: (x, type(owner.held).__name__), Owner())
    assert follow()[2] == "Waiting"
    Waiting.__get__ = lambda self, owner, kind: 5  # type: ignore[attr-defined]
    assert follow()[2] == "int"


def test_super_looks_at_every_class_in_order() -> None:
    class First:
        def area(self) -> int:
            return 1

    class Second(First):
        pass

    class Third(Second):
        def area(self) -> int:
            return super().area() + 10

    follow = Follow(lambda x, thing: (x, thing.area()), Third())
    assert follow()[2] == 11
    Second.area = lambda self: 2  # type: ignore[method-assign]
    assert follow()[2] == 12
    del Second.area
    assert follow()[2] == 11
    Third.__bases__ = (type("Other", (), {"area": lambda self: 3}), Second)
    assert follow()[2] == 13


def test_except_asks_for_bases() -> None:
    class Other(Exception):
        pass

    class Fault(Exception):
        pass

    class Worse(Fault):
        pass

    def program(x: Any) -> Any:
        try:
            raise Worse("a")
        except Fault:
            return x, 1
        except Exception:
            return x, 2

    follow = Follow(program)
    assert follow()[2] == 1
    Worse.__bases__ = (Other,)
    assert follow()[2] == 2


def test_the_right_side_of_an_operator_comes_first_if_it_is_a_subclass() -> None:
    class Left:
        def __add__(self, other: Any) -> str:
            return "left"

        def __lt__(self, other: Any) -> Any:
            return "less"

    class Between:
        pass

    class Right(Between):
        def __radd__(self, other: Any) -> str:
            return "right"

        def __gt__(self, other: Any) -> Any:
            return "greater"

    follow = Follow(lambda x: (x, (Left() + Right(), Left() < Right())))
    assert follow()[2] == ("left", "less")
    Right.__bases__ = (Left,)
    assert follow()[2] == ("right", "greater")


def test_special_methods_are_the_class_s() -> None:
    class Thing:
        def __init__(self) -> None:
            self.items = [1, 2]

        def __len__(self) -> int:
            return len(self.items)

        def __iter__(self) -> Any:
            return iter(self.items)

    class Lazy:
        def __getattr__(self, name: str) -> Any:
            return lambda *args: 5

    thing = Thing()
    vars(thing)["__len__"] = lambda: 100
    vars(thing)["__iter__"] = lambda: iter([7])
    follow = Follow(lambda x, thing: (x, (len(thing), list(thing))), thing)
    assert follow()[2] == (2, [1, 2])
    for use in (len, list, lambda lazy: lazy[0], lambda lazy: 1 in lazy):
        assert Follow(lambda x, lazy, use: (x, use(lazy)), Lazy(), use, breaks=True)()[0] is TypeError


def test_named_tuples() -> None:
    Pair = namedtuple("Pair", "first second", defaults=(7,))

    def program(x: Any, pair: Any) -> Any:
        made = Pair(3)
        return x * made.first, (made.second, made[1], pair.first, Pair(first=1).second)

    follow = Follow(program, Pair(1), breaks=True)
    assert follow()[2] == (7, 7, 1, 7)
    Pair.__new__.__defaults__ = (8,)
    assert follow()[2] == (8, 8, 1, 8)
    Pair.second = property(lambda self: 9)  # type: ignore[assignment]
    assert follow()[2] == (9, 8, 1, 9)
    Pair.__new__ = lambda cls, first: tuple.__new__(cls, (first, 5))  # type: ignore[assignment,method-assign]
    assert follow()[2] == (9, 5, 1, 9)


def test_modules_that_change_their_class() -> None:
    module = types.ModuleType("module")
    module.k = 1  # type: ignore[attr-defined]

    class Other(types.ModuleType):
        k = property(lambda self: 5)

    follow = Follow(lambda x: (x, module.k), breaks=True)
    assert follow()[2] == 1
    module.__class__ = Other
    assert follow()[2] == 5


def test_dict_classes() -> None:
    class Things(OrderedDict[str, int]):
        pass

    def program(x: Any, things: Any) -> Any:
        made = Things(a=1)
        return x, (things["a"], made["a"], isinstance(things, dict), "a" in things)

    follow = Follow(program, Things(a=1), breaks=True)
    assert follow()[2] == (1, 1, True, True)
    Things.__getitem__ = lambda self, key: 5  # type: ignore[method-assign,assignment]
    assert follow()[2] == (5, 5, True, True)
    Things.__contains__ = lambda self, key: False  # type: ignore[method-assign,assignment]
    assert follow()[2] == (5, 5, True, False)


def test_members_of_which_something_is_missing() -> None:
    kind = enum.Enum("Kind", {"RED": 1, "BLUE": 2})

    def program(x: Any, member: Any) -> Any:
        try:
            return x, ({kind.BLUE: 1}.get(member), member.value, member is kind.RED)
        except AttributeError as error:
            return x, str(error)

    follow = Follow(program, kind.RED, breaks=True)
    assert follow()[2] == (None, 1, True)
    held = dict(vars(kind.RED))
    vars(kind.RED).clear()
    assert "_name_" in follow()[2]
    vars(kind.RED).update(held)
    assert follow()[2] == (None, 1, True)
    kind.__getattribute__ = lambda self, name: 5  # type: ignore[method-assign,assignment]
    assert follow()[2] == (None, 5, True)


def test_a_base_asks_no_subclass() -> None:
    """Whatever other abstract classes of the process have for hooks, an instance of the class itself is one."""

    class Hooked(abc.ABC):  # noqa: B024
        @classmethod
        def __subclasshook__(cls, kind: type) -> Any:
            return NotImplemented

    class Own(abc.ABC):  # noqa: B024
        pass

    own = Own()

    def program(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if isinstance(own, abc.ABC) else x - 1

    assert Hooked in abc.ABC.__subclasses__()
    assert smelt.compile(program, fullgraph=True)(torch.ones(2)).equal(torch.full((2,), 2.0))
