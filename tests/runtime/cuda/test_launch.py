"""Kernels of grids by the CUDA driver: parameters, streams, devices, workspaces; failures that leave nothing."""

import ctypes
import gc
import struct
import threading
from typing import Any

import pytest
import torch

from smelt import _native
from smelt.base.errors import SmeltError
from smelt.ir.table.write import write_program
from smelt.runtime.cuda.image import CudaCode
from smelt.runtime.cuda.launcher import LaunchSupport
from smelt.torch_abi import cuda_shims
from smelt.torch_abi.aoti_shims import connect
from tests.program_tables import Launched, program, tensor
from tests.runtime.cuda.fake_cuda import ILLEGAL_ADDRESS, OUT_OF_MEMORY, Buffer, FakeCuda, Grid, cuda_launcher, ptx

TEXT = ptx(("add_one", 4), ("sum_blocks", 5), ("sum_workspace", 5), ("nothing", 3), ("many", 101), ("numbers", 5))
CUDA_ERROR = getattr(torch, "AcceleratorError", RuntimeError)


def sizes(*numbers: int) -> Buffer:
    return Buffer(numbers, ctypes.c_int64, device=-1)


def add_one(code: CudaCode, **changes: Any) -> _native.GridLauncher:
    return cuda_launcher(code, [Grid("add_one", (1,), 32)], 3, sizes=2, **changes)


def sums(code: CudaCode) -> _native.GridLauncher:
    """Of n numbers, by two phases: sizes are n, and how many blocks and bytes that takes."""
    grids = [Grid("sum_blocks", (1,), 32), Grid("sum_workspace", 1, 32)]
    return cuda_launcher(code, grids, 3, (2,), sizes=3)


def test_parameters_by_value(cuda: FakeCuda) -> None:
    cuda.set_stream(0, 0xABC)
    given, out = Buffer(range(100)), Buffer([0] * 100)
    cuda_launcher(CudaCode(TEXT), [Grid("add_one", (1,), 32, 1024)], 3, sizes=2)(1, given, out, sizes(100, 4))
    assert list(out.memory) == list(range(1, 101))
    (launched,) = cuda.launches
    assert (launched.name, launched.device, launched.shared, launched.stream) == ("add_one", 0, 1024, 0xABC)
    assert (list(launched.grid), list(launched.block)) == ([4, 1, 1], [32, 1, 1])
    assert launched.parameters == [given.data_ptr(), out.data_ptr(), 0, 100]
    assert cuda.workspaces == (0, 0)


def test_phases_and_their_workspace(cuda: FakeCuda) -> None:
    given, out, launch = Buffer(range(100)), Buffer([0]), sums(CudaCode(TEXT))
    for n in (100, 40):
        blocks = -(-n // 32)
        launch(1, given, out, sizes(n, blocks, blocks * 4))
        assert out.memory[0] == sum(range(n))
    assert [each.name for each in cuda.launches] == ["sum_blocks", "sum_workspace"] * 2
    first, second = cuda.launches[:2]
    assert first.parameters[2] == second.parameters[2] != 0
    assert cuda.workspaces == (2, 2)


def test_more_shared_memory_than_is_usual(cuda: FakeCuda) -> None:
    code = CudaCode(TEXT)
    cuda_launcher(code, [Grid("nothing", 1, 64, 100 * 1024)], 2)(1, Buffer([1]), Buffer([1]))
    assert cuda.launches[0].shared == 100 * 1024
    with pytest.raises(SmeltError, match="nothing cannot be launched on Fake GPU 0"):
        cuda_launcher(code, [Grid("nothing", 1, 64, 300 * 1024)], 2)(1, Buffer([1]), Buffer([1]))


def test_grids_of_no_blocks_are_left_out(cuda: FakeCuda) -> None:
    grids = [Grid("nothing", (0,), 32), Grid("nothing", 1, 64)]
    cuda_launcher(CudaCode(TEXT), grids, 2, sizes=1)(1, Buffer([1]), sizes(0))
    assert [each.block[0] for each in cuda.launches] == [64]


def test_many_parameters(cuda: FakeCuda) -> None:
    buffers = [Buffer([number]) for number in range(99)]
    cuda_launcher(CudaCode(TEXT), [Grid("many", 1, 32)], 100, sizes=1)(1, *buffers, sizes(77))
    assert cuda.launches[0].parameters == [*(each.data_ptr() for each in buffers), 0, 77]


def test_each_device_has_the_code_its_stream_and_its_memory(cuda: FakeCuda) -> None:
    before = cuda.number("modules")
    launch = sums(CudaCode(TEXT))
    assert cuda.number("modules") == before  # nothing is loaded yet
    for device in (1, 0, 1):
        cuda.set_stream(device, 0x100 + device)
        launch(1, Buffer(range(32), device=device), Buffer([0]), sizes(32, 1, 4))
    assert cuda.number("modules") == before + 2
    assert [(each.device, each.stream) for each in cuda.launches[::2]] == [(1, 0x101), (0, 0x100), (1, 0x101)]
    allocated = (ctypes.c_int * 3).in_dll(cuda.library, "fake_allocated_on")
    assert list(allocated) == [1, 0, 1]
    with pytest.raises(SmeltError, match="no GPU number 3"):
        launch(1, Buffer([1], device=3), Buffer([0]), sizes(1, 1, 4))
    with pytest.raises(ValueError, match="not on a GPU"):
        launch(1, Buffer([1], device=-1), Buffer([0]), sizes(1, 1, 4))


@pytest.mark.parametrize("current", [-1, 0, 1])
def test_the_current_device_stays(cuda: FakeCuda, current: int) -> None:
    launch = add_one(CudaCode(TEXT))
    cuda.library.fake_set_current(current)
    before = cuda.library.fake_current()
    for _ in range(2):
        launch(1, Buffer([1]), Buffer([0]), sizes(1, 1))
        assert cuda.library.fake_current() == before
    assert [each.device for each in cuda.launches] == [0, 0]


def test_a_thread_without_a_context(cuda: FakeCuda) -> None:
    launch, out = add_one(CudaCode(TEXT)), Buffer([0])
    launch(1, Buffer([1]), out, sizes(1, 1))
    thread = threading.Thread(target=launch, args=(1, Buffer([41]), out, sizes(1, 1)))
    thread.start()
    thread.join()
    assert out.memory[0] == 42


@pytest.mark.parametrize("after", [0, 1])
def test_a_launch_that_fails(cuda: FakeCuda, after: int) -> None:
    launch = sums(CudaCode(TEXT))
    given = Buffer(range(32)), Buffer([0]), sizes(32, 1, 4)
    for attempt in range(2):  # the first by Python, which loads the code
        cuda.fail("cuLaunchKernel", ILLEGAL_ADDRESS, after)
        with pytest.raises(CUDA_ERROR, match=r"CUDA error: an illegal memory access was.*\nCUDA kernel") as failure:
            launch(1, *given)
        assert failure.value.error_code == ILLEGAL_ADDRESS
        assert cuda.library.fake_current() is None and len(cuda.launches) == (attempt + 1) * after
    launch(1, *given)
    assert given[1].memory[0] == sum(range(32))


def test_a_launch_the_driver_has_no_memory_for(cuda: FakeCuda) -> None:
    cuda.fail("cuLaunchKernel", OUT_OF_MEMORY)
    with pytest.raises(torch.OutOfMemoryError, match=r"CUDA out of memory.*launch add_one"):
        add_one(CudaCode(TEXT))(1, Buffer([1]), Buffer([0]), sizes(1, 1))


def test_a_context_that_cannot_be_entered(cuda: FakeCuda) -> None:
    launch = add_one(CudaCode(TEXT))
    launch(1, Buffer([1]), Buffer([0]), sizes(1, 1))
    cuda.fail("cuCtxSetCurrent", ILLEGAL_ADDRESS)
    with pytest.raises(CUDA_ERROR, match="illegal memory access"):
        launch(1, Buffer([1]), Buffer([0]), sizes(1, 1))


def test_no_memory_for_a_workspace(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's C function has no words for it: the same is asked of it by Python, which raises, or finds some."""
    launch, given = sums(CudaCode(TEXT)), (Buffer(range(32)), Buffer([0]), sizes(32, 1, 4))
    launch(1, *given)
    asked: list[tuple[int, int]] = []
    freed: list[int] = []

    class Block(Buffer):
        def __del__(self) -> None:
            freed.append(1)

    def none_left(support: Any, device: int, nbytes: int) -> Any:
        asked.append((device, nbytes))
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 4 bytes.")

    monkeypatch.setattr(LaunchSupport, "workspace", none_left)
    cuda.fail("raw_alloc", 1)
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
        launch(1, *given)
    assert asked == [(0, 4)] and len(cuda.launches) == 2
    assert cuda.library.fake_current() is None
    monkeypatch.setattr(LaunchSupport, "workspace", lambda support, device, nbytes: Block([0]))
    cuda.fail("raw_alloc", 1)
    given[1].memory[0] = 0
    launch(1, *given)
    assert given[1].memory[0] == sum(range(32)) and freed == [1]


def test_without_functions_of_pytorch(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    _native.set_cuda_library({})
    blocks: list[Buffer] = []

    def workspace(support: Any, device: int, nbytes: int) -> Buffer:
        blocks.append(Buffer([0] * (nbytes // 4)))
        return blocks[-1]

    monkeypatch.setattr(LaunchSupport, "workspace", workspace)
    monkeypatch.setattr(LaunchSupport, "stream", lambda support, device: 0x500 + device)
    launch, out = sums(CudaCode(TEXT)), Buffer([0])
    for _ in range(2):
        launch(1, Buffer(range(64), device=1), out, sizes(64, 2, 8))
        assert out.memory[0] == sum(range(64))
    assert [each.stream for each in cuda.launches] == [0x501] * 4 and len(blocks) == 2
    assert cuda.workspaces == (0, 0)
    _native.set_cuda_library(cuda.torch_functions(cuda_shims.STREAM, cuda_shims.ALLOCATE))  # no way to free: not used
    launch(1, Buffer(range(64), device=1), out, sizes(64, 2, 8))
    assert cuda.launches[-1].stream is None and len(blocks) == 3


def test_code_that_cannot_be_loaded(cuda: FakeCuda) -> None:
    launch = cuda_launcher(CudaCode("nonsense"), [Grid("k", 1, 32)], 1)
    for _ in range(2):
        with pytest.raises(SmeltError, match="refuses generated code for Fake GPU 0"):
            launch(1, Buffer([1]))


@pytest.mark.parametrize("blocks", [-1, 1 << 31])
def test_grids_that_cannot_be(cuda: FakeCuda, blocks: int) -> None:
    with pytest.raises(ValueError, match="so many blocks"):
        add_one(CudaCode(TEXT))(1, Buffer([1]), Buffer([0]), sizes(1, blocks))


def test_what_a_graph_recorded_stays(cuda: FakeCuda) -> None:
    cuda.set_stream(0, 0x10)
    before = cuda.number("modules")
    for recording in (False, True):
        launch = add_one(CudaCode(TEXT))
        launch(1, Buffer([1]), Buffer([0]), sizes(1, 1))
        cuda.set(capturing=int(recording))
        launch(1, Buffer([1]), Buffer([0]), sizes(1, 1))
        cuda.set(capturing=0)
        del launch
        gc.collect()
        assert cuda.number("modules") == before + recording
    cuda.set(modules=before)  # for the check of the fixture


def runner(steps: tuple[Launched, ...], inputs: int, constants: tuple[Any, ...] = ()) -> _native.Runner:
    tensors = (tensor(),) * (inputs + len(constants))
    table = program(steps, (), tensors, inputs=inputs, constants=constants)
    return _native.Runner(
        *write_program(table, lambda dtype: -1, lambda device: None),
        threads=lambda: 1, acquire=list, release=print, allocate=print, view=print, fit=print, watchers=(),
    )  # fmt: skip


def test_a_step_of_a_program_on_tensors(cuda: FakeCuda) -> None:
    connect()
    launch = cuda_launcher(CudaCode(TEXT), [Grid("add_one", 1, 32)], 3, sizes=1, device=1)
    assert isinstance(launch, _native.AnyLauncher)
    count = torch.tensor([5])
    run = runner((Launched("add_one", launch, (0, 1, 2)),) * 3, inputs=2, constants=(count,))
    given, out = torch.arange(5.0), torch.zeros(5)
    run(given, out)
    assert run.python_steps == 0 and run.gil_acquisitions == 1  # once, to load the code
    run(given, out)
    assert run.gil_acquisitions == 1 and out.tolist() == [1, 2, 3, 4, 5]
    assert [each.device for each in cuda.launches] == [1] * 6
    cuda.fail("cuLaunchKernel", ILLEGAL_ADDRESS, 1)
    with pytest.raises(CUDA_ERROR, match="illegal memory access") as failure:
        run(given, out)
    assert failure.value.smelt_step == 1


def test_a_program_asks_on_which_gpu_its_tensors_are(cuda: FakeCuda) -> None:
    run = runner((Launched("add_one", add_one(CudaCode(TEXT)), (0, 1, 2)),), inputs=3)
    run(Buffer([1], device=1), Buffer([0]), sizes(1, 1))
    assert cuda.launches[0].device == 1
    with pytest.raises(ValueError, match="not on a GPU"):
        run(torch.ones(1), torch.ones(1), torch.tensor([1, 1]))


def test_memory_that_begins_at_an_odd_place(cuda: FakeCuda) -> None:
    """What takes any memory is launched where a buffer begins between two sixteens of bytes, made when it is needed."""

    class At(Buffer):
        def __init__(self, place: int) -> None:
            super().__init__([0] * 16)
            self.place = place

        def data_ptr(self) -> int:
            start = ctypes.addressof(self.memory)
            return start + -start % 16 + self.place

    code = CudaCode(ptx(("fast", 2), ("slow", 2)))
    made: list[Any] = []

    def slow() -> _native.GridLauncher:
        made.append(cuda_launcher(code, [Grid("slow", 1, 32)], 1))
        return made[-1]

    fast = cuda_launcher(code, [Grid("fast", 1, 32)], 1, alignment=16, unaligned=slow)
    fast(1, At(0))
    assert not made
    for place in (4, 0, 12, 16):
        fast(1, At(place))
    assert len(made) == 1
    assert [each.name for each in cuda.launches] == ["fast", "slow", "fast", "slow", "fast"]
    cuda.fail("cuLaunchKernel", ILLEGAL_ADDRESS)
    with pytest.raises(CUDA_ERROR):
        fast(1, At(4))
    for wrong in (lambda: None, lambda: cuda_launcher(code, [], 2)):
        odd: Any = wrong
        with pytest.raises(TypeError, match="returns a launcher of the same buffers"):
            cuda_launcher(code, [Grid("fast", 1, 32)], 1, alignment=16, unaligned=odd)(1, At(8))


def test_threads_launch_at_once(cuda: FakeCuda) -> None:
    launch, wrong = sums(CudaCode(TEXT)), []

    def work(device: int) -> None:
        out = Buffer([0])
        for n in range(1, 60):
            blocks = -(-n // 32)
            launch(1, Buffer(range(n), device=device), out, sizes(n, blocks, blocks * 4))
            if out.memory[0] != sum(range(n)):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(number % 2,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(cuda.launches) == 6 * 59 * 2
    assert {each.device for each in cuda.launches} == {0, 1}


def test_threads_meet_at_the_first_launch(cuda: FakeCuda) -> None:
    """Whoever finds the code loaded by another meanwhile goes on as if it had loaded it."""
    for _ in range(20):
        launch, start, failed = sums(CudaCode(TEXT)), threading.Barrier(4), []

        def work(launch: Any = launch, start: Any = start, failed: Any = failed) -> None:
            start.wait(60)
            try:
                launch(1, Buffer(range(32)), Buffer([0]), sizes(32, 1, 4))
            except Exception as error:
                failed.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed


def test_references_are_balanced(cuda: FakeCuda) -> None:
    import sys

    code = CudaCode(TEXT)
    launch, given = add_one(code), Buffer([1])
    launch(1, given, given, sizes(1, 1))
    before = sys.getrefcount(given), sys.getrefcount(launch), sys.getrefcount(code)
    for _ in range(50):
        launch(1, given, given, sizes(1, 1))
        cuda.fail("cuLaunchKernel", ILLEGAL_ADDRESS)
        with pytest.raises(CUDA_ERROR):
            launch(1, given, given, sizes(1, 1))
    gc.collect()
    assert (sys.getrefcount(given), sys.getrefcount(launch), sys.getrefcount(code)) == before


def test_what_cannot_be_a_launcher(cuda: FakeCuda) -> None:
    class Odd:
        def functions(self, device: int) -> Any:
            return (1, 2)

    odd: Any = Odd()
    launch = _native.GridLauncher(((0, 1, 32, 0, True),), 0, 0, support=odd, device=0)
    with pytest.raises(TypeError, match="a function for each phase"):
        launch(1)
    with pytest.raises(TypeError):
        _native.set_cuda_library([])  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        _native.set_cuda_library({cuda_shims.STREAM: "there"})  # type: ignore[dict-item]


def test_numbers_of_the_host_are_parameters(cuda: FakeCuda) -> None:
    """The first buffer in memory says which GPU that is."""
    half = Buffer([0x3C01, 0x4000], ctypes.c_uint16, device=-1)
    wide, memory = Buffer([-7], ctypes.c_int64, device=-1), Buffer([1.0], device=1)
    launch = cuda_launcher(CudaCode(TEXT), [Grid("numbers", 1, 32)], 4, numbers=bytes([2, 8, 0, 4]))
    single = Buffer([2.5], device=-1)
    launch(1, half, wide, memory, single)
    (launched,) = cuda.launches
    assert launched.device == 1
    bits = struct.unpack("<I", struct.pack("<f", 2.5))[0]
    assert launched.parameters == [0x3C01, (1 << 64) - 7, memory.data_ptr(), bits, 0]


@pytest.mark.parametrize("numbers", [bytes([4]), bytes([0, 3]), bytes([0, 0, 0])])
def test_numbers_that_cannot_be(numbers: bytes) -> None:
    with pytest.raises(ValueError, match="of each buffer, how many bytes"):
        cuda_launcher(CudaCode(TEXT), [Grid("nothing", 1, 32)], 2, numbers=numbers)
