"""What generated code calls to share its points out: every point is run once, on as many threads as there may be."""

import ctypes
import threading
from collections.abc import Iterator

import pytest

from smelt import _native

pytest.importorskip("torch")  # whose threads are used

from smelt.torch_abi.symbols import OPENMP, PARALLEL_FOR, find_symbol

PART = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_bool)
LAUNCHED = ctypes.CFUNCTYPE(ctypes.c_int64, PART, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 4)
Call = tuple[int, int, int, bool, int]  # workspace, first, last, ends, thread


def launch(threads: int, most: int, extent: int, chunk_bytes: int) -> tuple[int, list[Call]]:
    address = find_symbol(PARALLEL_FOR)
    assert address is not None
    calls: list[Call] = []

    def part(buffers: int, workspace: int | None, first: int, last: int, ends: bool) -> None:
        assert buffers == 64
        calls.append((workspace or 0, first, last, ends, threading.get_ident()))

    chunks = LAUNCHED(address)(PART(part), 64, 4096, threads, most, extent, chunk_bytes)
    return chunks, sorted(calls)


@pytest.fixture
def without_openmp() -> Iterator[None]:
    _native.parallel_for_address(0, 0, 0)
    yield
    _native.parallel_for_address(*(find_symbol(each) or 0 for each in OPENMP))


@pytest.mark.parametrize("threads, most", [(1, 8), (2, 8), (3, 3), (4, 2), (7, 5), (0, 3)])
@pytest.mark.parametrize("extent", [0, 1, 2, 3, 100, 2**40 + 7])
def test_every_point_is_run_once_in_chunks_of_nearly_one_size(threads: int, most: int, extent: int) -> None:
    chunks, calls = launch(threads, most, extent, 128)
    assert chunks == len(calls) == max(min(threads, most), 1)
    assert [call[0] for call in calls] == [4096 + 128 * number for number in range(chunks)]
    assert [call[1] for call in calls] == [0, *(call[2] for call in calls[:-1])] and calls[-1][2] == extent
    sizes = {last - first for _, first, last, _, _ in calls}
    assert max(sizes) - min(sizes) <= 1
    assert [call[3] for call in calls] == [False] * (chunks - 1) + [True]


def test_one_chunk_is_run_by_the_thread_that_asks() -> None:
    _, calls = launch(8, 1, 10, 0)
    assert calls == [(4096, 0, 10, True, threading.get_ident())]


def test_without_openmp_one_thread_does_it_all(without_openmp: None) -> None:
    chunks, calls = launch(4, 4, 10, 16)
    assert chunks == 1 and calls == [(4096, 0, 10, True, threading.get_ident())]


def test_threads_share_the_chunks() -> None:
    if any(find_symbol(each) is None for each in OPENMP):
        pytest.skip("PyTorch has no OpenMP here")
    address = find_symbol(PARALLEL_FOR)
    assert address is not None
    both = threading.Barrier(2, timeout=60)
    part = PART(lambda *given: both.wait() and None)  # each chunk waits for the other
    assert LAUNCHED(address)(part, 0, 0, 2, 2, 2, 0) == 2
    assert not both.broken
