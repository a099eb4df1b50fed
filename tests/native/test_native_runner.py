"""Programs run by one call, on stand-ins for tensors: what Python is asked to do, and when."""

import ctypes
import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from smelt._native import Launcher, Runner

KERNEL = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int64, ctypes.c_void_p)


class Ref(NamedTuple):
    value: int
    sizes: tuple[int, ...] | None = None
    strides: tuple[int, ...] | None = None
    offset: int = 0


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


def runner(steps: Any, outputs: Any, **changes: Any) -> Runner:
    settings: dict[str, Any] = {
        "inputs": 1,
        "constants": (),
        "arena": 0,
        "values": 4,
        "consuming": False,
        "threads": lambda: 2,
        "acquire": list,
        "release": lambda arena: None,
        "allocate": lambda *how: Buffer(0x100, ("allocate", *how)),
        "view": lambda tensor, *how: Buffer(tensor.address, ("view", *how)),
        "fit": lambda tensor, *how: Buffer(tensor.address, ("fit", *how)),
        "watchers": (),
    }
    return Runner(steps=steps, outputs=outputs, **{**settings, **changes})


def test_steps_in_order() -> None:
    seen: list[Any] = []

    def note(buffers: Any, threads: int, space: int) -> None:
        seen.append(("kernel", [buffers[i] for i in range(3)], threads))

    def function(*args: Any, **kwargs: Any) -> Buffer:
        seen.append(("call", args, kwargs))
        return Buffer(0x300)

    callback, address = kernel(note)
    steps = (
        ("allocate", 2, (2, 3), (3, 1), "f32", "cpu", -1),
        ("call", function, (Ref(0), 7, [Ref(2), (Ref(1),)], "x", Ref(0, (3,), (1,), 5)), ("name", "other"),
         ((3, (2,), (1,), "f32", "result", -1),), True, None),
        ("launch", Launcher(address, 3, 0, 0), (0, 2, 3)),
    )  # fmt: skip
    x, constant = Buffer(0x1000), Buffer(0x2000)
    made = runner(steps, (Ref(3), None, Ref(2, (6,), (1,), 0), [Ref(0)]), constants=(constant,))
    assert made.steps is steps
    result, nothing, view, (given,) = made(x)
    (call, args, named), launched = seen
    assert call == "call" and args[0] is x and args[1] == 7 and args[2][1] == (constant,)
    assert args[2][0].made == ("allocate", (2, 3), (3, 1), "f32", "cpu")
    assert named["name"] == "x" and named["other"].made == ("view", (3,), (1,), 5)
    assert launched == ("kernel", [0x1000, 0x100, 0x300], 2)
    assert result.made == ("fit", (2,), (1,), "f32", "result") and nothing is None
    assert view.made == ("view", (6,), (1,), 0) and given is x
    del callback


def test_several_results_and_none() -> None:
    results = ((1, (), (), None, "a", -1), None, (2, (), (), None, "b", -1))
    steps = (
        ("call", lambda: [Buffer(1), Buffer(2), Buffer(3)], (), (), results, False, None),
        ("call", lambda: "not looked at", (), (), (), False, None),
    )
    first, second = runner(steps, (Ref(1), Ref(2)))(Buffer(0))
    assert (first.address, second.address) == (1, 3)
    with pytest.raises(ValueError, match="yields 2 results, not 3"):
        runner((("call", lambda: [1, 2], (), (), results, False, None),), ())(Buffer(0))


def test_an_arena_goes_back_whatever_happens() -> None:
    free = [[Buffer(16), Buffer(32)]]
    fail = True

    def function(tensor: Buffer) -> None:
        if fail:
            raise KeyError("broken")

    steps = (("call", function, (Ref(2),), (), (), False, None),)
    made = runner(steps, (Ref(1), Ref(2)), arena=2, acquire=free.pop, release=free.append)
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

    steps = (("call", look, (), (), (), False, None), ("drop", (0,)), ("call", look, (), (), (), False, None))
    runner(steps, (), inputs=2, consuming=True)(given)
    assert given == [] and alive == [[True, True], [False, True]] and refs[1]() is None


def test_errors_of_every_helper_come_out() -> None:
    def broken(*args: Any) -> Any:
        raise ZeroDivisionError("here")

    allocation = ("allocate", 1, (1,), (1,), None, None, -1)
    call = ("call", lambda: 1, (), (), ((1, (), (), None, "a", -1),), True, None)
    callback, address = kernel(lambda buffers, threads, space: None)
    cases: list[tuple[Any, Any, dict[str, Any]]] = [
        ((allocation,), (), {"allocate": broken}),
        ((call,), (), {"fit": broken}),
        ((("call", broken, (), (), (), False, None),), (), {}),
        ((), (Ref(0, (1,), (1,), 0),), {"view": broken}),
        ((("launch", Launcher(address, 1, 0, 0), (0,)),), (), {"threads": broken}),
        ((("launch", broken, (0,)),), (), {}),
        ((), (), {"arena": 1, "acquire": broken}),
        ((), (), {"arena": 1, "acquire": lambda: [1], "release": broken}),
    ]
    for steps, outputs, changes in cases:
        with pytest.raises(ZeroDivisionError, match="here"):
            runner(steps, outputs, **changes)(Buffer(0))
    with pytest.raises(ValueError, match="at least one thread"):
        runner((("launch", Launcher(address, 1, 0, 0), (0,)),), (), threads=lambda: 0)(Buffer(0))
    with pytest.raises(AttributeError, match="data_ptr"):
        runner((("launch", Launcher(address, 1, 0, 0), (0,)),), ())(3)
    with pytest.raises(TypeError, match="arena"):
        runner((), (), arena=2, acquire=lambda: [1])(Buffer(0))
    with pytest.raises(SystemError, match="no step before"):
        runner((), (Ref(1),))(Buffer(0))
    del callback


def test_programs_that_make_no_sense() -> None:
    callback, address = kernel(lambda buffers, threads, space: None)
    wrong: list[tuple[Any, Any, dict[str, Any], str]] = [
        ((("jump", 1),), (), {}, "no step is called 'jump'"),
        (((),), (), {}, "begins with its kind"),
        ((("drop", (9,)),), (), {}, "none is number 9"),
        ((("drop", (-1,)),), (), {}, "none is number -1"),
        ((), (Ref(4),), {}, "none is number 4"),
        ((), (Ref(0, (1, 2), (1,), 0),), {}, "of one length"),
        ((("launch", Launcher(address, 2, 0, 0), (0,)),), (), {}, "2 buffers gets 1"),
        ((("call", print, (), ("end",), (), False, None),), (), {}, "more names than arguments"),
        ((("allocate", 0, (1,)),), (), {}, "argument"),
        ((), (), {"values": 0}, "fewer values"),
        ((), (), {"inputs": -1}, "fewer values"),
    ]
    for steps, outputs, changes, message in wrong:
        with pytest.raises((ValueError, TypeError, IndexError), match=message):
            runner(steps, outputs, **changes)
    with pytest.raises(TypeError):
        Runner(1)  # type: ignore[call-arg]
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
    steps = (("launch", Launcher(address, 100, 0, 0), tuple(range(100))),)
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
    steps = (("launch", Launcher(small[1], 0, 100, 0), ()), ("launch", Launcher(large[1], 0, 64, 5000), ()))
    made = runner(steps, ())
    for _ in range(2):
        made(Buffer(0))
    assert all(space % 64 == 0 for space in spaces) and spaces[1] == spaces[2] == spaces[3]
    with pytest.raises(MemoryError):
        runner((("launch", Launcher(small[1], 0, 0, sys.maxsize // 2), ()),), (), threads=lambda: 1 << 40)(Buffer(0))


def test_calls_at_the_same_time_and_inside_each_other() -> None:
    spaces: list[int] = []
    barrier = threading.Barrier(4)

    def meet(buffers: Any, threads: int, space: int) -> None:
        spaces.append(space)
        barrier.wait(20)

    callback, address = kernel(meet)
    made = runner((("launch", Launcher(address, 1, 64, 0), (0,)),), (Ref(0),))
    callers = [threading.Thread(target=made, args=(Buffer(1),)) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(set(spaces)) == 4  # all four inside at once: the GIL was free

    def nested(tensor: Buffer) -> Buffer:
        return Buffer(tensor.address + (again(Buffer(tensor.address - 1))[0].address if tensor.address else 0))

    again = runner((("call", nested, (Ref(0),), (), ((1, (), (), None, "sum", -1),), True, None),), (Ref(1),))
    assert again(Buffer(10))[0].address == 55
    del callback


def test_nothing_leaks() -> None:
    x, constant = Buffer(1), Buffer(2)
    fail = False

    def function(tensor: Buffer, *others: Any, key: Any) -> list[Buffer]:
        if fail:
            raise ValueError
        return [tensor, key]

    sizes, results = (1 << 40,), ((2, (1 << 40,), (1,), None, "a", -1), (3, (), (), None, "b", -1))
    steps = (
        ("call", function, (Ref(0), [Ref(1)], Ref(0, sizes, (1,), 0), Ref(1)), ("key",), results, False, None),
        ("drop", (2,)),
    )
    outputs = (Ref(3), Ref(0), Ref(1, sizes, (1,), 0))
    made = runner(steps, outputs, constants=(constant,), fit=lambda tensor, *how: tensor)
    before = [sys.getrefcount(each) for each in (x, constant, made, steps, results)]
    for fail in (False, True) * 100:
        try:
            made(x)
        except ValueError:
            assert fail
    assert [sys.getrefcount(each) for each in (x, constant, made, steps, results)] == before


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
        ("allocate", 2, (2,), (1,), "f32", "cpu", -1),
        ("launch", Launcher(address, 1, 0, 0), (0,)),
        ("call", lambda: Buffer(1), (), (), ((3, (), (), None, "r", -1),), True, None),
        ("drop", (3,)),
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


def test_a_call_that_fails_is_not_timed() -> None:
    made = runner((("call", lambda: 1 // 0, (), (), (), False, None),), ())
    made.time(True)
    with pytest.raises(ZeroDivisionError):
        made(Buffer(1))
    assert made.times == (0, (0,))
    off = runner((("call", lambda: off.time(False), (), (), (), False, None),), ())
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

    made = runner((("call", refuse, (), (), (), False, None, 0),), (7,))
    if holds:
        assert made(OnGpu(0x10)) == (7,)  # an address that cannot be read here
    else:
        with pytest.raises(IndexError, match="out of range"):
            made(OnGpu(0x10))
