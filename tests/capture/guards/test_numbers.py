"""Numbers and sizes that change, where Python is particular: what raises, signs of zero, names that occur twice."""

import bisect
import collections
import copy
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import smelt

BACKENDS = ("eager", "aot_eager", "llvm")


def answer(function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """What a call yields, with the exact text of its numbers, or what it raises; and its tensors afterwards."""
    given = copy.deepcopy(arguments)
    try:
        return repr(function(*given)), repr(given)
    except Exception as error:
        return type(error), str(error), repr(given)


def follow(
    function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], backend: str = "eager", **options: Any
) -> tuple[int, int]:
    """Compiled equals plain at every call; how many graphs were captured and how often anew."""
    smelt.reset()
    compiled = smelt.compile(function, backend=backend, **options)
    for arguments in calls:
        assert answer(compiled, arguments) == answer(function, arguments)
    return smelt.counters["graphs"], smelt.counters["recompiles"]


def inner(x: torch.Tensor) -> torch.Tensor:
    smelt.graph_break()
    return x * x.shape[0]


def outer(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, int]:
    z = inner(y)
    return z * x.shape[0], x.shape[0] * 100 + y.shape[0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_functions_may_call_something_the_same(backend: str) -> None:
    sizes = ((3, 4), (5, 6), (7, 9), (9, 7), (4, 4), (4, 6))
    graphs, _ = follow(outer, [(torch.ones(a), torch.ones(b)) for a, b in sizes], backend)
    assert graphs == 2  # behind the break: for 3 and 4, and for all sizes


def reciprocal(x: torch.Tensor, rate: float) -> torch.Tensor:
    x.add_(1)
    try:
        scale = 1 / rate
    except ZeroDivisionError:
        scale = 7.0
    return x * scale


def unused(x: torch.Tensor, rate: float) -> torch.Tensor:
    math.log(rate)
    return x * 2


def returned(x: torch.Tensor, rate: float) -> tuple[torch.Tensor, float]:
    x.add_(1)
    try:
        scale = 1 % rate
    except ZeroDivisionError:
        scale = 7.0
    return x * 2, scale


def exponential(x: torch.Tensor, rate: float) -> tuple[torch.Tensor, float]:
    return x * math.exp(rate), rate**3


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", [reciprocal, unused, returned, exponential])
@pytest.mark.parametrize(
    "rates", [(0.5, 0.25, 0.0, 3.0, -1.0, 1e300), (0.5, 0.0, 0.25, 0.0), (0.5, -1e300, 1e300, 3.0)]
)
def test_what_raises_for_some_numbers(function: Callable[..., Any], rates: Sequence[float], backend: str) -> None:
    follow(function, [(torch.ones(2), rate) for rate in rates], backend)


def test_a_division_by_a_size() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        1 / (x.shape[0] - 7)
        return x * 2

    follow(f, [(torch.ones(size),) for size in (3, 4, 5, 7, 8, 7)])


def test_what_was_counted_when_a_number_raised() -> None:
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steps = 0
            self.ratio = 0.0

        def forward(self, x: torch.Tensor, rate: float) -> tuple[torch.Tensor, int]:
            self.steps += 1
            self.ratio = self.steps / rate
            return x * 2, self.steps

    plain, twin = Counting(), Counting()
    compiled = smelt.compile(twin, backend="eager")
    for rate in (0.5, 0.25, 0.125, 0.0, 3.0, 0.0):
        assert answer(compiled.forward, (torch.ones(2), rate)) == answer(plain.forward, (torch.ones(2), rate))
        assert (twin.steps, twin.ratio) == (plain.steps, plain.ratio)


def test_floats_as_python_computes_them() -> None:
    def f(x: torch.Tensor, n: float) -> Any:
        return n // 2, n % 3, abs(n), -n, n - 1, n * 0.0, 3 - n, n / 3, float(n), x * (n // 2), n**2

    numbers = (0.5, 7.5, -0.0, 0.0, -1.5, math.inf, math.nan, 5e-324, 1e308)
    assert follow(f, [(torch.ones(2), number) for number in numbers]) == (2, 1)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("dynamic", "expected"), [(None, (2, 1)), (True, (1, 0))])
def test_strides_that_change_by_themselves(dynamic: bool | None, expected: tuple[int, int], backend: str) -> None:
    def f(x: torch.Tensor) -> Any:
        return (x + 1).reshape(-1), x.stride(), x.stride(0) * 2, x.is_contiguous(), x[1:].stride()

    sizes = ((2, 5), (3, 6), (4, 9), (5, 3), (2, 12))
    calls = [(torch.arange(b * (t + 1) * 2).view(b, t + 1, 2)[:, :-1],) for b, t in sizes]
    assert follow(f, calls, backend, dynamic=dynamic) == expected


def test_a_stride_that_changes_while_sizes_do_not() -> None:
    calls = [(torch.arange(4 * width).view(4, width)[:, :3],) for width in (5, 6, 7, 8, 12)]
    assert follow(lambda x: x * 2, calls) == (2, 1)
    calls.append((torch.arange(12).view(4, 3),))
    follow(lambda x: x.view(-1) if x.is_contiguous() else x, calls)


def test_numbers_that_guards_cannot_compute_with() -> None:
    def f(x: torch.Tensor, n: int) -> Any:
        return (x * 2 if n * n * n > 10**20 else x * 3), n * n, n * n > 2**70, n**5, n // 3

    numbers = (5, 6, 7, 2**31, 2**40, 2**61, 2**62 - 1, 2**62, 2**63 - 1, 2**63, 9)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="SM020")
        follow(f, [(torch.ones(2), number) for number in numbers[:7]])
        follow(f, [(torch.ones(2), number) for number in (2**40, 2**41, 5, 6, *numbers[6:])])


def test_branches_on_floats_do_not_compile_the_numbers_in() -> None:
    def f(x: torch.Tensor, n: float) -> Any:
        return x * n if n != 0 and n / 2 < 1.5 else x - n

    floats = [0.5, 0.75, 1.0, 2.0, 2.5, -1.0, 0.0, 3.5, 4.0, 5.0, math.nan, 0.25, math.inf, -math.inf, 7.0]
    graphs, _ = follow(f, [(torch.ones(2), number) for number in floats])
    assert graphs <= 4, "one before it was seen to change, and one for each way: below, at zero, above"
    # One that is no float any more, or of which what is computed raises, is another version's.
    follow(f, [(torch.ones(2), number) for number in (0.5, 0.75, 1, True, 0.5, "a", None, 0.25)])
    follow(lambda x, n: x * (2 if 1 / n > 0.5 else 3), [(torch.ones(2), n) for n in (0.5, 0.25, 0.0, 4.0, 0.5)])


def test_floats_rounded_to_integers_do_not_compile_the_numbers_in() -> None:
    def f(x: torch.Tensor, n: int) -> Any:
        return x * math.floor(1 + n / 10), math.ceil(n / 8), int(n / 9), round(n / 7), math.floor(n)

    graphs, _ = follow(f, [(torch.ones(2), number) for number in (2, 3, 4, 5, 6, 7, 3, 5, 30, 31, 2)])
    assert graphs <= 8


@pytest.mark.parametrize("kind", [dict, set, frozenset, collections.Counter, list])
def test_a_number_looked_for_among_few(kind: Any) -> None:
    held: Any = kind([(20, 1), (30, 2)]) if kind is dict else kind([20, 30])
    follow_in = lambda x, n: x * 2 if n in held else x * 3  # noqa: E731
    numbers = (2, 3, 4, 5, 6, 7, 20, 8, 9, 30, 10, 11, 20)
    graphs, _ = follow(follow_in, [(torch.ones(2), number) for number in numbers])
    assert graphs == 4, "at first, for any other number, and for each of the two"


def test_places_in_sorted_lists() -> None:
    def f(x: torch.Tensor, n: int) -> Any:
        places = bisect.bisect_right([3, 6, 9], n), bisect.bisect_left([3, 6, 9], n), bisect.bisect([1, 2], 2)
        return x * places[0], places, bisect.bisect_left([1, 4, 9], n, key=lambda item: -item, lo=1)

    assert follow(f, [(torch.ones(2), number) for number in (4, 5, 4, 5)])[0] == 2
    follow(f, [(torch.ones(2), number) for number in (0, 3, 6, 9, 10, 20, 21)])
    follow(lambda x: x * bisect.bisect([1, 2], 1, lo=-1), [(torch.ones(2),)])


_NOTHING = object()


def larger(x: torch.Tensor, count: int) -> torch.Tensor:
    rate = max(0, math.cos(count / 100))
    return x * rate if rate is not _NOTHING else x


def test_comparing_identity_does_not_rely_on_a_number() -> None:
    """Python's `max` asks whether it has met anything yet, by an object of its own."""
    graphs, _ = follow(larger, [(torch.ones(3), count) for count in range(5, 20)])
    assert graphs <= 2
