"""The frame hook: what becomes of frames under a region, of exceptions, recursion, threads and references."""

import asyncio
import contextlib
import gc
import os
import sys
import threading
import traceback
import types
import weakref
from typing import Any

import pytest

from smelt._native import NULL, Entry, Guards, Region, active, hook_installed, resumed, suspended
from tests.native.frames import ANYTHING, always, only


def double(x: Any) -> Any:
    return x + x


def is_slot(index: int, value: object) -> Guards:
    return Guards(((("slot", index), (("equals", value),), (), True, f"slot {index}"),))


# --- hits and misses ------------------------------------------------------------------------------


def test_miss_then_hit() -> None:
    asked = []

    def missed(function: types.FunctionType, slots: tuple[Any, ...]) -> Entry:
        asked.append((function, slots))
        return Entry(is_slot(0, slots[0]), lambda x: ("compiled", x))

    region = Region(missed)
    assert region.call(double, 3) == ("compiled", 3)
    assert region.call(double, x=3) == ("compiled", 3)
    assert region.call(double, 4) == ("compiled", 4)
    assert asked == [(double, (3,)), (double, (4,))]
    assert [entry.hits for entry in region.entries(double.__code__)] == [2, 1]
    assert not hook_installed()


def test_none_means_cpython_each_time() -> None:
    asked = []
    region = Region(lambda function, slots: asked.append(function))
    assert region.call(double, 3) == 6
    assert region.call(double, 3) == 6
    assert asked == [double, double]
    region.never(double.__code__)
    assert region.call(double, 3) == 6
    assert asked == [double, double]
    region.clear()
    assert region.call(double, 3) == 6
    assert asked == [double] * 3


def test_new_entry_that_does_not_fit_leaves_the_frame_to_cpython() -> None:
    region = Region(lambda function, slots: Entry(is_slot(0, "never"), lambda x: "compiled"))
    assert region.call(double, 3) == 6
    assert len(region.entries(double.__code__)) == 1


def test_slots_before_the_first_instruction() -> None:
    free = 5

    def sample(a: int, /, b: int, *rest: int, c: int = 3, **more: int) -> Any:
        local = free
        return lambda: (a, local)

    seen = []
    region = Region(lambda function, slots: seen.append((function, slots)))
    region.call(sample, 1, 2, 9, z=4)
    assert seen[0] == (sample, (1, 2, 3, (9,), {"z": 4}, NULL, NULL))


def test_nested_frames_are_seen_and_compiled_code_is_not_captured() -> None:
    def inner(x: int) -> int:
        return x + 1

    def outer(x: int) -> int:
        return inner(x) * 2

    states = []

    def compiled(x: int) -> Any:
        states.append((active(), hook_installed()))
        return double(x)

    seen = []

    def missed(function: types.FunctionType, slots: tuple[Any, ...]) -> Entry | None:
        assert active() is None
        seen.append(function)
        return Entry(is_slot(0, 3), compiled) if function is inner else None

    region = Region(missed)
    assert region.call(outer, 3) == 12
    assert seen == [outer, inner]
    assert states == [(None, False)]


def test_frames_called_from_specialised_code_are_seen() -> None:
    class Box:
        def __getitem__(self, i: int) -> int:
            return i

        def method(self, i: int) -> int:
            return i

        @property
        def field(self) -> int:
            return 5

    def inner(i: int) -> int:
        return i

    def outer(box: Box) -> int:
        return inner(1) + box[2] + box.method(3) + box.field

    for _ in range(200):
        assert outer(Box()) == 11
    seen = []
    region = Region(lambda function, slots: seen.append(function.__name__))
    for _ in range(100):
        seen.clear()
        assert region.call(outer, Box()) == 11
        assert {"outer", "inner", "method"} <= set(seen)


def test_many_collected_values() -> None:
    names = [f"a{i}" for i in range(100)]
    space: dict[str, Any] = {}
    exec(f"def wide({', '.join(names)}):\n    return None", space)
    collect = Guards(tuple((("slot", i), (), (), True, name) for i, name in enumerate(names)))
    region = only(space["wide"], Entry(collect, lambda *values: values))
    assert region.call(space["wide"], *range(100)) == tuple(range(100))
    refuse = Guards((*collect.roots, (("slot", 0), (("equals", "no"),), (), True, "a0")))
    assert only(space["wide"], Entry(refuse, lambda *values: values)).call(space["wide"], *range(100)) is None


def around(graph: Any, result: Any, arguments: tuple[int, ...] = (2, 0), count: int = 3) -> Any:
    """A function of `count` arguments whose entry runs `graph` on some of them."""
    space: dict[str, Any] = {}
    exec(f"def wide({', '.join(f'v{i}' for i in range(count))}): return 'python'", space)
    collect = Guards(tuple((("slot", i), (), (), True, f"v{i}") for i in range(count)))

    def failed(error: Exception, *collected: Any) -> Any:
        return type(error), collected, sys.exc_info()[0]

    region = only(space["wide"], Entry(collect, graph, arguments, result, failed))
    return lambda *args: region.call(space["wide"], *args)


@pytest.mark.parametrize("kind", [tuple, list])
def test_graphs_get_their_arguments_and_yield_the_result(kind: Any) -> None:
    assert around(lambda *given: kind(given), 1)("a", "b", "c") == "a"
    assert around(lambda *given: kind(given), lambda *outputs: outputs)("a", "b", "c") == ("c", "a")
    assert around(lambda *given: kind(given), 0, ())("a", "b", "c")[0] is IndexError
    every = around(lambda *given: (given,), 0, tuple(range(99, -1, -1)), 100)
    assert every(*range(100)) == tuple(range(99, -1, -1))


def test_graphs_that_raise() -> None:
    def stop(*given: Any) -> Any:
        raise given[0]

    error = ValueError()
    assert around(stop, 0)("a", "b", error) == (ValueError, ("a", "b", error), None)
    with pytest.raises(KeyboardInterrupt):
        around(stop, 0)("a", "b", KeyboardInterrupt())
    with pytest.raises(ZeroDivisionError):  # not the graph's fault
        around(lambda *given: given, lambda *outputs: 1 / 0)("a", "b", "c")


def test_graphs_are_released_with_their_entry() -> None:
    def failed(error: Exception) -> None: ...

    class Makes:
        def __call__(self, *outputs: Any) -> Any:
            return outputs

    make = Makes()
    entry = Entry(ANYTHING, lambda: (), (), make, failed)
    make.entry = entry  # type: ignore[attr-defined]
    dropped = weakref.ref(make)
    del make, entry
    gc.collect()
    assert dropped() is None


def test_calls_with_arguments_in_a_tuple_and_a_dict() -> None:
    region = Region(lambda function, slots: Entry(is_slot(0, slots[0]), lambda x: ("compiled", x)))
    assert region.enter(double, (3,), {}) == ("compiled", 3)
    assert region.enter(double, (), {"x": 3}) == ("compiled", 3)
    with pytest.raises(TypeError, match="unexpected keyword"):
        region.enter(double, (), {"y": 3})
    assert active() is None


def test_guards_see_the_function_after_the_last_slot() -> None:
    guards = Guards(((("slot", 1), (("is", double),), (), True, "function"),))
    region = only(double, Entry(guards, lambda function: function))
    assert region.call(double, 1) is double


def test_entries_are_tried_in_order_and_kept_once() -> None:
    region = Region(lambda function, slots: None)
    first, second = Entry(is_slot(0, 1), lambda x: "first"), Entry(ANYTHING, lambda: "second")
    region.add(double.__code__, first)
    region.add(double.__code__, second)
    region.add(double.__code__, first)
    assert region.entries(double.__code__) == [first, second]
    assert region.call(double, 1) == "first"
    assert region.call(double, 2) == "second"
    assert (first.hits, second.hits) == (1, 1)


def test_many_codes() -> None:
    functions = [types.FunctionType(double.__code__.replace(co_name=f"f{i}"), {}) for i in range(500)]
    region = Region(lambda function, slots: Entry(ANYTHING, function.__code__.co_name.upper))
    assert [region.call(f, 1) for f in functions] == [f"F{i}" for i in range(500)]
    assert [region.entries(f.__code__)[0].hits for f in functions] == [1] * 500


def test_wrong_arguments() -> None:
    wrong: Any = 3
    region = Region(lambda function, slots: wrong)
    with pytest.raises(TypeError, match="Entry or None, not int"):
        region.call(double, 1)
    assert not hook_installed()
    calls: list[tuple[Any, tuple[Any, ...]]] = [
        (Region, (3,)),
        (Entry, (ANYTHING, 3)),
        (Entry, (3, print)),
        (Entry, (ANYTHING, print, (), 0)),
        (Entry, (ANYTHING, print, (), None, print)),
        (Entry, (ANYTHING, print, [], 0, print)),
        (region.call, ()),
        (region.enter, (double, [], {})),
        (region.add, (3, Entry(ANYTHING, print))),
        (region.add, (double.__code__, 3)),
        (region.add, ()),
        (region.never, (3,)),
        (region.entries, (3,)),
        (suspended, ()),
        (resumed, (3, double)),
        (resumed, (region,)),
    ]
    for call, arguments in calls:
        with pytest.raises(TypeError):
            call(*arguments)


def test_generators_coroutines_and_bodies_are_left_alone() -> None:
    def generator() -> Any:
        yield from (1, 2)

    async def coroutine() -> int:
        return 3

    def sample() -> Any:
        class Body:
            field = tuple(i * 2 for i in range(3))

        loop = asyncio.new_event_loop()
        try:
            return list(generator()), loop.run_until_complete(coroutine()), Body.field, eval("1 + 1")
        finally:
            loop.close()

    seen = []
    region = Region(lambda function, slots: seen.append(function))
    assert region.call(sample) == ([1, 2], 3, (0, 2, 4), 2)
    assert sample in seen
    flags = {function.__code__.co_flags & 0x2A0 for function in seen}  # generator, coroutine, async generator
    assert flags == {0}
    assert "Body" not in [function.__name__ for function in seen]


def test_thrown_into_generators_pass() -> None:
    def generator() -> Any:
        try:
            yield 1
        except KeyError:
            yield 2

    def sample() -> Any:
        running = generator()
        return next(running), running.throw(KeyError())

    assert Region(lambda function, slots: None).call(sample) == (1, 2)


# --- active, suspended, resumed -------------------------------------------------------------------


def test_active_suspended_resumed() -> None:
    region = Region(lambda function, slots: None)
    other = Region(lambda function, slots: None)

    def sample() -> Any:
        return (
            active(),
            hook_installed(),
            suspended(active),
            suspended(hook_installed),
            resumed(other, active),
            active(),
        )

    assert region.call(sample) == (region, True, None, False, other, region)
    assert active() is None
    assert suspended(double, x=2) == 4
    assert resumed(region, double, x=2) == 4


def test_nested_regions() -> None:
    def inner() -> Any:
        return active()

    def outer() -> Any:
        return b.call(inner), active()

    a = Region(lambda function, slots: None)
    b = Region(lambda function, slots: None)
    assert a.call(outer) == (b, a)
    assert not hook_installed()


# --- exceptions -----------------------------------------------------------------------------------


def fails(*_: object) -> Any:
    raise KeyError("inside")


def test_exceptions_of_the_function_of_missed_and_of_run() -> None:
    for region in (
        Region(lambda function, slots: None),
        Region(fails),
        Region(always(fails)),
    ):
        with pytest.raises(KeyError, match="inside"):
            region.call(fails)
        assert active() is None and not hook_installed()


def test_run_adds_no_line_of_the_frame_it_replaces() -> None:
    def replaced() -> None:
        raise AssertionError("not reached")

    def missed(function: types.FunctionType, slots: tuple[Any, ...]) -> Entry:
        return Entry(ANYTHING, "".__getattribute__)  # raises without a Python frame of its own

    with pytest.raises(TypeError) as caught:
        Region(missed).call(replaced)
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names == ["test_run_adds_no_line_of_the_frame_it_replaces"]


def test_exceptions_through_several_levels() -> None:
    def level(n: int) -> Any:
        if n == 0:
            raise ValueError("bottom")
        try:
            return region.call(level, n - 1)
        except ValueError as error:
            raise ValueError(f"level {n}") from error

    region = Region(lambda function, slots: None)
    with pytest.raises(ValueError, match="level 5") as caught:
        region.call(level, 5)
    error: BaseException = caught.value
    for _ in range(5):
        assert error.__cause__ is not None
        error = error.__cause__
    assert str(error) == "bottom"
    assert active() is None


# --- recursion ------------------------------------------------------------------------------------


def test_region_function_calling_itself() -> None:
    def factorial(n: int) -> int:
        return 1 if n == 0 else n * int(region.call(factorial, n - 1))

    region = Region(lambda function, slots: None)
    assert region.call(factorial, 20) == 2432902008176640000


def test_compiled_code_entering_the_region_again() -> None:
    def count(n: int) -> int:
        return n

    def missed(function: types.FunctionType, slots: tuple[Any, ...]) -> Entry | None:
        return Entry(is_slot(0, slots[0]), lambda n: region.call(count, n - 1) + 1) if slots[0] > 0 else None

    region = Region(missed)
    assert region.call(count, 30) == 30


def test_recursion_error_is_intact() -> None:
    def forever(n: int) -> int:
        return forever(n + 1)

    for region in (Region(lambda function, slots: None), only(forever, Entry(is_slot(0, "no"), len))):
        region.never(forever.__code__)
        with pytest.raises(RecursionError):
            region.call(forever, 0)
        assert not hook_installed()
    assert double(2) == 4


def test_compiled_code_without_python_frames_recurses_safely() -> None:
    def again() -> None:
        pass

    region = Region(lambda function, slots: None)
    bounce = Entry(Guards(((("value", again), (), (), True, "again"),)), region.call)
    region.add(again.__code__, bounce)
    with contextlib.suppress(RecursionError):  # or, where the C stack is counted, CPython runs the innermost itself
        assert region.call(again) is None
    assert bounce.hits > 100
    assert active() is None and not hook_installed()


def deep(n: int) -> int:
    return 0 if n == 0 else 1 + deep(n - 1)


def recurse_in(region: Region, n: int) -> Any:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(2 * n)
    try:
        return region.call(deep, n)
    finally:
        sys.setrecursionlimit(limit)


def test_deep_recursion_does_not_run_out_of_c_stack() -> None:
    region = Region(lambda function, slots: None)
    region.never(deep.__code__)
    assert recurse_in(region, 60_000) == 60_000
    assert not hook_installed()
    assert region.call(active) is region


def test_deep_recursion_in_a_thread_with_a_small_stack() -> None:
    results = []
    region = Region(lambda function, slots: None)
    region.never(deep.__code__)
    size = threading.stack_size(512 * 1024)
    try:
        thread = threading.Thread(target=lambda: results.append(recurse_in(region, 20_000)))
        thread.start()
        thread.join()
    finally:
        threading.stack_size(size)
    assert results == [20_000]


# --- threads --------------------------------------------------------------------------------------


def test_threads_have_their_own_region() -> None:
    errors: list[BaseException] = []
    barrier = threading.Barrier(8)

    def worker(number: int) -> None:
        def sample(x: int) -> Any:
            return active(), deep(x)

        region = Region(lambda function, slots: Entry(is_slot(0, 7), lambda x: "seven") if function is sample else None)
        try:
            barrier.wait()
            for i in range(300):
                result = region.call(sample, i % 20)
                assert result == ("seven" if i % 20 == 7 else (region, i % 20))
                assert active() is None
                with pytest.raises(KeyError):
                    region.call(fails)
        except BaseException as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=worker, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not errors
    assert not hook_installed()


def test_threads_share_one_region() -> None:
    region = Region(lambda function, slots: Entry(is_slot(0, slots[0]), lambda x: -x))
    errors: list[object] = []

    def worker() -> None:
        for i in range(400):
            if region.call(double, i % 10) != -(i % 10):
                errors.append(i)

    threads = [threading.Thread(target=worker) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert sum(entry.hits for entry in region.entries(double.__code__)) == 8 * 400
    assert not hook_installed()


def test_other_threads_are_left_alone() -> None:
    seen: list[object] = []
    region = Region(lambda function, slots: seen.append(function))

    def elsewhere() -> Any:
        return double(2)

    def sample() -> None:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()

    region.call(sample)
    assert sample in seen and elsewhere not in seen


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_fork_forgets_the_other_threads() -> None:
    inside, leave = threading.Event(), threading.Event()

    def stay() -> None:
        inside.set()
        leave.wait(60)

    region = Region(lambda function, slots: None)
    thread = threading.Thread(target=region.call, args=(stay,))
    thread.start()
    inside.wait(60)
    child = os.fork()
    if child == 0:
        good = region.call(double, 2) == 4 and not hook_installed()
        os._exit(0 if good else 1)
    leave.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
    assert not hook_installed()


# --- tracing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("setter", [sys.settrace, sys.setprofile])
def test_tracing_and_profiling_do_not_get_in_the_way(setter: Any) -> None:
    def missed(function: types.FunctionType, slots: tuple[Any, ...]) -> Entry | None:
        return Entry(is_slot(0, 3), lambda x: "compiled") if function is double else None

    def sample(x: int) -> Any:
        return [double(x), double(3)]

    events: list[str] = []

    def trace(frame: types.FrameType, event: str, _: object) -> Any:
        events.append(event)
        return trace

    region = Region(missed)
    getter = sys.gettrace if setter is sys.settrace else sys.getprofile
    outer = getter()
    setter(trace)
    try:
        result = region.call(sample, 4)
    finally:
        setter(outer)
    assert result == [8, "compiled"]
    assert events


# --- mutation while it runs -----------------------------------------------------------------------


def test_region_cleared_while_its_entries_are_tried() -> None:
    ran: list[Any] = []

    def clear(_: object) -> bool:
        region.clear()
        gc.collect()
        return False

    region = Region(lambda function, slots: None)
    for _ in range(3):
        guards = Guards(((("slot", 0), (("predicate", clear),), (), True, "x"),))
        region.add(double.__code__, Entry(guards, ran.append))
    assert region.call(double, 3) == 6
    assert region.entries(double.__code__) == [] and not ran


def test_region_cleared_and_dropped_by_missed_and_run() -> None:
    holder: dict[str, Any] = {}

    def run() -> str:
        holder.pop("region").clear()
        gc.collect()
        return "ran"

    def missed(function: types.FunctionType, slots: tuple[Any, ...]) -> Entry:
        holder["region"].clear()
        return Entry(ANYTHING, run)

    holder["region"] = Region(missed)
    assert holder["region"].call(double, 1) == "ran"
    assert not holder


def test_missed_may_replace_the_code_and_add_entries() -> None:
    def victim(x: int) -> int:
        return x

    def missed(function: types.FunctionType, slots: tuple[Any, ...]) -> Entry | None:
        victim.__code__ = double.__code__
        gc.collect()
        for i in range(100):
            region.add(compile(f"x = {i}", "generated", "exec"), Entry(ANYTHING, int))
        return None

    region = Region(missed)
    assert region.call(victim, 3) == 3
    assert victim(3) == 6


# --- references -----------------------------------------------------------------------------------


class Thing:
    pass


def take(a: Any, b: Any = None, *rest: Any, key: Any = None, **more: Any) -> Any:
    kept = a
    return kept


def compiled_regions() -> list[Region]:
    collect = Guards(((("slot", 0), (), (), True, "a"), (("slot", 1), (), (), True, "b")))
    refuse = Guards(((("slot", 0), (("type", int),), (), True, "a"),))
    return [
        Region(lambda function, slots: None),
        only(take, Entry(collect, lambda a, b: a)),
        only(take, Entry(refuse, lambda a: a)),
        only(take, Entry(collect, fails)),
        Region(fails),
    ]


@pytest.mark.parametrize("region", compiled_regions())
def test_references_are_balanced(region: Region) -> None:
    a, b, value = Thing(), Thing(), Thing()

    def call() -> None:
        with contextlib.suppress(KeyError):
            region.call(take, a, b, value, key=value, other=value)

    call()
    call()
    watched = [a, b, value, take, take.__code__, region, *region.entries(take.__code__)]
    before = [sys.getrefcount(thing) for thing in watched]
    for _ in range(200):
        call()
    gc.collect()
    assert [sys.getrefcount(thing) for thing in watched] == before


@pytest.mark.parametrize("region", compiled_regions())
def test_memory_does_not_grow(region: Region) -> None:
    def call(times: int) -> int:
        for _ in range(times):
            with contextlib.suppress(KeyError):
                region.call(take, Thing(), [1], 2, key=3, other=4)
        gc.collect()
        return sys.getallocatedblocks()

    call(200)
    before = call(2000)
    assert call(20_000) - before < 200


def test_arguments_are_released_when_the_call_ends() -> None:
    for region in compiled_regions()[:3]:
        thing = Thing()
        alive = weakref.ref(thing)
        result = region.call(take, thing)
        del thing
        assert alive() is result
        del result
        assert alive() is None


def make_cycle() -> tuple[Any, Any]:
    """A region, an entry and guards that hold each other; weak references to the region and what the guards hold."""
    thing = Thing()

    def run() -> Any:
        return region, thing

    def missed(function: types.FunctionType, slots: tuple[Any, ...]) -> Entry:
        return Entry(Guards(((("value", thing), (), (), False, "thing"),)), run)

    region = Region(missed)
    assert region.call(double, 1) == (region, thing)
    return weakref.ref(region), weakref.ref(thing)


def test_cycles_through_entry_and_region_are_collected() -> None:
    region, thing = make_cycle()
    gc.collect()
    assert region() is None and thing() is None


def test_big_frames_come_and_go() -> None:
    """Frames that open a new chunk of CPython's data stack: disposing of them gives the chunk back."""
    names = ", ".join(f"v{i} = 0" for i in range(3000))
    space: dict[str, Any] = {}
    exec(f"def big({names}):\n    return v2999", space)
    big = space["big"]
    region = only(big, Entry(Guards(((("slot", 2999), (), (), True, "v"),)), lambda v: v))
    for i in range(300):
        assert region.call(big, v2999=i) == i
    assert deep(200) == 200
