"""GridLauncher on the host: every warp of every block, barriers, orders, workspaces; what would hang a GPU raises."""

import ctypes
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from smelt import _native
from smelt._native import AnyLauncher, GridLauncher, Launcher
from smelt.ir.table.write import write_program
from tests.compiled_c import build
from tests.program_tables import Launched, program, tensor

WARP, THREADS = 8, 32
FLOATS = ctypes.c_float * 128


class Buffer:
    def __init__(self, memory: Any) -> None:
        self.memory = memory

    def data_ptr(self) -> int:
        return ctypes.addressof(self.memory)


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    library = ctypes.CDLL(build("tests/native/host_grids.c", tmp_path_factory.mktemp("grids")))
    ctypes.c_void_p.in_dll(library, "barrier").value = _native.simt_barrier_address()
    return library


@pytest.fixture(autouse=True, params=["forward", "reverse", "shuffled"])
def order(request: pytest.FixtureRequest) -> Iterator[str]:
    _native.set_simt_order(request.param, 7)
    yield request.param
    _native.set_simt_order("forward")


def phase(code: ctypes.CDLL, name: str, blocks: Any = 1, *, shared: int = 0, barriers: bool = True) -> Any:
    address = ctypes.cast(getattr(code, name), ctypes.c_void_p).value
    assert address is not None
    return (address, blocks, THREADS, shared, barriers)


def launcher(*phases: Any, buffers: int = 0, workspace: Any = 0, sizes: int = 0) -> GridLauncher:
    return GridLauncher(phases, buffers, workspace, sizes=sizes, warp=WARP)


def noted(code: ctypes.CDLL) -> list[tuple[int, int]]:
    count = ctypes.c_int64.in_dll(code, "call_count")
    calls = (ctypes.c_int64 * 2 * 4096).in_dll(code, "calls")
    found = [(calls[i][0], calls[i][1]) for i in range(count.value)]
    count.value = 0
    return found


@pytest.mark.parametrize("barriers", [False, True])
def test_every_warp_of_every_block_once(code: ctypes.CDLL, order: str, barriers: bool) -> None:
    launcher(phase(code, "note", 5, barriers=barriers))(1)
    found = noted(code)
    every = [(block, warp) for block in range(5) for warp in range(4)]
    assert sorted(found) == every
    assert (found == every) is (order == "forward") and (found == every[::-1]) is (order == "reverse")
    launcher(phase(code, "note", 5, barriers=barriers))(1)
    assert noted(code) == found  # the same order again


def test_seeds_are_other_orders(code: ctypes.CDLL) -> None:
    seen = set()
    for seed in range(8):
        _native.set_simt_order("shuffled", seed)
        launcher(phase(code, "note", 5))(1)
        seen.add(tuple(noted(code)))
    assert len(seen) > 4 and all(len(set(each)) == 20 for each in seen)


def reversed_by(code: ctypes.CDLL, name: str, *, barriers: bool) -> bool:
    given, out = FLOATS(*range(128)), FLOATS()
    made = launcher(phase(code, name, 4, shared=128, barriers=barriers), buffers=2)
    made(1, Buffer(given), Buffer(out))
    return list(out) == [32 * block + 31 - i for block in range(4) for i in range(32)]


def test_a_barrier_makes_all_warps_meet(code: ctypes.CDLL) -> None:
    assert reversed_by(code, "reverse", barriers=True)


def test_a_missing_barrier_shows(code: ctypes.CDLL) -> None:
    assert not reversed_by(code, "reverse_wrong", barriers=True)
    assert not reversed_by(code, "reverse_wrong", barriers=False)


def test_phases_share_a_workspace_and_are_given_sizes(code: ctypes.CDLL) -> None:
    given, out = FLOATS(*range(128)), (ctypes.c_float * 1)()
    sizes = (ctypes.c_int64 * 4)(32, 4, 4 * 4, 1)
    phases = phase(code, "sum_blocks", (1,), shared=16), phase(code, "sum_workspace", (3,), barriers=False)
    made = launcher(*phases, buffers=3, workspace=(2,), sizes=4)
    assert made.phases == 2
    made(1, Buffer(given), Buffer(out), Buffer(sizes))
    assert out[0] == sum(range(128))
    sizes[1], sizes[2] = 2, 8
    made(1, Buffer(given), Buffer(out), Buffer(sizes))
    assert out[0] == sum(range(64))


def test_a_grid_of_no_blocks_is_not_run(code: ctypes.CDLL) -> None:
    launcher(phase(code, "note", 0), phase(code, "note", 1))(1)
    assert len(noted(code)) == 4


def test_what_nobody_wrote_is_seen(code: ctypes.CDLL) -> None:
    found = (ctypes.c_ubyte * 32)()
    made = GridLauncher((phase(code, "look", 2, shared=16),), 1, 16, warp=THREADS)
    for _ in range(2):
        made(1, Buffer(found))
        # Shared memory is each block's own, the workspace all have; the second block found what the first left there.
        assert list(found) == [0xFF] * 16 + [0] * 16


@pytest.mark.parametrize("name", ["diverge", "wait_twice"])
def test_warps_that_end_while_others_wait(code: ctypes.CDLL, name: str) -> None:
    made = launcher(phase(code, "note", 0), phase(code, name, 3))
    for _ in range(3):
        with pytest.raises(RuntimeError, match="phase 1: some warps end while others"):
            made(1)
    assert reversed_by(code, "reverse", barriers=True)


def test_a_phase_that_was_said_to_have_no_barriers(code: ctypes.CDLL) -> None:
    with pytest.raises(RuntimeError, match="phase 0 waits at a barrier"):
        launcher(phase(code, "wait_twice", barriers=False))(1)
    launcher(phase(code, "note", barriers=False))(1)
    assert len(noted(code)) == 4


def test_one_warp_waits_for_nobody(code: ctypes.CDLL) -> None:
    GridLauncher((phase(code, "wait_twice"),), 0, 0, warp=THREADS)(1)


def test_writing_beyond_shared_memory(code: ctypes.CDLL) -> None:
    with pytest.raises(RuntimeError, match="phase 0 writes beyond its shared memory"):
        launcher(phase(code, "overrun", shared=16))(1)
    launcher(phase(code, "overrun", shared=18))(1)


def test_memory_that_begins_at_an_odd_place(code: ctypes.CDLL) -> None:
    class Odd(Buffer):
        def data_ptr(self) -> int:
            return ctypes.addressof(self.memory) + 4

    given, sizes = FLOATS(*range(128)), (ctypes.c_int64 * 2)(4, 1)
    even = (ctypes.c_float * 132)()
    offset = -ctypes.addressof(even) % 16

    class Even(Buffer):
        def data_ptr(self) -> int:
            return ctypes.addressof(self.memory) + offset

    plain = GridLauncher((phase(code, "note"),), 3, 0, sizes=2, warp=WARP)
    wrong = GridLauncher((phase(code, "diverge"),), 3, 0, sizes=2, warp=WARP)
    twice = (phase(code, "note", 2),)
    either = GridLauncher(twice, 3, 0, sizes=2, warp=WARP, alignment=16, unaligned=lambda: plain)
    failing = GridLauncher(twice, 3, 0, sizes=2, warp=WARP, alignment=16, unaligned=lambda: wrong)
    either(1, Even(even), Even(even), Odd(sizes))  # the sizes are for the host
    assert len(noted(code)) == 8
    for _ in range(2):
        either(1, Even(even), Odd(given), Buffer(sizes))
        assert len(noted(code)) == 4
        with pytest.raises(RuntimeError, match="some warps end"):
            failing(1, Odd(given), Even(even), Buffer(sizes))
    either(1, Even(even), Even(even), Buffer(sizes))
    assert len(noted(code)) == 8


def test_stacks_of_fibers_are_their_own(code: ctypes.CDLL) -> None:
    found = (ctypes.c_int64 * 4)()
    launcher(phase(code, "recurse"), buffers=1)(1, Buffer(found))
    assert len(set(found)) == 1 and found[0] != 0


def test_threads_run_grids_at_once(code: ctypes.CDLL) -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(50):
            if not reversed_by(code, "reverse", barriers=True):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def runner(*steps: Launched) -> _native.Runner:
    """A program of two tensors."""
    table, objects = write_program(program(steps, (), (tensor(),) * 2, inputs=2), lambda _: -1, lambda _: None)
    return _native.Runner(
        table, objects, threads=lambda: 1, acquire=list, release=print, allocate=print, view=print, fit=print,
        watchers=(),
    )  # fmt: skip


def test_a_step_of_a_program(code: ctypes.CDLL) -> None:
    given, out = FLOATS(*range(128)), FLOATS()
    made = launcher(phase(code, "reverse", 4, shared=128), buffers=2)
    run = runner(Launched("reverse", made, (0, 1)))
    assert run.python_steps == 0
    run(Buffer(given), Buffer(out))
    assert list(out[:32]) == list(range(31, -1, -1))
    diverging = launcher(phase(code, "diverge"))
    run = runner(Launched("diverge", diverging, ()), Launched("reverse", made, (0, 1)))
    with pytest.raises(RuntimeError, match="some warps end") as failure:
        run(Buffer(given), Buffer(out))
    assert failure.value.smelt_step == 0  # type: ignore[attr-defined]


def test_what_cannot_be_launched(code: ctypes.CDLL) -> None:
    good = phase(code, "note")
    for phases, message in [
        (((0, 1, 32, 0, True),), "address of a phase is zero"),
        (((good[0], -1, 32, 0, True),), "negative"),
        (((good[0], (0,), 32, 0, True),), "of 0 sizes none"),
        (((good[0], 1, 33, 0, True),), "33 threads"),
        (((good[0], 1, 2048, 0, True),), "2048 threads"),
        (((good[0], 1, 32, -1, True),), "shared memory"),
    ]:
        with pytest.raises(ValueError, match=message):
            GridLauncher(phases, 0, 0)
    with pytest.raises(TypeError):
        GridLauncher((good[:3],), 0, 0)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        GridLauncher((3,), 0, 0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cannot be"):
        GridLauncher((good,), 0, 0, sizes=2)
    for alignment, unaligned in ((24, print), (16, None)):
        with pytest.raises(ValueError, match="power of two, and comes with"):
            GridLauncher((good,), 0, 0, alignment=alignment, unaligned=unaligned)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="cannot create"):
        AnyLauncher()
    with pytest.raises(ValueError, match="forward, reverse or shuffled"):
        _native.set_simt_order("sideways")  # type: ignore[arg-type]
    sizes = (ctypes.c_int64 * 1)(-1)
    with pytest.raises(ValueError, match="so many blocks"):
        launcher(phase(code, "note", (0,)), buffers=1, sizes=1)(1, Buffer(sizes))
    with pytest.raises(MemoryError):
        launcher(good, buffers=1, workspace=(0,), sizes=1)(1, Buffer(sizes))
    with pytest.raises(MemoryError):
        launcher(good, workspace=sys.maxsize)(1)
    assert isinstance(launcher(good), AnyLauncher) and issubclass(Launcher, AnyLauncher)
