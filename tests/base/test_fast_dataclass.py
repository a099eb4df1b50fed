"""Our dataclasses against the standard ones: everything that shows is the same."""

import copy
import dataclasses
import inspect
import itertools
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from smelt.base.fast_dataclass import dataclass as ours

KINDS = [dict(zip(("frozen", "slots", "eq"), each, strict=True)) for each in itertools.product((False, True), repeat=3)]


def family(make: Callable[..., Any], **how: bool) -> tuple[type, type]:
    @make(**how)
    class Base:
        """A base."""

        first: int
        second: str = "b"
        many: list[int] = dataclasses.field(default_factory=list)
        hidden: int = dataclasses.field(default=3, repr=False, compare=False)

        def doubled(self) -> int:
            return 2 * self.first

    @make(**how)
    class Derived(Base):
        """One that has more."""

        third: float = 1.5
        told: str = dataclasses.field(default="", kw_only=True)
        made: int = dataclasses.field(default=7, init=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "third", self.third + 1)

    return Base, Derived


def parameters(kind: type) -> list[tuple[str, object, str]]:
    return [(each.name, each.kind, repr(each.default)) for each in inspect.signature(kind).parameters.values()]


@pytest.mark.parametrize("how", KINDS, ids=str)
def test_they_look_compare_and_hash_as_the_standard_ones(how: dict[str, bool]) -> None:
    for mine, standard in zip(family(ours, **how), family(dataclasses.dataclass, **how), strict=True):
        assert parameters(mine) == parameters(standard)
        assert [each.name for each in dataclasses.fields(mine)] == [each.name for each in dataclasses.fields(standard)]
        assert mine.__match_args__ == standard.__match_args__  # type: ignore[attr-defined]
        assert (mine.__hash__ is None) == (standard.__hash__ is None)
        assert hasattr(mine, "__slots__") == hasattr(standard, "__slots__")
        assert repr(mine(1, many=[2])) == repr(standard(1, many=[2]))
        for one, other in (((1,), (1,)), ((1,), (2,)), ((1, "x"), (1, "y"))):
            assert (mine(*one) == mine(*other)) == (standard(*one) == standard(*other))
        assert mine(1) != standard(1) and mine(1) != 1
        assert mine(1, hidden=4).hidden == 4 and (mine(1, hidden=4) == mine(1)) is how["eq"]
        assert mine(1).many is not mine(1).many
        assert dataclasses.replace(mine(1), first=5).doubled() == 10


@pytest.mark.parametrize("slots", [False, True])
def test_a_frozen_one_stays_as_it_is_and_can_be_copied(slots: bool) -> None:
    _, kind = family(ours, frozen=True, slots=slots)
    value = kind(1, told="x")
    with pytest.raises(dataclasses.FrozenInstanceError, match="first"):
        value.first = 2
    with pytest.raises(dataclasses.FrozenInstanceError, match="first"):
        del value.first
    assert copy.copy(value) == value == copy.deepcopy(value)
    assert (value.third, value.made, value.told) == (2.5, 7, "x")


@ours(frozen=True, slots=True)
class Point:
    x: int
    y: int = 0


@ours(frozen=True, slots=True)
class Named:
    name: str

    def __repr__(self) -> str:
        return "named"

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 3


def test_they_are_pickled_hashed_and_matched() -> None:
    assert pickle.loads(pickle.dumps(Point(1, 2))) == Point(1, 2)
    assert {Point(1): "a"}[Point(1, 0)] == "a"
    match Point(4, 5):
        case Point(x, y):
            assert (x, y) == (4, 5)


def test_what_a_class_says_itself_is_kept() -> None:
    assert repr(Named("a")) == "named" and Named("a") == 3 and hash(Named("b")) == 3


def test_one_that_holds_itself_can_be_shown() -> None:
    @ours(slots=True)
    class Holder:
        held: Any = None

    holder = Holder()
    holder.held = [holder]
    assert repr(holder).endswith("Holder(held=[...])")


def test_a_class_without_fields_is_one_value() -> None:
    @ours(frozen=True, slots=True)
    class Nothing:
        pass

    assert Nothing() == Nothing() and hash(Nothing()) == hash(Nothing()) and repr(Nothing()).endswith("Nothing()")


def test_classes_of_one_shape_have_names_and_defaults_of_their_own() -> None:
    @ours(frozen=True, slots=True)
    class Size:
        width: int
        height: int = 5

    assert Size(1) == Size(1, 5) != Size(1, 6) and Size(height=3, width=2) == Size(2, 3)
    assert (Point(1).y, Point(1, 2).x, Size(1).height) == (0, 1, 5)
    assert parameters(Point) != parameters(Size) and Size.__init__.__qualname__.endswith("Size.__init__")
    with pytest.raises(TypeError, match="x"):
        Size(1, x=2)  # type: ignore[call-arg]


def test_missing_and_unknown_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match="x"):
        Point()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="z"):
        Point(1, z=2)  # type: ignore[call-arg]
