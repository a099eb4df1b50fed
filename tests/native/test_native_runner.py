"""Programs run by one call, on stand-ins for tensors: what Python is asked to do, and when."""

import ctypes
import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from smelt._native import Launcher, Runner
from smelt.ir.table.records import Allocate, Call, Drop, Layout, Ref, Tensor
from smelt.ir.table.write import write_program
from tests.program_tables import Launched, program, tensor

KERNEL = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int64, ctypes.c_void_p)


class Buffer:
    """Something with an address, and a note of how it came to be."""

    def __init__(self, address: int, made: Any = None) -> None:
        self.address = address
        self.made = made

    def data_ptr(self) -> int:
        return self.address


def kernel(function: Callable[[Any, int, int], None]) -> tuple[Any, int]:
    callback = KERNEL(function)
    address = ctypes.cast(callback, ctypes.c_void_p).value
    assert address is not None
    return callback, address


def call(function: Any, *arguments: Any, **more: Any) -> Call:
    return Call("f", function, arguments, **more)


def runner(
    steps: Any,
    outputs: Any,
    *,
    inputs: int = 1,
    constants: tuple[Any, ...] = (),
    arena: int = 0,
    values: int = 4,
    made: dict[int, Tensor] | None = None,
    consuming: bool = False,
    **changes: Any,
) -> Runner:
    """A runner of these steps; `made`: what values are that steps make, where it matters."""
    described = tuple((made or {}).get(number, tensor()) for number in range(values))
    table = program(
        steps, outputs, described, inputs=inputs, constants=constants, arena=arena, consuming=consuming
    )
    settings: dict[str, Any] = {
        "threads": lambda: 2,
        "acquire": list,
        "release": lambda arena: None,
        "allocate": lambda *how: Buffer(0x100, ("allocate", *how)),
        "view": lambda tensor, *how: Buffer(tensor.address, ("view", *how)),
        "fit": lambda tensor, *how: Buffer(tensor.address, ("fit", *how)),
        "watchers": (),
    }
    return Runner(*write_program(table, lambda dtype: -1, lambda device: None), **{**settings, **changes})


def test_steps_in_order() -> None:
    seen: list[Any] = []

    def note(buffers: Any, threads: int, space: int) -> None:
        seen.append(("kernel", [buffers[i] for i in range(3)], threads))

    def function(*args: Any, **kwargs: Any) -> Buffer:
        seen.append(("call", args, kwargs))
        return Buffer(0x300)

    callback, address = kernel(note)
    arguments = (Ref(0), 7, [Ref(2), (Ref(1),)], "x", Ref(0, Layout((3,), (1,), 5)))
    steps = (
        Allocate(2),
        Call("f", function, arguments, ("name", "other"), results=(3,), is_one=True),
        Launched("k", Launcher(address, 3, 0, 0), (0, 2, 3)),
    )
    values = {2: tensor("a", "f32", "cpu", (2, 3), (3, 1)), 3: tensor("result", "f32", "cpu", (2,), (1,))}
    x, constant = Buffer(0x1000), Buffer(0x2000)
    outputs = (Ref(3), None, Ref(2, Layout((6,), (1,), 0)), [Ref(0)], 1.5, True, -7, 1 << 70)
    made = runner(steps, outputs, constants=(constant,), made=values)
    result, nothing, view, (given,), *plain = made(x)
    (kind, args, named), launched = seen
    assert plain == [1.5, True, -7, 1 << 70] and plain[1] is True
    assert kind == "call" and args[0] is x and args[1] == 7 and args[2][1] == (constant,)
    assert args[2][0].made == ("allocate", (2, 3), (3, 1), "f32", "cpu")
    assert named["name"] == "x" and named["other"].made == ("view", (3,), (1,), 5)
    assert launched == ("kernel", [0x1000, 0x100, 0x300], 2)
    assert result.made == ("fit", (2,), (1,), "f32", "result") and nothing is None
    assert view.made == ("view", (6,), (1,), 0) and given is x
    del callback


def test_several_results_and_none() -> None:
    results = (1, None, 2)
    steps = (call(lambda: [Buffer(1), Buffer(2), Buffer(3)], results=results), call(lambda: "not looked at"))
    first, second = runner(steps, (Ref(1), Ref(2)))(Buffer(0))
    assert (first.address, second.address) == (1, 3)
    with pytest.raises(ValueError, match="yields 2 results, not 3"):
        runner((call(lambda: [1, 2], results=results),), ())(Buffer(0))


def test_an_arena_goes_back_whatever_happens() -> None:
    free = [[Buffer(16), Buffer(32)]]
    fail = True

    def function(tensor: Buffer) -> None:
        if fail:
            raise KeyError("broken")

    made = runner((call(function, Ref(3)),), (Ref(2), Ref(3)), arena=2, acquire=free.pop, release=free.append)
    with pytest.raises(KeyError, match="broken"):
        made(Buffer(0))
    assert len(free) == 1
    fail = False
    assert [each.address for each in made(Buffer(0))] == [16, 32]
    assert len(free) == 1


def test_a_consuming_program_lets_go_after_the_last_use() -> None:
    alive: list[Any] = []
    given = [Buffer(1), Buffer(2)]
    refs = [weakref.ref(each) for each in given]

    def look() -> None:
        alive.append([ref() is not None for ref in refs])

    runner((call(look), Drop((0,)), call(look)), (), inputs=2, consuming=True)(given)
    assert given == [] and alive == [[True, True], [False, True]] and refs[1]() is None


def test_errors_of_every_helper_come_out() -> None:
    def broken(*args: Any) -> Any:
        raise ZeroDivisionError("here")

    one = call(lambda: 1, results=(1,), is_one=True)
    callback, address = kernel(lambda buffers, threads, space: None)
    launch = Launched("k", Launcher(address, 1, 0, 0), (0,))
    cases: list[tuple[Any, Any, dict[str, Any]]] = [
        ((Allocate(1),), (), {"allocate": broken}),
        ((one,), (), {"fit": broken}),
        ((call(broken),), (), {}),
        ((), (Ref(0, Layout((1,), (1,), 0)),), {"view": broken}),
        ((launch,), (), {"threads": broken}),
        ((Launched("k", broken, (0,)),), (), {}),
        ((), (), {"arena": 1, "acquire": broken}),
        ((), (), {"arena": 1, "acquire": lambda: [1], "release": broken}),
    ]
    for steps, outputs, changes in cases:
        with pytest.raises(ZeroDivisionError, match="here"):
            runner(steps, outputs, **changes)(Buffer(0))
    with pytest.raises(ValueError, match="at least one thread"):
        runner((launch,), (), threads=lambda: 0)(Buffer(0))
    with pytest.raises(AttributeError, match="data_ptr"):
        runner((launch,), ())(3)
    with pytest.raises(TypeError, match="arena"):
        runner((), (), arena=2, acquire=lambda: [1])(Buffer(0))
    with pytest.raises(SystemError, match="no step before"):
        runner((), (Ref(1),))(Buffer(0))
    del callback


def test_programs_that_make_no_sense() -> None:
    callback, address = kernel(lambda buffers, threads, space: None)
    once = Launched("k", Launcher(address, 2, 0, 0), (0,))
    wrong: list[tuple[Any, Any, dict[str, Any], str]] = [
        ((Drop((9,)),), (), {}, "drops 0 has a wrong value"),
        ((Drop((-1,)),), (), {}, "drops 0 has a wrong value"),
        ((Launched("k", print, (-1,)),), (), {}, "launches 0 has a wrong value"),
        ((Allocate(4),), (), {}, "steps 0 has a wrong place"),
        ((), (Ref(4),), {}, "items 1 has a wrong kind"),
        ((), (Ref(0, Layout((1, 2), (1,), 0)),), {}, "of one length"),
        ((once,), (), {}, "the code of k takes 2 buffers, and gets 1"),
        ((call(print, names=("end",)),), (), {}, "more names than arguments"),
        ((call(print, results=(1, 2), is_one=True),), (), {}, "one result that is not one"),
        ((), (), {"values": 0}, "wrong number of tensors"),
        ((), (), {"inputs": -1}, "wrong number of tensors"),
        ((), (), {"arena": 4}, "wrong number of tensors"),
    ]
    for steps, outputs, changes, message in wrong:
        with pytest.raises(ValueError, match=message):
            runner(steps, outputs, **changes)
    with pytest.raises(TypeError):
        Runner(1)  # type: ignore[call-arg, arg-type]
    refused: tuple[tuple[Any, ...], ...] = ((), (1, 2), ([],), (1,))
    for given in refused:
        with pytest.raises(TypeError, match="takes 1 tensors in a list"):
            runner((), (), consuming=True)(*given)
    with pytest.raises(TypeError, match="takes 1 tensors"):
        runner((), ())(x=1)  # type: ignore[call-arg]
    del callback


def test_many_values_and_buffers() -> None:
    seen: list[Any] = []
    callback, address = kernel(lambda buffers, threads, space: seen.extend(buffers[i] for i in range(100)))
    steps = (Launched("k", Launcher(address, 100, 0, 0), tuple(range(100))),)
    runner(steps, (), inputs=100, values=100)(*(Buffer(i + 1) for i in range(100)))
    assert seen == list(range(1, 101))
    del callback


def test_kernels_share_a_workspace_as_large_as_the_largest_needs() -> None:
    spaces: list[int] = []

    def fill(size: int) -> tuple[Any, int]:
        def kernel_of_size(buffers: Any, threads: int, space: int) -> None:
            ctypes.memset(space, 0xFF, size)
            spaces.append(space)

        return kernel(kernel_of_size)

    small, large = fill(100), fill(64 + 2 * 5000)
    steps = (Launched("a", Launcher(small[1], 0, 100, 0), ()), Launched("b", Launcher(large[1], 0, 64, 5000), ()))
    made = runner(steps, ())
    for _ in range(2):
        made(Buffer(0))
    assert all(space % 64 == 0 for space in spaces) and spaces[1] == spaces[2] == spaces[3]
    with pytest.raises(MemoryError):
        greedy = Launched("k", Launcher(small[1], 0, 0, sys.maxsize // 2), ())
        runner((greedy,), (), threads=lambda: 1 << 40)(Buffer(0))


def test_calls_at_the_same_time_and_inside_each_other() -> None:
    spaces: list[int] = []
    barrier = threading.Barrier(4)

    def meet(buffers: Any, threads: int, space: int) -> None:
        spaces.append(space)
        barrier.wait(60)

    callback, address = kernel(meet)
    made = runner((Launched("k", Launcher(address, 1, 64, 0), (0,)),), (Ref(0),))
    callers = [threading.Thread(target=made, args=(Buffer(1),)) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(set(spaces)) == 4  # all four inside at once: the GIL was free

    def nested(tensor: Buffer) -> Buffer:
        return Buffer(tensor.address + (again(Buffer(tensor.address - 1))[0].address if tensor.address else 0))

    again = runner((call(nested, Ref(0), results=(1,), is_one=True),), (Ref(1),))
    assert again(Buffer(10))[0].address == 55
    del callback


def test_nothing_leaks() -> None:
    x, constant = Buffer(1), Buffer(2)
    fail = False

    def function(tensor: Buffer, *others: Any, key: Any) -> list[Buffer]:
        if fail:
            raise ValueError
        return [tensor, key]

    sizes, text = (1 << 40,), "".join(["a", " text"])
    arguments = (Ref(0), [Ref(1)], Ref(0, Layout(sizes, (1,), 0)), text, 1 << 80, Ref(1))
    steps = (Call("f", function, arguments, ("key",), results=(2, 3)), Drop((2,)))
    outputs = (Ref(3), Ref(0), Ref(1, Layout(sizes, (1,), 0)))
    values = {2: tensor("a", None, None, sizes, (1,))}
    made = runner(steps, outputs, constants=(constant,), made=values, fit=lambda tensor, *how: tensor)
    held = (x, constant, made, made.table, made.objects, text)
    before = [sys.getrefcount(each) for each in held]
    for fail in (False, True) * 100:
        try:
            made(x)
        except ValueError:
            assert fail
    assert [sys.getrefcount(each) for each in held] == before


def test_a_runner_in_a_circle_is_freed() -> None:
    class Owner:
        run: Runner

    owner = Owner()
    owner.run = runner((), (), watchers=(owner,))
    owner.run.__dict__["owner"] = owner
    assert owner.run.__dict__["owner"] is owner
    gone = weakref.ref(owner)
    del owner
    gc.collect()
    assert gone() is None


def test_steps_are_timed_while_somebody_asks() -> None:
    callback, address = kernel(lambda buffers, threads, space: time.sleep(0.02))
    steps = (
        Allocate(2),
        Launched("k", Launcher(address, 1, 0, 0), (0,)),
        call(lambda: Buffer(1), results=(3,), is_one=True),
        Drop((3,)),
    )
    made = runner(steps, (Ref(2),))
    made(Buffer(1))
    assert made.times == (0, ())
    made.time(True)
    assert made.times == (0, (0, 0, 0, 0))
    workers = [threading.Thread(target=made, args=(Buffer(1),)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    calls, taken = made.times
    assert calls == 3 and len(taken) == 4 and all(each >= 0 for each in taken)
    assert taken[1] >= 3 * 20_000_000
    made.time(False)
    made(Buffer(1))
    assert made.times == (0, ())
    del callback


class Clock:
    """Of a device on which every step takes 7 ns."""

    def __init__(self, seen: list[str]) -> None:
        self.seen = seen
        seen.append("begun")

    def after(self) -> None:
        self.seen.append("after")

    def end(self, times: tuple[int, ...]) -> tuple[int, ...]:
        assert all(each >= 0 for each in times)
        self.seen.append("ended")
        return (7,) * len(times)


def test_a_device_has_a_clock_of_its_own() -> None:
    callback, address = kernel(lambda buffers, threads, space: seen.append("kernel"))
    seen: list[str] = []

    def clock() -> Clock:
        return Clock(seen)

    made = runner((Allocate(2), Launched("k", Launcher(address, 1, 0, 0), (0,))), (Ref(2),))
    made.time(clock)
    made(Buffer(1)), made(Buffer(1))
    assert seen == ["begun", "after", "kernel", "after", "ended"] * 2 and made.times == (2, (14, 14))
    before = sys.getrefcount(clock)
    made.time(True)
    made(Buffer(1))
    assert seen[10:] == ["kernel"] and sys.getrefcount(clock) == before - 1
    del callback


@pytest.mark.parametrize("where", ["begin", "after", "end", "count", "kind"])
def test_a_clock_that_fails(where: str) -> None:
    class Failing(Clock):
        def __init__(self) -> None:
            super().__init__([])
            assert where != "begin"

        def after(self) -> None:
            assert where != "after"

        def end(self, times: tuple[int, ...]) -> Any:
            assert where != "end"
            return {"count": (1,), "kind": (1, "a")}[where]

    failing = runner((Allocate(2), Allocate(3)), ())
    failing.time(Failing)
    for _ in range(2):
        with pytest.raises((AssertionError, TypeError)):
            failing(Buffer(1))
    assert failing.times == (0, (0, 0))


def test_timing_that_ends_while_a_call_runs() -> None:
    off = runner((Allocate(2),), ())

    class Ending(Clock):
        def after(self) -> None:
            off.time(False)

    off.time(lambda: Ending([]))
    off(Buffer(1))
    assert off.times == (0, ())


def test_a_call_that_fails_is_not_timed() -> None:
    made = runner((call(lambda: 1 // 0),), ())
    made.time(True)
    with pytest.raises(ZeroDivisionError):
        made(Buffer(1))
    assert made.times == (0, (0,))
    off = runner((call(lambda: off.time(False)),), ())
    off.time(True)
    off(Buffer(1))  # nobody asks any more when it is done
    assert off.times == (0, ())


@pytest.mark.parametrize("holds", [True, False])
def test_a_bool_that_is_on_a_gpu_is_not_read_in_place(holds: bool) -> None:
    class OnGpu(Buffer):
        def get_device(self) -> int:
            return 0

        def __bool__(self) -> bool:
            return holds

    def refuse() -> None:
        raise IndexError("out of range")

    made = runner((call(refuse, unless=0),), (7,))
    if holds:
        assert made(OnGpu(0x10)) == (7,)  # an address that cannot be read here
    else:
        with pytest.raises(IndexError, match="out of range"):
            made(OnGpu(0x10))
