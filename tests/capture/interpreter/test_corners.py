"""Unusual but legal Python: classes that answer for themselves, and what is done with them, as plain Python does it."""

from typing import Any

import pytest
import torch

from tests.capture.programs import Captured, compare

X = torch.arange(4.0)


class Link:
    def __init__(self, number: float, following: "Link | None") -> None:
        self.number, self.following = number, following


def chain(length: int) -> Link | None:
    first = None
    for number in range(length):
        first = Link(float(number), first)
    return first


def numbers_in(link: Link | None) -> list[Any]:
    found = []
    while link is not None:
        found.append(link.number)
        link = link.following
    return found


class Refusing(type):
    """Tells nobody what its classes are made of."""

    def __getattribute__(cls, name: str) -> Any:
        if name in ("__dict__", "__mro__", "__flags__", "__class__", "__module__", "__qualname__"):
            raise TypeError(f"no {name}")
        return super().__getattribute__(name)


class Secret(metaclass=Refusing):
    factor = 3.0

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


class Same(type):
    def __eq__(cls, other: object) -> bool:
        return True

    def __hash__(cls) -> int:
        return 5


class Chameleon(metaclass=Same):
    shift = 2.0

    def __len__(self) -> int:
        return 7


class Integral(type):
    def __instancecheck__(cls, real: Any) -> bool:
        return isinstance(real, int) and real > 2


class Large(metaclass=Integral):
    pass


class Renamed(dict[str, float]):
    """`**` and `dict` of it take what it holds, whatever it says."""

    def keys(self) -> Any:
        return ["other"]

    def __getitem__(self, key: str) -> float:
        return 11.0


class Listed(Renamed):
    """But not if it says what its keys are."""

    def __iter__(self) -> Any:
        return iter(["third"])


SECRET, CHAMELEON, RENAMED, LISTED = Secret(), Chameleon(), Renamed(k=1.0), Listed(k=1.0)


def secretive(x: torch.Tensor, secret: Secret = SECRET) -> Any:
    y = secret.scaled(x + 1) + Secret.factor
    return y * 2, secret is SECRET, Secret().scaled(y)


def mistaken_for_others(x: torch.Tensor) -> Any:
    y = x + CHAMELEON.shift
    return y * len(CHAMELEON), isinstance(CHAMELEON, list), {Chameleon: 1}[Chameleon]


def instances(x: torch.Tensor, number: int) -> Any:
    y = x + 10 if isinstance(number, Large) else x
    return y * 2, isinstance([number], Large), isinstance(number, (str, Large)), isinstance("a", Large)


def passed_on(**named: float) -> dict[str, float]:
    return named


def unpacked(x: torch.Tensor) -> Any:
    made = Renamed(q=2.0)
    merged = {**RENAMED, "z": 0.0}
    return x * sum(merged.values()), merged, passed_on(**RENAMED), dict(RENAMED), {**made}, {**LISTED}, dict(LISTED)


@pytest.mark.parametrize("function", [secretive, mistaken_for_others, unpacked])
def test_as_in_plain_python(function: Any) -> None:
    compare(function, X)


def test_classes_that_look_at_their_instances() -> None:
    runner = Captured()
    for number in (1, 3, 2, 5):
        compare(instances, X, number, runner=runner)


def test_a_metaclass_sees_what_the_program_asks_and_no_more() -> None:
    asked: list[str] = []

    class Noting(type):
        def __getattribute__(cls, name: str) -> Any:
            asked.append(name)
            return super().__getattribute__(name)

    class Noted(metaclass=Noting):
        k = 3.0

        def scaled(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.k

    noted = Noted()

    def function(x: torch.Tensor) -> torch.Tensor:
        return noted.scaled(x + 1) + Noted.k

    asked.clear()
    wanted = function(X)
    plainly = list(asked)
    runner = Captured()
    for _ in range(3):
        asked.clear()
        torch.testing.assert_close(runner(function, X), wanted)
        assert asked == plainly


@pytest.mark.parametrize("length", [60, 700])
def test_long_lists_of_objects(length: int) -> None:
    """As deep as they are long: read, written and made without recursion."""
    links = chain(length)

    def total(x: torch.Tensor) -> torch.Tensor:
        link, found = links, 0.0
        while link is not None:
            found += link.number
            link = link.following
        return x * found

    def counted_up(x: torch.Tensor) -> torch.Tensor:
        link = last = links
        while link is not None:
            link.number += 1
            last, link = link, link.following
        assert last is not None
        last.number = x.sum()  # type: ignore[assignment]
        return x * 2

    def made(x: torch.Tensor) -> Any:
        nested: list[Any] = []
        for _ in range(length):
            nested = [nested]
        return x + 1, chain(length), nested

    runner = Captured(fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(runner(total, X), total(X))
    shifted, first, nested = runner(made, X)
    torch.testing.assert_close(shifted, X + 1)
    assert numbers_in(first) == [float(number) for number in reversed(range(length))]
    depth = 0
    while nested:
        (nested,) = nested
        depth += 1
    assert depth == length
    for turn in (1, 2):
        torch.testing.assert_close(runner(counted_up, X), X * 2)
        found = numbers_in(links)
        assert found[:-1] == [float(number + turn) for number in reversed(range(1, length))] and found[-1] == X.sum()
    assert not runner.breaks
