"""run_from: any function, entered anywhere, goes on as if it had got there by itself. new_frame: for tracebacks."""

import dis
import gc
import sys
import traceback
import types
from typing import Any

import pytest

from smelt._native import NULL, Region, active, hook_installed
from tests.native.frames import new_frame, offset_of, run_from, slot_names, slots_of, states

# --- at every line, with an empty stack -----------------------------------------------------------


def branches(n: int) -> list[int]:
    total = 0
    found: list[int] = []
    while n > 0:
        if n % 2:
            total += n
        else:
            found = [*found, total]
        n -= 1
    pair: dict[str, Any] = {"total": total, "found": found}
    return [pair["total"], *found]


def signature(a: int, b: int = 2, /, c: int = 3, *rest: int, d: int, e: int = 5, **more: int) -> Any:
    first = a + b + c
    second = (rest, d, e)
    return first, second, more


def cells(x: int) -> Any:
    y = x + 1

    def inner() -> int:
        return x + y

    z = inner()
    total = x + y
    return z, total


def handled(x: Any) -> Any:
    result: list[Any] = []
    try:
        result = [*result, "try"]
        result = [*result, 10 // x]
        result = [*result, "not here" if x == 0 else "fine"]
    finally:
        final = "finally"
    return result, final


def make_free(base: int) -> Any:
    def free(x: int) -> int:
        first = base + x
        second = first * base
        return second

    return free


def comprehension(n: int) -> Any:
    start = n
    values = [i * start for i in range(n)]
    pairs = {i: [j for j in values if j > i] for i in values}
    return values, pairs


@pytest.mark.parametrize(
    ("function", "args", "kwargs"),
    [
        (branches, (6,), {}),
        (signature, (1, 2, 3, 9, 8), {"d": 4, "z": 6}),
        (cells, (3,), {}),
        (handled, (2,), {}),
        (make_free(7), (5,), {}),
        (comprehension, (4,), {}),
    ],
)
@pytest.mark.parametrize("warm", [1, 100])
def test_from_every_line(function: Any, args: Any, kwargs: Any, warm: int) -> None:
    for _ in range(warm):  # often enough, instructions are specialised
        expected = function(*args, **kwargs)
    found = states(function, *args, **kwargs)
    assert len(found) >= 3
    for offset, values in found:
        assert run_from(function, offset, slots_of(function, values), []) == expected
    assert not hook_installed()


def test_from_the_beginning() -> None:
    for function in (cells, make_free(7)):
        slots = [NULL] * len(slot_names(function.__code__))
        slots[0] = 3
        assert run_from(function, 0, slots, []) == function(3)
    free = make_free(7)
    assert run_from(free, 0, [3, NULL, NULL, types.CellType("ignored")], []) == free(3)


# --- with things on the stack ---------------------------------------------------------------------


def test_in_the_middle_of_an_expression() -> None:
    def sample(a: int, b: int) -> Any:
        return (a + b) * a

    offset = offset_of(sample, "BINARY_OP", after=True)
    assert run_from(sample, offset, [5, 6], [100]) == 500


def test_null_on_the_stack() -> None:
    def sample(x: int) -> str:
        return repr(x + 1)

    # before the argument is computed, the stack has the callable and a NULL: in which order depends on the version
    stack = [repr, NULL] if sys.version_info >= (3, 13) else [NULL, repr]
    assert run_from(sample, offset_of(sample, "LOAD_FAST", "x"), [41], stack) == "42"


def test_in_a_for_loop() -> None:
    def sample(items: Any) -> Any:
        total = 0
        for item in items:
            total += item
        return total

    offset = offset_of(sample, "STORE_FAST", "item", after=True)
    assert run_from(sample, offset, [None, 1000, 5], [iter([10, 20])]) == 1035


class Manager:
    def __init__(self, swallow: bool) -> None:
        self.swallow = swallow
        self.log: list[Any] = []

    def __enter__(self) -> str:
        return "entered"

    def __exit__(self, *error: Any) -> bool:
        self.log.append(error[0])
        return self.swallow


def test_in_a_with_block() -> None:
    def sample(manager: Manager, x: int) -> Any:
        with manager:
            y = 10 // x
            return y
        return "swallowed"

    offset = offset_of(sample, "POP_TOP", after=True)
    for x, swallow, expected in ((2, False, 5), (0, True, "swallowed")):
        manager = Manager(swallow)
        assert run_from(sample, offset, [manager, x, NULL], [manager.__exit__]) == expected
        assert manager.log == [ZeroDivisionError if swallow else None]
    manager = Manager(False)
    with pytest.raises(ZeroDivisionError):
        run_from(sample, offset, [manager, 0, NULL], [manager.__exit__])
    assert manager.log == [ZeroDivisionError]


def test_in_a_try_block() -> None:
    def sample(x: int) -> Any:
        try:
            y = 10 // x
        except ZeroDivisionError as error:
            return "caught", str(error)
        return y

    offset = offset_of(sample, "LOAD_CONST", 10)
    assert run_from(sample, offset, [2, NULL, NULL], []) == 5
    assert run_from(sample, offset, [0, NULL, NULL], []) == ("caught", sample(0)[1])


def again(x: Any) -> Any:
    try:
        raise ValueError(x)
    except ValueError:
        x = x + 1
        if x > 100:
            raise
        current = sys.exc_info()[1]
    return x, current, sys.exc_info()[1]


def test_in_an_exception_handler() -> None:
    error = KeyError("handled")
    offset = next(o for o, values in states(again, 1) if again.__code__.co_firstlineno + 4 == line_at(again, o))
    stack = [None]  # the exception handled before this one, as PUSH_EXC_INFO saved it
    assert run_from(again, offset, [1, NULL], stack, error) == (2, error, None)
    with pytest.raises(KeyError, match="handled") as caught:
        run_from(again, offset, [100, NULL], stack, handling=error)
    assert caught.value is error
    assert sys.exc_info()[1] is None
    try:
        raise IndexError("outer")
    except IndexError as outer:
        assert run_from(again, offset, [1, NULL], [outer], error)[1:] == (error, outer)
        assert sys.exc_info()[1] is outer
    with pytest.raises(TypeError):
        run_from(again, offset, [1, NULL], stack, "not an exception")


def line_at(function: Any, offset: int) -> int:
    starts = [line for start, line in dis.findlinestarts(function.__code__) if start <= offset and line is not None]
    return starts[-1]


# --- surroundings ---------------------------------------------------------------------------------


def test_region_stays_active() -> None:
    def callee() -> Any:
        return active()

    def sample(x: int) -> Any:
        y = x
        return callee(), y

    seen: list[object] = []
    region = Region(lambda function, slots: seen.append(function))
    offset = offset_of(sample, "STORE_FAST", "y", after=True)
    slots = [1, 2, types.CellType(callee)]
    assert region.call(run_from, sample, offset, slots, []) == (region, 2)
    assert seen == [callee]
    assert run_from(sample, offset, slots, []) == (None, 2)
    assert not hook_installed()


def test_nested_and_recursive() -> None:
    def sample(n: int) -> Any:
        here = n
        return [here] if n == 0 else [here, *run_from(sample, offset, [n - 1, n - 1, NULL, NULL], [])]

    offset = states(sample, 0)[1][0]
    sample.__code__ = sample.__code__.replace()  # a fresh code object, entered in the middle only
    assert run_from(sample, offset, [50, 50, NULL, NULL], []) == list(range(50, -1, -1))


def test_raising_shows_the_function_and_line() -> None:
    def sample(x: Any) -> Any:
        y = x
        return y.missing

    offset = offset_of(sample, "STORE_FAST", "y", after=True)
    with pytest.raises(AttributeError) as caught:
        run_from(sample, offset, [1, 2], [])
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (last.name, last.lineno) == ("sample", sample.__code__.co_firstlineno + 2)
    assert caught.value.__traceback__.tb_next.tb_frame.f_locals == {"x": 1, "y": 2}  # type: ignore[union-attr]


def test_infinite_recursion_is_a_recursion_error() -> None:
    def sample() -> Any:
        return run_from(sample, 0, [NULL, NULL][: len(slot_names(sample.__code__))], [])

    with pytest.raises(RecursionError):
        sample()
    assert not hook_installed()


@pytest.mark.parametrize("setter", [sys.settrace, sys.setprofile])
def test_under_tracing(setter: Any) -> None:
    events: list[str] = []

    def trace(frame: types.FrameType, event: str, _: object) -> Any:
        events.append(event)
        return trace

    offset, values = states(branches, 6)[4]
    slots = slots_of(branches, values)
    outer = sys.gettrace() if setter is sys.settrace else sys.getprofile()
    setter(trace)
    try:
        result = run_from(branches, offset, slots, [])
    finally:
        setter(outer)
    assert result == branches(6)


def test_collection_is_switched_on_again() -> None:
    def sample(x: int, **more: int) -> bool:
        return gc.isenabled()

    assert gc.isenabled()
    assert run_from(sample, 0, [1, {}], [])
    assert gc.isenabled()
    gc.disable()
    try:
        assert not run_from(sample, 0, [1, {}], [])
        assert not gc.isenabled()
    finally:
        gc.enable()


# --- what is refused ------------------------------------------------------------------------------


def keywords(x: int) -> Any:
    return dict(a=x, b=repr(x))  # noqa: C408 (for its KW_NAMES)


def generator(x: int) -> Any:
    yield x


def simple(x: int) -> int:
    return x + 1


def test_refusals() -> None:
    end = len(simple.__code__.co_code)
    cache = offset_of(simple, "BINARY_OP") + 2
    for offset in (-2, 1, end, end + 100, cache):
        with pytest.raises(ValueError, match="offset"):
            run_from(simple, offset, [1], [])
    with pytest.raises(ValueError, match="slots"):
        run_from(simple, 0, [], [])
    with pytest.raises(ValueError, match="stack"):
        run_from(simple, 0, [1], [1] * 50)
    with pytest.raises(ValueError, match="generator"):
        run_from(generator, 0, [1], [])
    with pytest.raises(ValueError, match="cell"):
        run_from(cells, states(cells, 3)[0][0], [1] * len(slot_names(cells.__code__)), [])
    with pytest.raises(ValueError, match="prepare the frame"):
        run_from(cells, 2, [1] * len(slot_names(cells.__code__)), [])
    with pytest.raises(TypeError):
        run_from(len, 0, [], [])
    assert run_from(simple, 0, [1], []) == 2


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="3.13 keeps the names on the stack")
def test_between_keyword_names_and_call_is_refused() -> None:
    places = [i.offset for i in dis.get_instructions(keywords)]
    names = [i.opname for i in dis.get_instructions(keywords)]
    after = names.index("KW_NAMES") + 1
    while names[after] in ("PRECALL", "CALL"):
        with pytest.raises(ValueError, match="KW_NAMES"):
            run_from(keywords, places[after], [1], [NULL, dict, 1, "1"])
        after += 1
    assert run_from(keywords, places[names.index("KW_NAMES")], [1], [NULL, dict, 1, "1"]) == {"a": 1, "b": "1"}


def test_after_an_extended_argument_is_refused() -> None:
    space: dict[str, Any] = {}
    body = "\n".join(f"    v{i} = x" for i in range(300))
    exec(f"def long(x):\n{body}\n    return v299", space)
    long = space["long"]
    offset = next(i.offset for i in dis.get_instructions(long) if i.opname == "EXTENDED_ARG")
    slots = [7, *[0] * 300]
    with pytest.raises(ValueError, match="EXTENDED_ARG"):
        run_from(long, offset + 2, slots, [7])
    assert run_from(long, long_return(long), slots, []) == 0


def long_return(function: Any) -> int:
    """The start (with its prefix) of the last line."""
    return max(start for start, line in dis.findlinestarts(function.__code__) if line is not None)


# --- references -----------------------------------------------------------------------------------


class Thing:
    pass


def hold(a: Any, *rest: Any, key: Any = None) -> Any:
    local = a
    if local is None:
        raise KeyError
    return [local, lambda: key]


def test_references_are_balanced() -> None:
    thing, key = Thing(), types.CellType(Thing())
    offset = offset_of(hold, "STORE_FAST", "local")
    slots = [thing, key, (thing,), NULL]

    def call() -> None:
        run_from(hold, offset, slots, [thing])
        for bad in (lambda: run_from(hold, offset, slots, [None]), lambda: run_from(hold, offset, slots, [1] * 99)):
            with pytest.raises((KeyError, ValueError)):
                bad()
        new_frame(hold, offset, slots)

    call()
    gc.collect()  # the code of this module, which has that of `hold` among its constants, may still wait for it
    watched = [thing, key, hold, hold.__code__]
    before = [sys.getrefcount(watched_thing) for watched_thing in watched]
    for _ in range(100):
        call()
    gc.collect()
    assert [sys.getrefcount(watched_thing) for watched_thing in watched] == before


def test_memory_does_not_grow() -> None:
    offset = offset_of(simple, "BINARY_OP")

    def call(times: int) -> int:
        for i in range(times):
            assert run_from(simple, offset, [0], [i, 1]) == i + 1
        gc.collect()
        return sys.getallocatedblocks()

    call(100)
    before = call(1000)
    assert call(20_000) - before < 100


# --- new_frame ------------------------------------------------------------------------------------


def test_new_frame_stands_where_told() -> None:
    for function in (branches, cells, make_free(3), handled):
        for offset, line in dis.findlinestarts(function.__code__):
            frame = new_frame(function, offset)
            assert frame.f_code is function.__code__
            assert frame.f_globals is function.__globals__
            if offset >= states(function, 3)[0][0]:
                assert (frame.f_lasti, frame.f_lineno) == (offset, line)
            assert frame.f_back is None
            assert isinstance(dict(frame.f_locals), dict)
            frame.clear()


def test_new_frame_in_a_traceback() -> None:
    offset, _ = states(branches, 3)[2]
    frame = new_frame(branches, offset, [3, 4, [5], NULL])
    assert frame.f_locals == {"n": 3, "total": 4, "found": [5]}
    error = ValueError("made up").with_traceback(types.TracebackType(None, frame, offset, frame.f_lineno))
    with pytest.raises(ValueError, match="made up") as caught:
        raise error
    assert "branches" in "".join(traceback.format_exception(caught.value))
    free = make_free(3)
    assert new_frame(free, states(free, 1)[0][0], [1, NULL, NULL, NULL]).f_locals == {"x": 1, "base": 3}
    for bad in (-2, 1, 10_000):
        with pytest.raises(ValueError, match="offset"):
            new_frame(branches, bad)
    with pytest.raises(ValueError, match="slots"):
        new_frame(branches, offset, [])
