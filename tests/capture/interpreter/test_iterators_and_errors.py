"""Exceptions, iterators, keys and unittest's assertions as tests of Python itself use them, captured without a break.

Each program runs plainly and twice through capture, and must answer the same: results, orders, and the words of errors.
"""

import collections
import itertools
import operator
import re
import sys
import unittest
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.capture.programs import Captured

X = torch.arange(6.0).reshape(2, 3)
CASE = unittest.TestCase()


def errors(*calls: Callable[[], Any]) -> list[Any]:
    """What each call raises, in words."""
    words: list[Any] = []
    for call in calls:
        try:
            words.append(call())
        except Exception as error:
            words.append((type(error).__name__, str(error)))
    return words


class Point:
    """Compared and hashed by what it holds."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value)


class Ordered(collections.OrderedDict[Any, Any]):
    pass


class Names(set[Any]):
    pass


class Odd:
    """Its special methods answer what they must not."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def __iter__(self) -> Any:
        return self.answer

    def __len__(self) -> Any:
        return self.answer

    def __bool__(self) -> Any:
        return self.answer

    def __repr__(self) -> Any:
        return self.answer


class Refusing:
    __iter__ = None
    __contains__ = None
    __reversed__ = None

    def __getitem__(self, place: int) -> int:
        return place


class Places:
    def __getitem__(self, place: int) -> int:
        return place


class Failed(OSError):
    pass


def chained(error: BaseException | None) -> list[Any]:
    """What an exception is chained to, from the last to the first."""
    found: list[Any] = []
    while error is not None and len(found) < 9:
        found.append((type(error).__name__, error.args, type(error.__cause__).__name__, error.__suppress_context__))
        error = error.__context__
    return found


def exceptions_of_the_system(x: torch.Tensor) -> Any:
    found: list[Any] = []
    for kind in (OSError, FileNotFoundError, Failed, SystemExit, TimeoutError):
        for args in ((), ("gone",)):
            try:
                raise kind(*args)
            except (OSError, SystemExit) as error:
                found.append((str(error), repr(error), error.args, error.__class__ is kind, type(error).__name__))
                if isinstance(error, OSError):
                    found.append((error.errno, error.strerror, error.filename))
                else:
                    found.append(error.code)
    return x + 1, found, SystemExit(1, 2).code, StopIteration(3).value, StopIteration().value


def what_may_be_raised(x: torch.Tensor) -> Any:
    def text() -> None:
        raise "text"  # type: ignore[misc]  # noqa: B016

    def pair() -> None:
        raise (ValueError, KeyError)  # type: ignore[misc]

    def nothing() -> None:
        raise

    def bad_cause() -> None:
        raise ValueError from 5  # type: ignore[misc]

    def catches_a_number() -> None:
        try:
            raise KeyError(1)
        except 5:  # type: ignore[misc]  # noqa: B030
            pass

    def catches_nested() -> None:
        try:
            raise KeyError(1)
        except (ValueError, (KeyError,)):  # type: ignore[misc]  # noqa: B030
            pass

    return x + 1, errors(text, pair, nothing, bad_cause, catches_a_number, catches_nested)


def what_exceptions_may_be_given(x: torch.Tensor) -> Any:
    error: Any = ValueError(1)
    names = ("__traceback__", "__cause__", "__context__")
    refused = errors(*(lambda name=name: setattr(error, name, 5) for name in names))  # type: ignore[misc]
    error.__cause__ = KeyError(2)
    error.args = (3, 4)
    return x + 1, refused, error.args, repr(error), chained(error), error.__context__


def chains_of_exceptions(x: torch.Tensor) -> Any:
    found: list[Any] = []
    try:
        try:
            raise KeyError("first")
        finally:
            try:
                raise OSError("second")
            except OSError as error:
                found.append(chained(error))
    except KeyError as error:
        found.append(chained(error))
    try:
        try:
            raise KeyError("first")
        except KeyError:
            raise ValueError("second") from None
    except ValueError as error:
        found.append(chained(error))
    try:
        raise ValueError("alone")
    except ValueError as error:
        found.append(error.__context__)
    return x + 1, found


def circles_of_exceptions(x: torch.Tensor) -> Any:
    first, second, third = ValueError(1), ValueError(2), ValueError(3)
    first.__context__, second.__context__, third.__context__ = second, third, second
    found: list[Any] = []
    try:
        try:
            raise first
        except ValueError:
            raise KeyError(4)  # noqa: B904
    except KeyError as error:
        found.append(chained(error))
    try:
        try:
            raise first
        except ValueError:
            raise first  # noqa: B904
    except ValueError as error:
        found.append(chained(error))
    return x + 1, found


def tracebacks_are_themselves(x: torch.Tensor) -> Any:
    kept: Any = None
    try:
        raise KeyError(1)
    except KeyError as error:
        kept = error.__traceback__
        same = error.__traceback__ is kept, sys.exc_info()[2] is kept
    other = ValueError(2).with_traceback(kept)
    try:
        raise KeyError(1)
    except KeyError as error:
        differs = error.__traceback__ is not kept
    return x + 1, same, other.__traceback__ == kept, differs


def what_generators_handle(x: torch.Tensor) -> Any:
    def handling() -> Iterator[Any]:
        try:
            raise ValueError
        except ValueError:
            yield 1
        yield sys.exc_info()
        try:
            yield 2
        except KeyError as error:
            yield chained(error)

    found: list[Any] = []
    items: Any = handling()
    try:
        raise IndexError
    except IndexError:
        found.append(next(items))
    found += [next(items), next(items)]
    try:
        raise IndexError
    except IndexError:
        found.append(items.throw(KeyError("thrown")))
    return x + 1, found


def exceptions_thrown_into_generators(x: torch.Tensor) -> Any:
    found: list[Any] = []

    def inner() -> Any:
        try:
            yield 1
        except KeyError:
            found.append("inner")
            return 5
        yield 2

    def outer() -> Any:
        try:
            found.append((yield from inner()))
            yield 3
        except ValueError as error:
            found.append(chained(error))
            yield "outer"
        finally:
            found.append("left")

    def of_list() -> Any:
        try:
            raise KeyError("handled")
        except KeyError:
            try:
                yield from [1, 2, 3]
            except ValueError as error:
                yield chained(error)

    for error in (KeyError("k"), ValueError("v"), GeneratorExit(), IndexError("i")):
        items = outer()
        next(items)
        try:
            found.append(items.throw(error))
            items.close()
        except (GeneratorExit, IndexError) as raised:
            found.append((raised is error, chained(raised)))
    items = of_list()
    next(items)
    found.append(items.throw(ValueError))
    items = outer()
    found += errors(lambda: items.throw(ValueError("before it began")), lambda: next(items))
    found += errors(lambda: outer().send(1), lambda: items.throw(KeyError("after its end")))
    return x + 1, found


def answers_that_are_refused(x: torch.Tensor) -> Any:
    wrong = Odd(1.5)
    return x + 1, errors(
        lambda: iter(wrong),
        lambda: len(wrong),  # type: ignore[arg-type]
        lambda: bool(wrong),
        lambda: repr(wrong),
        lambda: str(wrong),
        lambda: 1 in wrong,  # type: ignore[operator]
        lambda: len(Odd(-1)),  # type: ignore[arg-type]
        lambda: bool(Odd(1)),
        lambda: list(Refusing()),  # type: ignore[call-overload]
        lambda: 1 in Refusing(),  # type: ignore[operator]
        lambda: reversed(Refusing()),  # type: ignore[call-overload]
        lambda: reversed(Places()),  # type: ignore[call-overload]
        lambda: reversed(Point(1)),  # type: ignore[call-overload]
    )


def containers_that_refuse(x: torch.Tensor) -> Any:
    table: Any = {1: 2}
    ordered: Any = collections.OrderedDict(a=1)
    items: Any = [1, 2, 3]
    return x + 1, errors(
        lambda: table.popitem(1),
        lambda: table.update(1, 2),
        lambda: ordered.update(1, 2),
        lambda: collections.OrderedDict(1, 2),  # type: ignore[call-overload]
        lambda: ordered.update("BC"),
        lambda: ordered.update([(1, 2, 3)]),
        lambda: ordered.update([5]),
        lambda: ordered.move_to_end("missing"),
        lambda: operator.setitem(items, slice(0, 2), 5),
        lambda: operator.setitem(items, slice(0, 3, 2), 5),
        lambda: collections.defaultdict({}),  # type: ignore[call-overload]
    )


def iterators_at_odds(x: torch.Tensor) -> Any:
    ordered = collections.OrderedDict(a=1, b=2)

    def moves() -> None:
        for key in ordered:
            ordered.move_to_end(key)

    def replaces() -> None:
        for key in ordered:
            del ordered[key]
            ordered[key] = 3

    def grows() -> None:
        table = {1: 2}
        for key in reversed(table):
            table[key + 1] = 0

    steps = itertools.islice(itertools.accumulate(number * 2 for number in range(9)), 1, 5)
    chosen = itertools.compress("abcdef", (number % 2 for number in range(6)))
    return x + 1, list(zip()), errors(lambda: next(zip()), moves, replaces, grows), list(steps), list(chosen)


def words_of_containers(x: torch.Tensor) -> Any:
    ordered: Any = Ordered(a=1, b=[2])
    itself: Any = collections.OrderedDict()
    itself["me"] = itself
    default: Any = collections.defaultdict(list)
    default["me"] = default
    keys: Any = {}
    keys["keys"] = keys.values()
    point = Point(1)
    words = repr(ordered), repr(Ordered()), repr(itself), repr(default), repr(keys), repr(point), f"{[point]}"
    return x + 1, words, errors(lambda: [1].index(point))  # type: ignore[arg-type]


def default_factories(x: torch.Tensor) -> Any:
    table: Any = collections.defaultdict()
    missing = errors(lambda: table[1])
    table.default_factory = list
    table[2].append(x)
    again = table.copy()
    table.default_factory = None
    return x + 1, missing, again.default_factory is list, table, again, errors(lambda: table[3])


def keys_are_the_objects_put_in(x: torch.Tensor) -> Any:
    pair, letters = (1, (2, 3)), frozenset("abc")
    table, items = {pair: 1, letters: 2}, {pair, letters}
    copied = items.copy()
    same = [key is pair or key is letters for group in (table, items, copied) for key in group]
    inside = Names([3]) in {frozenset([3])}, Names([4]) in items
    items.discard(Names("abc"))
    return x + 1, same, inside, len(items), errors(lambda: items.remove(Names([5])), lambda: hash(Names()))


def assertions(x: torch.Tensor) -> Any:
    with CASE.assertRaises(KeyError) as caught:
        operator.delitem({}, "gone")
    CASE.assertRaises(ValueError, [1, 2].index, 3)
    CASE.assertRaises(TypeError, iter, 5)
    CASE.assertRaisesRegex(ValueError, "not in", [1].remove, 2)
    with CASE.assertRaisesRegex(ZeroDivisionError, "division"):
        operator.truediv(1, 0)
    CASE.assertEqual([1, (2, 3)], [1, (2, 3)])
    CASE.assertEqual({1: {2}}, {1: {2}})
    CASE.assertEqual((1, 2), (1, 2))
    CASE.assertEqual({1, 2}, {2, 1})
    CASE.assertNotEqual([1], [2])
    CASE.assertTrue(isinstance(caught.exception, KeyError))
    CASE.assertFalse([])
    CASE.assertIs(x, x)
    CASE.assertIsNone(None)
    CASE.assertIn(1, [1])
    CASE.assertNotIn(2, {1: 2})
    CASE.assertIsInstance(x, torch.Tensor)
    CASE.assertLess(1, 2)
    CASE.assertAlmostEqual(0.1 + 0.2, 0.3)
    CASE.assertCountEqual([1, 2, 2], [2, 1, 2])
    return x + 1, caught.exception.args, errors(lambda: CASE.assertEqual(1, 2), lambda: CASE.assertIsNone(3))


def shown(value: Any) -> str:
    return re.sub("0x[0-9a-f]+", "…", repr(value))


PROGRAMS = [
    exceptions_of_the_system,
    what_may_be_raised,
    what_exceptions_may_be_given,
    chains_of_exceptions,
    circles_of_exceptions,
    tracebacks_are_themselves,
    what_generators_handle,
    exceptions_thrown_into_generators,
    answers_that_are_refused,
    containers_that_refuse,
    iterators_at_odds,
    words_of_containers,
    default_factories,
    keys_are_the_objects_put_in,
    assertions,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_program_is_captured_whole_and_answers_as_python_does(program: Any) -> None:
    runner = Captured()
    for _ in range(2):
        assert shown(runner(program, X)) == shown(program(X))
    assert not runner.breaks and len(runner.graphs) == 1


@pytest.mark.parametrize("part", ["keys", "values", "items"])
def test_a_dict_whose_keys_are_replaced_in_a_loop_raises_as_in_python(part: str) -> None:
    def program(x: torch.Tensor, table: dict[int, int]) -> Any:
        try:
            for _ in getattr(table, part)():
                x = x + 1
                del table[0]
                table[0] = 1
        except RuntimeError as error:
            return x, str(error)
        return x, "no error"

    runner = Captured()
    for keys in (1, 1, 2, 5, 6):
        ours, theirs = dict.fromkeys(range(keys), 0), dict.fromkeys(range(keys), 0)
        assert repr(runner(program, X, ours)) == repr(program(X, theirs))
        assert ours == theirs


def test_a_key_that_changed_after_it_was_put_in_stays_where_it_was() -> None:
    def program(x: torch.Tensor) -> Any:
        point = Point(1)
        points, table = {point}, {point: 1}
        point.value = 2
        return x + 1, point in points, points, table, point

    runner = Captured()
    for _ in range(2):
        *_, points, table, point = runner(program, X)
        assert point not in points and point not in table and len(points) == len(table) == 1


def test_a_changed_key_of_a_dict_that_is_dropped_breaks_nothing() -> None:
    def program(x: torch.Tensor) -> Any:
        point = Point(1)
        points = {point: 1}
        point.value = 2
        return x + 1, point in points, points.pop(Point(1), None)

    runner = Captured()
    for _ in range(2):
        assert repr(runner(program, X)) == repr(program(X))
    assert not runner.breaks and len(runner.graphs) == 1


STRICT = False


class Strict:
    def __hash__(self) -> int:
        return 0

    def __eq__(self, other: object) -> bool:
        if STRICT:
            raise ZeroDivisionError
        return self is other


def test_keys_that_look_at_what_the_program_writes_are_compared_as_in_python() -> None:
    def program(x: torch.Tensor) -> Any:
        global STRICT
        STRICT = False
        made = {Strict(), Strict()}
        STRICT = True
        return x + 1, made, errors(lambda: {Strict(), *made})

    runner = Captured()
    for _ in range(2):
        _, made, raised = runner(program, X)
        assert len(made) == 2 and raised == [("ZeroDivisionError", "")] and STRICT
