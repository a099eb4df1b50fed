"""Launcher: pointers, thread count and workspace reach the kernel; the GIL is free meanwhile; bad calls raise."""

import ctypes
import sys
import threading
from typing import Any

import pytest

from smelt._native import NULL, Launcher

KERNEL = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int64, ctypes.c_void_p)


class Buffer:
    def __init__(self, address: object) -> None:
        self.address = address

    def data_ptr(self) -> Any:
        return self.address


def kernel(function: Any) -> tuple[Any, int]:
    """A C function that calls back; keep the first as long as the second is used."""
    callback = KERNEL(function)
    address = ctypes.cast(callback, ctypes.c_void_p).value
    assert address is not None
    return callback, address


def test_arguments_reach_the_kernel() -> None:
    seen: list[tuple[list[int | None], int, int]] = []

    def note(buffers: Any, threads: int, space: int) -> None:
        seen.append(([buffers[i] for i in range(3)], threads, space))

    callback, address = kernel(note)
    launcher = Launcher(address, 3, 100, 64)
    launcher(4, Buffer(0x1000), Buffer(0x2000), Buffer(0))
    launcher(4, Buffer(1), Buffer(2), Buffer(3))
    assert [call[:2] for call in seen] == [([0x1000, 0x2000, None], 4), ([1, 2, 3], 4)]
    assert seen[0][2] % 64 == 0 and seen[0][2] == seen[1][2]
    del callback


def test_many_buffers() -> None:
    seen: list[Any] = []
    callback, address = kernel(lambda buffers, threads, space: seen.extend(buffers[i] for i in range(100)))
    Launcher(address, 100, 0, 0)(1, *(Buffer(i + 1) for i in range(100)))
    assert seen == list(range(1, 101))
    del callback


def test_workspace_can_be_written_whole() -> None:
    def fill(buffers: Any, threads: int, space: int) -> None:
        ctypes.memset(space, 0xFF, 1000 + 500 * threads)

    callback, address = kernel(fill)
    launcher = Launcher(address, 0, 1000, 500)
    for threads in (1, 8, 3, 64, 1):
        launcher(threads)
    del callback


def test_no_workspace() -> None:
    seen: list[Any] = []
    callback, address = kernel(lambda buffers, threads, space: seen.append(space))
    Launcher(address, 0, 0, 0)(2)
    assert seen == [None]
    del callback


def test_concurrent_calls_have_their_own_workspace() -> None:
    spaces: list[int] = []
    barrier = threading.Barrier(4)

    def meet(buffers: Any, threads: int, space: int) -> None:
        spaces.append(space)
        barrier.wait(60)

    callback, address = kernel(meet)
    launcher = Launcher(address, 0, 64, 0)
    threads = [threading.Thread(target=launcher, args=(1,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(spaces) == len(set(spaces)) == 4  # all four inside at once: the GIL was free
    del callback


def test_recursive_call() -> None:
    spaces: list[int] = []

    def nested(buffers: Any, threads: int, space: int) -> None:
        spaces.append(space)
        if threads > 1:
            launcher(threads - 1)

    callback, address = kernel(nested)
    launcher = Launcher(address, 0, 64, 64)
    launcher(5)
    assert len(set(spaces)) == 5
    del callback


def test_bad_calls() -> None:
    callback, address = kernel(lambda buffers, threads, space: None)
    launcher = Launcher(address, 1, 0, 0)
    with pytest.raises(TypeError, match="thread count and 1 tensors"):
        launcher(1)
    with pytest.raises(TypeError, match="keyword"):
        launcher(1, tensor=Buffer(1))  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="at least one thread"):
        launcher(0, Buffer(1))
    with pytest.raises(AttributeError):
        launcher(1, 3)
    with pytest.raises(TypeError):
        launcher(1, Buffer("address"))
    with pytest.raises(TypeError):
        launcher("one", Buffer(1))  # type: ignore[arg-type]
    with pytest.raises(MemoryError):
        Launcher(address, 0, 0, sys.maxsize)(1 << 40)
    with pytest.raises(ValueError, match="zero"):
        Launcher(0, 0, 0, 0)
    with pytest.raises(ValueError, match="negative"):
        Launcher(address, -1, 0, 0)
    del callback


def test_references_are_balanced() -> None:
    callback, address = kernel(lambda buffers, threads, space: None)
    launcher, buffer = Launcher(address, 1, 64, 0), Buffer(1 << 40)
    launcher(1, buffer)
    before = sys.getrefcount(buffer), sys.getrefcount(buffer.address), sys.getrefcount(launcher)
    for _ in range(100):
        launcher(1, buffer)
        with pytest.raises(ValueError):
            launcher(0, buffer)
    assert (sys.getrefcount(buffer), sys.getrefcount(buffer.address), sys.getrefcount(launcher)) == before
    del callback


def test_null_is_one_object() -> None:
    import copy
    import pickle

    assert repr(NULL) == "NULL"
    assert copy.deepcopy(NULL) is NULL and pickle.loads(pickle.dumps(NULL)) is NULL
    with pytest.raises(TypeError):
        type(NULL)()
