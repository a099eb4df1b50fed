"""Exceptions that the program raises and handles: captured without a break, and exactly Python's."""

# ruff: noqa: B018, B023, B904, F821, F841  (mistakes are what is tested)

import sys
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.capture.programs import Captured, compare

X = torch.arange(6.0).reshape(2, 3) / 3


class Fault(Exception):
    def __init__(self, text, code=0):
        super().__init__(text)
        self.code = code


class Deeper(Fault):
    def __str__(self):
        return f"deeper {self.code}"


class Rare(Exception):
    pass


class Count:
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return self

    def __next__(self):
        if self.n == 0:
            raise StopIteration("done")
        self.n -= 1
        return self.n


def of_a_dict(x):
    try:
        scale = {"a": 1}["b"]
    except KeyError as error:
        return x * 2, error.args, str(error), repr(error)
    return x * scale


def of_lists_tuples_and_ints(x):
    told, things = [], [1]
    for make in (
        lambda: [1, 2][5],
        lambda: (1, 2)[-3],
        lambda: things["a"],
        lambda: 1 // 0,
        lambda: 1 % 0,
        lambda: int("z"),
        lambda: "a" + 1,
        lambda: [1] + (2,),
        lambda: {}.pop("k"),
        lambda: [].pop(),
        lambda: x.nothing,
        lambda: (3).nothing,
        lambda: next(iter([])),
        lambda: iter(3),
        lambda: len(3),
        lambda: max([]),
        lambda: math_error(),
    ):
        try:
            make()
        except (LookupError, ArithmeticError) as error:
            told.append(("known", type(error).__name__, str(error)))
            x = x + 1
        except Exception as error:
            told.append((type(error).__name__, str(error), error.args))
            x = x - 1
    return x, told


def math_error():
    import math

    return math.sqrt(-1)


def unpacking(x):
    told = []
    for things in ((1,), (1, 2), (1, 2, 3), 4):
        try:
            a, b = things
            x = x * a + b
        except ValueError as error:
            told.append(str(error))
        except TypeError as error:
            told.append(error.args)
    try:
        a, *b, c = [1]
    except ValueError as error:
        told.append(str(error))
    return x, told


def else_and_finally(x):
    steps = []
    for n in range(4):
        try:
            if n == 1:
                raise Fault("one", n)
            if n == 2:
                raise Deeper("two", code=n)
            x = x + n
        except Deeper as error:
            steps.append(("deeper", str(error), error.code))
            continue
        except Fault as error:
            steps.append(("fault", f"{error}", f"{error!r:>30}", error.code))
        else:
            steps.append("else")
        finally:
            x = x * 2
            steps.append(n)
    return x, steps


def finally_returns(x):
    def lost(t):
        try:
            raise ValueError("lost")
        finally:
            return t + 1  # noqa: B012

    def kept(t):
        try:
            return t + 2
        finally:
            t = t * 0

    return lost(x), kept(x)


def finally_breaks(x):
    while True:
        try:
            raise KeyError
        finally:
            x = x + 1
            break  # noqa: B012
    return x


def raises(n, t):
    if n == 0:
        raise Rare
    if n < 3:
        return raises(n - 1, t) + 1
    return t * n


def through_callees(x):
    def middle(n):
        try:
            return raises(n, x)
        except ValueError:
            return None
        finally:
            seen.append(n)

    seen = []
    out = []
    for n in (2, 5, 0):
        try:
            out.append(middle(n))
        except Rare as error:
            out.append((x - 1, error.args))
    return out, seen


def raised_again(x):
    try:
        try:
            raise Fault("inner", 1)
        except Fault as error:
            error.code += 1
            x = x + error.code
            raise
    except Fault as error:
        kept = error.code
    try:
        try:
            raise KeyError("a")
        except KeyError as error:
            raise ValueError("b") from error
    except ValueError as error:
        chain = (type(error.__cause__).__name__, error.__cause__.args, error.__context__ is error.__cause__)
    try:
        try:
            raise KeyError("a")
        except KeyError:
            raise ValueError("b") from None
    except ValueError as error:
        chain += (error.__cause__, type(error.__context__).__name__, error.__suppress_context__)
    return x, kept, chain


def nested(x):
    told = []
    try:
        try:
            raise KeyError("k")
        except KeyError:
            try:
                raise IndexError("i")
            except IndexError as inner:
                told.append(type(inner.__context__).__name__)
            told.append("still")
            raise
    except LookupError as error:
        told.append(repr(error))
    return x * len(told), told


def variables(x):
    try:
        unknown_name
    except NameError as error:
        told = str(error), error.name
    try:
        print(late)
        late = 1
    except UnboundLocalError as error:
        told += (str(error),)
    try:
        raise Fault("x") from KeyError
    except Fault as e:
        told += (type(e.__cause__).__name__,)
    try:
        e
    except UnboundLocalError as error:
        told += (str(error),)
    return x + 1, told


PLAIN: dict[str, Any] = {}
exec(  # pytest rewrites the assertions it sees
    "def assert_dim(t, n):\n    assert t.dim() == n, f'dim is {t.dim()}'\n    assert t.dim() > n - 2",
    PLAIN,
)
assert_dim = PLAIN["assert_dim"]


def asserted(x):
    try:
        assert_dim(x, 3)
    except AssertionError as error:
        return x, error.args
    return x * 2


def attributes(x):
    class_error = None
    try:
        Fault.nothing
    except AttributeError as error:
        class_error = str(error), error.name
    try:
        return sys.nothing_of_the_kind
    except AttributeError as error:
        return x + 1, class_error, getattr(Fault("a", 7), "code", 0), hasattr(Fault("a"), "none"), error.name


def own_iterators(x):
    total = sum(Count(4))
    source = Count(1)
    next(source)
    try:
        next(source)
    except StopIteration as error:
        return x * total, [*Count(2)], error.value, next(source, "none")


def generators(x):
    def source():
        try:
            got = yield x
            yield x * (got or 1)
        except KeyError as error:
            yield error.args[0]
        finally:
            told.append("closed")
        return 9

    def outer():
        result = yield from source()
        told.append(result)

    told = []
    a = source()
    first = next(a)
    second = a.send(3)
    b = source()
    next(b)
    third = b.throw(KeyError("k"))
    try:
        next(b)
    except StopIteration as error:
        told.append(error.value)
    a.close()
    return first, second, third, list(outer()), told


def stop_inside_generator(x):
    def source():
        yield 1
        raise StopIteration

    try:
        return list(source())
    except RuntimeError as error:
        return x, str(error), type(error.__cause__).__name__


def partial_effects(x):
    def source():
        yield 1
        yield 2
        raise Rare

    things = []
    try:
        things.extend(source())
    except Rare:
        things.append("rare")
    try:
        things += source()
    except Rare:
        things.append("again")
    return x, things


def notes_and_traceback(x):
    try:
        raise Fault("a")
    except Fault as error:
        error.add_note("read this")
        return x, error.__notes__, error.__traceback__ is not None, error.with_traceback(None) is error


def kept_outside_the_handler(x):
    errors = []
    for n in range(2):
        try:
            raise Fault("e", n)
        except Fault as error:
            errors.append(error)
    return x * errors[1].code, errors[0] is errors[1], [e.code for e in errors]


def system_exceptions(x):
    try:
        raise KeyboardInterrupt
    except Exception:
        return x
    except BaseException as error:
        return x + 1, type(error).__name__


HANDLED: list[Callable[..., Any]] = [
    of_a_dict,
    of_lists_tuples_and_ints,
    unpacking,
    else_and_finally,
    finally_returns,
    finally_breaks,
    through_callees,
    raised_again,
    nested,
    variables,
    asserted,
    attributes,
    own_iterators,
    generators,
    stop_inside_generator,
    notes_and_traceback,
    kept_outside_the_handler,
    system_exceptions,
]


@pytest.mark.parametrize("function", HANDLED, ids=lambda f: f.__name__)
def test_handled_without_a_break(function: Callable[..., Any]) -> None:
    runner = compare(function, X)
    assert runner.breaks == []
    assert runner.recompiles == []


def test_what_was_taken_before_an_iterable_raised_stays() -> None:
    compare(partial_effects, X)


# exceptions that leave the function, or are looked at by Python


def shape(error: BaseException | None) -> Any:
    """An exception with its lines in this file, and all it is chained to."""
    if error is None:
        return None
    lines = [
        (frame.name, frame.lineno) for frame in traceback.extract_tb(error.__traceback__) if frame.filename == __file__
    ]
    lines = [line for line in lines if not line[0].startswith(("test_", "assert_", "<lambda>"))]
    chain = shape(error.__cause__), shape(error.__context__), error.__suppress_context__
    return type(error), str(error), lines, chain, getattr(error, "__notes__", None)


def assert_raises_alike(function: Callable[..., Any], *args: Any) -> Captured:
    runner = Captured()

    def caught(call: Callable[..., Any]) -> Any:
        try:
            call(*args)
        except BaseException as error:
            return shape(error)
        raise AssertionError("nothing was raised")

    for _ in range(3):
        assert caught(lambda *a: runner(function, *a)) == caught(function)
    return runner


def leaves_after_handling(x):
    y = x + 1
    try:
        raises(2, y)
    except Rare as error:
        raise ValueError("from") from error


def leaves_a_finally(x):
    steps = []
    try:
        with_context(x, steps)
    finally:
        steps.append(x + 1)


def with_context(x, steps):
    try:
        {}["missing"]
    except KeyError:
        steps.append(1)
        raise Fault("while handling", len(steps))


def leaves_again(x):
    try:
        raises(1, x)
    except Rare:
        x = x * 2
        raise


def leaves_a_nested_raise(x):
    kept = None
    try:
        raises(0, x)
    except Rare as error:
        kept = error
    raise kept


def leaves_from_none(x):
    try:
        int("z")
    except ValueError:
        raise Fault("plain") from None


@pytest.mark.parametrize(
    "function",
    [leaves_after_handling, leaves_a_finally, leaves_again, leaves_a_nested_raise, leaves_from_none],
    ids=lambda f: f.__name__,
)
def test_uncaught_with_pythons_lines_and_chain(function: Callable[..., Any]) -> None:
    assert_raises_alike(function, X)


def test_the_exception_handled_by_the_caller_is_the_context() -> None:
    def inner(x):
        try:
            raise KeyError("k")
        except KeyError as error:
            context = error.__context__
        raise ValueError(repr(context))

    def outer(x):
        try:
            raise Rare("outer")
        except Rare:
            runner_call(inner, x)

    runner = Captured()
    answers = []
    for call in (lambda f, x: f(x), runner):
        runner_call = call
        with pytest.raises(ValueError) as caught:
            outer(X)
        answers.append((str(caught.value), repr(caught.value.__context__)))
    assert answers[0] == answers[1]


def test_python_sees_the_exception_being_handled() -> None:
    def f(x):
        y = x + 1
        try:
            raises(1, x)
        except Rare as error:
            y = y * 2
            shown = traceback.format_exc().splitlines()
            print(sys.exc_info()[0], sys.exc_info()[1] is error)
            y = y + len(error.args)
        print(sys.exc_info())
        return y, [line for line in shown if "raise" in line]

    compare(f, X)


def test_a_break_in_a_handler_keeps_what_is_handled() -> None:
    def f(x, n):
        try:
            raise Fault("a", n)
        except Fault as error:
            x = x + 1
            print("handling", error.code)
            if n:
                raise
            try:
                raise KeyError("b")
            except KeyError as inner:
                print(repr(inner.__context__))
            x = x * 2
        return x

    runner = compare(f, X, 0)
    assert len(runner.graphs) >= 2
    assert_raises_alike(f, X, 1)


def test_what_python_raises_in_a_break_is_handled_in_the_next_graph() -> None:
    def f(x):
        try:
            int(input_of(x))
        except ValueError as error:
            x = x + 1
            told = str(error)
        finally:
            x = x * 3
        return x - 1, told

    def input_of(x):
        print("reading")
        return "seven"

    runner = compare(f, X)
    assert any(len(list(graph.graph.nodes)) > 4 for graph in runner.graphs)


@pytest.mark.parametrize("breaks_in", ["callee", "callee of the callee"])
def test_the_handler_of_a_call_that_broke_finds_its_variables(breaks_in: str) -> None:
    """Only the handler reads `default`, and the instruction behind the call is no longer in the `try`."""

    def attempt(function, default, forget=False):
        if forget:
            del default  # that it may be unbound makes Python 3.12 look; else it takes what is there, and crashes
        try:
            return function()
        except (ArithmeticError, LookupError):
            return default * 2

    def tell(place):
        if place == breaks_in:
            print(place)

    def inner(x, n):
        tell("callee of the callee")
        return x + n // 0

    def f(x, n):
        def outer():
            tell("callee")
            return inner(x, n) + 1

        return attempt(outer, x - 1)

    compare(f, X, 2)


def test_exceptions_returned_and_stored() -> None:
    def f(x, out):
        try:
            raises(1, x)
        except Rare as error:
            out.append(error)
            return x + 1, error

    mine, plain = [], []
    first, second = Captured()(f, X, mine), f(X, plain)
    assert mine[0] is first[1] and plain[0] is second[1]
    assert shape(mine[0]) == shape(plain[0])


def test_fullgraph_handles_exceptions() -> None:
    compare(else_and_finally, X, runner=Captured(fullgraph=True))


def test_groups_are_left_to_python() -> None:
    def f(x):
        try:
            raise ExceptionGroup("several", [ValueError(1), KeyError(2)])
        except* ValueError as group:
            x = x + len(group.exceptions)
        except* KeyError:
            x = x * 2
        return x

    compare(f, X)


def test_what_the_graph_itself_raises_is_no_context() -> None:
    weight = torch.ones(4, 2)

    def alone(i):
        return torch.nn.functional.embedding(i, weight) * 2

    def pair(i):
        return torch.nn.functional.embedding(i, weight), i + 1

    def before_a_break(i):
        y = torch.nn.functional.embedding(i, weight) * 2
        print("broken")
        return y

    for function in (alone, pair, before_a_break):
        runner = Captured()
        runner(function, torch.tensor([1, 2]))
        compare(function, torch.tensor([1, 9]), runner=runner)
