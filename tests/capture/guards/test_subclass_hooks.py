"""`isinstance` by abstract classes whose subclasses have hooks of the program, as some packages install them."""

import collections.abc
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import smelt

X = torch.ones(2)


@pytest.fixture
def patched() -> Iterator[None]:
    """What the package frozendict does when it is imported: a hook in Python on MutableMapping."""
    kind: Any = collections.abc.MutableMapping

    class Frozen(dict):  # type: ignore[type-arg]
        pass

    inherited = kind.__subclasshook__

    @classmethod  # type: ignore[misc]
    def hook(klass: Any, subclass: type, *args: Any, **kwargs: Any) -> Any:
        if klass == kind:
            return False if issubclass(subclass, Frozen) else inherited(subclass, *args, **kwargs)
        return NotImplemented

    kind.__subclasshook__ = hook
    kind._abc_caches_clear()
    yield
    del kind.__subclasshook__
    kind._abc_caches_clear()


@pytest.mark.usefixtures("patched")
@pytest.mark.parametrize(
    "kind", [collections.abc.Mapping, collections.abc.Iterable, collections.abc.Sized, collections.abc.MutableMapping]
)
def test_a_hook_that_changes_nothing_is_followed(kind: type) -> None:
    class Own:  # nobody has asked for it before
        pass

    class Mine(dict):  # type: ignore[type-arg]
        pass

    given = (Own(), Mine(), {}, [1], X)

    def program(x: torch.Tensor) -> tuple[torch.Tensor, list[bool]]:
        return x + 1, [isinstance(each, kind) for each in given]

    answers = smelt.compile(program, fullgraph=True, backend="eager")(X)[1]
    assert answers == program(X)[1]


def test_a_hook_that_was_asked_before_is_not_asked_again() -> None:
    asked = []

    class Hooked(collections.abc.Sized):
        @classmethod
        def __subclasshook__(cls, kind: type) -> Any:
            asked.append(kind)
            return True if cls is Hooked else NotImplemented

        def __len__(self) -> int:
            return 0

    class Own:
        pass

    own = Own()
    assert isinstance(own, Hooked)

    def program(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if isinstance(own, Hooked) else x - 1

    assert smelt.compile(program, fullgraph=True, backend="eager")(X).tolist() == [2.0, 2.0]
    assert asked == [Own]


def test_a_hook_that_counts_is_asked_by_python() -> None:
    asked = []

    class Hooked(collections.abc.Sized):
        @classmethod
        def __subclasshook__(cls, kind: type) -> Any:
            asked.append(kind)
            return NotImplemented

        def __len__(self) -> int:
            return 0

    class Own:
        pass

    own = Own()

    def program(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if isinstance(own, Hooked) else x - 1

    compiled = smelt.compile(program, backend="eager")
    for _ in range(3):
        assert compiled(X).tolist() == [0.0, 0.0]
    assert asked == [Own]
