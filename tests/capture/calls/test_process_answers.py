"""What captured code asks of the process: subclasses, autocast of devices that no graph is for, cached functions."""

import functools
from typing import Any

import pytest
import torch

import smelt

x = torch.arange(3.0)


class Base:
    factor = 1


class First(Base):
    factor = 2


class Second(Base):
    factor = 3


def below(x: torch.Tensor) -> torch.Tensor:
    found = Base.__subclasses__()
    while found:
        kind = found.pop()
        found += kind.__subclasses__()
        x = x * kind.factor
    return x


def test_subclasses_are_known_and_guarded() -> None:
    compiled = smelt.compile(below, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), x * 6)

    class Third(First):
        factor = 5

    torch.testing.assert_close(compiled(x), x * 30)
    assert Third.factor == 5


@pytest.mark.parametrize("device", ["mps", "xpu", "hpu"])
def test_autocast_of_other_devices_is_known(device: str) -> None:
    def asks(x: torch.Tensor) -> Any:
        with torch.autocast(device, enabled=False):
            return x * (1 + torch.is_autocast_enabled(device)), torch.get_autocast_dtype(device)

    result, dtype = smelt.compile(asks, backend="eager", fullgraph=True)(x)
    torch.testing.assert_close(result, x)
    assert dtype == torch.get_autocast_dtype(device)


def test_autocast_of_other_devices_is_guarded() -> None:
    def asks(x: torch.Tensor) -> torch.Tensor:
        return x * (1 + torch.is_autocast_enabled("xpu"))

    compiled = smelt.compile(asks, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), x)
    torch.set_autocast_enabled("xpu", True)
    try:
        torch.testing.assert_close(compiled(x), x * 2)
    finally:
        torch.set_autocast_enabled("xpu", False)


def test_a_device_that_nobody_knows_raises_as_in_eager() -> None:
    def asks(x: torch.Tensor) -> torch.Tensor:
        return x * torch.is_autocast_enabled("teapot")

    with pytest.raises(RuntimeError, match="teapot"):
        smelt.compile(asks, backend="eager")(x)


# Cached functions between writes: called where they cannot come upon what is yet to be written.

STATE: dict[str, int] = {}


class Holder:
    value = 0


HOLDER = Holder()
SIZES = (2, 3)


@functools.lru_cache
def of_its_arguments(n: int) -> tuple[int, ...]:
    return tuple(size * n for size in SIZES)


@functools.lru_cache
def of_the_state(n: int) -> int:
    return STATE.get("n", 0) + n


@functools.lru_cache
def of_the_state_within(n: int) -> int:
    return sum(_read() for _ in range(n))


def _read() -> int:
    return STATE.get("n", 0)


@functools.lru_cache
def of_a_holder(n: int) -> int:
    return HOLDER.value + n


@functools.lru_cache
def by_eval(n: int) -> int:
    return int(eval("STATE.get('n', 0)")) + n


@functools.lru_cache
def by_globals(n: int) -> int:
    return int(globals()["STATE"].get("n", 0)) + n


@functools.lru_cache
def by_default(n: int, state: Any = None, known: Any = (STATE,)) -> int:
    return int(known[0].get("n", 0)) + n


def _in_closure() -> Any:
    state = STATE

    @functools.lru_cache
    def cached(n: int) -> int:
        return state.get("n", 0) + n

    return cached


in_closure = _in_closure()
CACHED = [of_its_arguments, of_the_state, of_the_state_within, of_a_holder, by_eval, by_globals, by_default, in_closure]


@pytest.fixture(autouse=True)
def cleared() -> None:
    STATE.clear()
    HOLDER.value = 0
    for each in CACHED:
        each.cache_clear()


def test_a_cached_function_that_cannot_see_writes_is_called() -> None:
    def between(x: torch.Tensor) -> torch.Tensor:
        STATE["n"] = 7
        HOLDER.value = 7
        return x.repeat(of_its_arguments(2))

    torch.testing.assert_close(smelt.compile(between, backend="eager", fullgraph=True)(x), x.repeat((4, 6)))
    assert STATE == {"n": 7} and HOLDER.value == 7


@pytest.mark.parametrize("cached", CACHED[1:], ids=lambda each: each.__name__)
def test_a_cached_function_that_can_see_writes_waits_for_them(cached: Any) -> None:
    def between(x: torch.Tensor) -> torch.Tensor:
        STATE["n"] = 7
        HOLDER.value = 7
        return x * cached(1)

    explained = smelt.explain(between, backend="eager")
    explanation = explained(x)
    assert explanation.graph_break_count >= 1
    for each in CACHED:
        each.cache_clear()
    STATE.clear()
    HOLDER.value = 0
    expected = 7 if cached is of_the_state_within else 8
    torch.testing.assert_close(smelt.compile(between, backend="eager")(x), x * expected)


def test_a_cached_function_that_is_promised_to_be_constant_is_called() -> None:
    @functools.lru_cache
    @torch._dynamo.assume_constant_result
    def promised(n: int) -> int:
        return int(eval("n * 3"))

    def between(x: torch.Tensor) -> torch.Tensor:
        HOLDER.value = 7
        return x * promised(2)

    torch.testing.assert_close(smelt.compile(between, backend="eager", fullgraph=True)(x), x * 6)


def test_sympy_runs_in_python_as_a_whole() -> None:
    sympy = pytest.importorskip("sympy")

    def solves(x: torch.Tensor) -> torch.Tensor:
        root = sympy.solve(sympy.Symbol("a") ** 2 - 4)[1]
        return x * int(root)

    explained = smelt.explain(solves, backend="eager")
    assert explained(x).graph_break_count < 10  # one for each call into it, none for what it calls
    torch.testing.assert_close(smelt.compile(solves, backend="eager")(x), x * 2)


def test_settings_of_backends_are_guarded() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if torch.backends.mkldnn.enabled else x - 1

    compiled = smelt.compile(function, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), function(x))
    with torch.backends.mkldnn.flags(enabled=not torch.backends.mkldnn.enabled):
        assert torch.equal(compiled(x), function(x))
    assert torch.equal(compiled(x), function(x))


def test_no_transform_is_active_outside_of_one() -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if torch._C._are_functorch_transforms_active() else x * 3

    def function(x: torch.Tensor) -> Any:
        return inner(x), torch.func.vmap(inner)(x)

    assert torch.equal(smelt.compile(inner, backend="eager", fullgraph=True)(x), inner(x))
    got, wanted = smelt.compile(function, backend="eager")(x), function(x)
    assert all(map(torch.equal, got, wanted))


class Setting:
    """Known by what it says, as keys of caches are."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Setting) and self.number == other.number

    def __hash__(self) -> int:
        return hash(self.number)


@functools.lru_cache
def is_setting(asked: object) -> bool:
    return isinstance(asked, Setting)


_POWER = functools.lru_cache(functools.partial(pow, 2))


def test_a_cached_function_is_given_the_very_object() -> None:
    """It was called with what stands for an object that is made after the graph, and its cache kept the answer."""

    def function(x: torch.Tensor) -> Any:
        return x * (2 if is_setting(Setting(3)) else 3)

    assert smelt.compile(function, backend="eager")(torch.ones(1)).item() == 2
    assert function(torch.ones(1)).item() == 2


def test_a_cached_partial_has_no_name() -> None:
    assert smelt.compile(lambda x: x * _POWER(5), backend="eager", fullgraph=True)(torch.ones(1)).item() == 32
