"""Objects that answer whatever they are asked: capture asks nothing, and runs nothing of theirs that eager does not.

Each case is a class with a log that all its special methods write to, and programs that use an object of it. Eagerly
and compiled, the results are the same, and so is the log.
"""

import functools
import types
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch

import smelt

LOG: list[str] = []


class Permissive:
    """Has every attribute, and each is True."""

    def __getattr__(self, name: str) -> Any:
        LOG.append(f"getattr {name}")
        return True

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        LOG.append("call")
        return x * 2


class Itself(Permissive):
    """Has every attribute, and each is itself."""

    def __getattr__(self, name: str) -> Any:
        LOG.append(f"getattr {name}")
        return self


class Refusing(Permissive):
    def __getattr__(self, name: str) -> Any:
        LOG.append(f"getattr {name}")
        raise ValueError(name)


class Watching(Permissive):
    def __getattribute__(self, name: str) -> Any:
        LOG.append(f"getattribute {name}")
        return object.__getattribute__(self, name)


class Pretending(Permissive):
    @property
    def __class__(self) -> Any:  # type: ignore[override]
        LOG.append("class")
        return torch.Tensor

    @__class__.setter
    def __class__(self, value: Any) -> None:
        raise AssertionError


class Raising(Permissive):
    """Its attributes that others have are properties that raise."""

    @property
    def _smelt_is_compiling(self) -> Any:
        LOG.append("property")
        raise ValueError

    __name__ = __wrapped__ = __self__ = __func__ = __code__ = _smelt_is_compiling
    _smelt_disable = _smelt_entered = _smelt_dynamic = _torchdynamo_inline = _fields = _smelt_is_compiling


class Equal(Permissive):
    def __eq__(self, other: object) -> bool:
        LOG.append("eq")
        return True

    def __hash__(self) -> int:
        LOG.append("hash")
        return 1

    def __bool__(self) -> bool:
        LOG.append("bool")
        return True

    def __len__(self) -> int:
        LOG.append("len")
        return 3

    def __iter__(self) -> Any:
        LOG.append("iter")
        return iter((1, 2, 3))

    def __repr__(self) -> str:
        LOG.append("repr")
        return "Equal"

    __str__ = __repr__

    def __index__(self) -> int:
        LOG.append("index")
        return 1


class Unhashable(Equal):
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        LOG.append("eq")
        raise ValueError


class Meta(type):
    def __getattr__(cls, name: str) -> Any:
        LOG.append(f"meta {name}")
        return True

    def __eq__(cls, other: object) -> bool:
        LOG.append("meta eq")
        return cls is other

    def __hash__(cls) -> int:
        LOG.append("meta hash")
        return 7

    def __bool__(cls) -> bool:
        LOG.append("meta bool")
        return True

    def __instancecheck__(cls, instance: Any) -> bool:
        LOG.append("meta instancecheck")
        return False


def made() -> type:
    """A class whose metaclass answers; not of this module's names, where pytest would ask it."""

    class Made(Permissive, metaclass=Meta):
        pass

    return Made


class AttributeDict(dict):  # type: ignore[type-arg]
    """Keys as attributes; those that are not there are made."""

    def __getattr__(self, name: str) -> Any:
        LOG.append(f"getattr {name}")
        return self.setdefault(name, AttributeDict())

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        LOG.append("call")
        return x * 2


class Named(Permissive):
    """A callable that copies the names of another, as `functools.wraps` has it."""

    def __init__(self) -> None:
        functools.update_wrapper(self, torch.nn.functional.relu)


class TensorLike(Permissive):
    __torch_function__ = None

    def __getattribute__(self, name: str) -> Any:
        LOG.append(f"getattribute {name}")
        return object.__getattribute__(self, name)


CLASSES = (
    Permissive, Itself, Refusing, Watching, Pretending, Raising, Equal, Unhashable, made, AttributeDict, Named,
    TensorLike,
)  # fmt: skip


def called(x: torch.Tensor, it: Any) -> Any:
    return it(x) + 1


def passed(x: torch.Tensor, it: Any) -> Any:
    held = [it, {"key": it}, (it,)]
    return x + len(held), held


def returned(x: torch.Tensor, it: Any) -> Any:
    return x + 1, it


def compared(x: torch.Tensor, it: Any) -> Any:
    return (x + 1 if it is None else x + 2), it is it


def kept(x: torch.Tensor, it: Any) -> Any:
    holder = types.SimpleNamespace(it=it)
    holder.other = holder.it
    return x + 1, holder.other is it


def inside(x: torch.Tensor, it: Any) -> Any:
    def inner(y: torch.Tensor) -> Any:
        return it(y)

    return inner(x).relu()


def by_keyword(x: torch.Tensor, it: Any) -> Any:
    def inner(y: torch.Tensor, *, f: Any = None, **rest: Any) -> Any:
        return f(y) + len(rest)

    return inner(x, f=it, other=it)


def given_partial(x: torch.Tensor, it: Any) -> Any:
    return functools.partial(it, x)()


def tried(x: torch.Tensor, it: Any) -> Any:
    try:
        return it(x)
    finally:
        x = x + 1


def callable_asked(x: torch.Tensor, it: Any) -> Any:
    return it(x) if callable(it) else x


def type_asked(x: torch.Tensor, it: Any) -> Any:
    return x + (1 if type(it) is dict else 2)


def truth_asked(x: torch.Tensor, it: Any) -> Any:
    return x + 1 if it else x + 2


def member(x: torch.Tensor, it: Any) -> Any:
    return x + 1 if it in [None, 3] else x + 2


def attribute_asked(x: torch.Tensor, it: Any) -> Any:
    return x + 1, getattr(it, "training", None) is True


PROGRAMS = (
    called, passed, returned, compared, kept, inside, by_keyword, given_partial, tried, callable_asked, type_asked,
    truth_asked, member, attribute_asked,
)  # fmt: skip


def outcome(function: Callable[..., Any], it: Any, given: torch.Tensor) -> Any:
    LOG.clear()
    try:
        found = function(given, it)
    except ValueError as error:
        found = repr(error)
    log = LOG.copy()
    tensor = found[0] if isinstance(found, tuple) else found
    rest = found[1] if isinstance(found, tuple) else None
    return tensor, type(rest), log


@pytest.mark.parametrize("backend", ["eager", "llvm"])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("kind", CLASSES)
def test_nothing_is_asked(kind: Any, program: Callable[..., Any], backend: str) -> None:
    compiled = smelt.compile(program, backend=backend)
    it = kind()() if kind is made else kind()
    for number in range(3):
        x = torch.arange(4.0) + number
        wanted = outcome(program, it, x)
        found = outcome(compiled, it, x)
        assert found[2] == wanted[2], number
        assert found[1] is wanted[1]
        if isinstance(wanted[0], torch.Tensor):
            torch.testing.assert_close(found[0], wanted[0])
        else:
            assert found[0] == wanted[0]


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * 3


@pytest.mark.parametrize("make", [mock.Mock, mock.MagicMock, mock.NonCallableMagicMock, mock.PropertyMock])
@pytest.mark.parametrize("program", [called, passed, returned, compared, kept, inside, callable_asked, type_asked])
def test_mocks(make: Any, program: Callable[..., Any]) -> None:
    compiled = smelt.compile(program, backend="eager")
    plain, watched = (make(**({} if make is mock.NonCallableMagicMock else {"side_effect": scaled})) for _ in range(2))
    if make is mock.NonCallableMagicMock and program in (called, inside):
        pytest.skip("cannot be called")
    for number in range(3):
        x = torch.arange(4.0) + number
        wanted, found = program(x, plain), compiled(x, watched)
        first = wanted[0] if isinstance(wanted, tuple) else wanted
        torch.testing.assert_close(found[0] if isinstance(found, tuple) else found, first)
        assert len(watched.mock_calls) == len(plain.mock_calls)
        assert watched._mock_children.keys() == plain._mock_children.keys()


def test_a_mock_in_a_module_and_as_a_global() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.transform = mock.Mock(side_effect=scaled)
            self.lin = torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.lin(self.transform(x))
            return out

    model = Model()
    compiled = smelt.compile(model, backend="eager")
    for number in range(3):
        x = torch.randn(2, 4)
        torch.testing.assert_close(compiled(x), model.lin(x * 3))
        assert model.transform.call_count == number + 1


def test_a_patched_function() -> None:
    with mock.patch("torch.nn.functional.relu", side_effect=scaled) as patched:
        def run(x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.relu(x) + 1

        compiled = smelt.compile(run, backend="eager")
        for number in range(3):
            torch.testing.assert_close(compiled(torch.ones(3)), torch.full((3,), 4.0))
            assert patched.call_count == number + 1
    torch.testing.assert_close(compiled(-torch.ones(3)), torch.ones(3))
