"""The fake CUDA driver (`fake_cuda.c`) as tests use it.

    def test_something(cuda: FakeCuda) -> None:
        cuda.devices = 1
        cuda.fail("cuLaunchKernel", 700)
"""

import ctypes
import gc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from smelt import _native
from smelt.ir.kernel_code import GridPhase
from smelt.runtime.cuda import driver
from smelt.runtime.cuda.image import CudaCode
from smelt.runtime.cuda.launcher import LaunchSupport
from smelt.torch_abi import cuda_shims
from tests.compiled_c import build

OUT_OF_MEMORY, ILLEGAL_ADDRESS, INVALID_PTX = 2, 700, 218


class Launched(ctypes.Structure):
    """One launch as the driver saw it."""

    _fields_ = [
        ("name_", ctypes.c_char * 64),
        ("device", ctypes.c_int),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("count", ctypes.c_int),
        ("parameters_", ctypes.c_uint64 * 128),
    ]

    @property
    def name(self) -> str:
        return str(self.name_.decode())

    @property
    def parameters(self) -> list[int]:
        return list(self.parameters_[: self.count])


class FakeCuda:
    """The driver's state."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.library = ctypes.CDLL(path)
        self.library.fake_current.restype = ctypes.c_void_p

    def number(self, name: str) -> int:
        return int(ctypes.c_int.in_dll(self.library, f"fake_{name}").value)

    def set(self, **numbers: int) -> None:
        for name, number in numbers.items():
            ctypes.c_int.in_dll(self.library, f"fake_{name}").value = number
        driver.forget()

    def fail(self, function: str, code: int, after: int = 0) -> None:
        self.library.fake_fail(function.encode(), code, after)

    def set_stream(self, device: int, stream: int) -> None:
        (ctypes.c_void_p * 4).in_dll(self.library, "fake_streams")[device] = stream

    def stream(self, device: int) -> int:
        return int((ctypes.c_void_p * 4).in_dll(self.library, "fake_streams")[device] or 0)

    @property
    def launches(self) -> list[Any]:
        return list((Launched * 4096).in_dll(self.library, "fake_launches")[: self.number("launch_count")])

    @property
    def workspaces(self) -> tuple[int, int]:
        """How many were taken, and how many given back."""
        return self.number("blocks_taken"), self.number("blocks_free")

    def torch_functions(self, *names: str) -> dict[str, int]:
        """PyTorch's functions for CUDA, as `_native.set_cuda_library` takes them."""
        wanted = names or (cuda_shims.STREAM, cuda_shims.ALLOCATE, cuda_shims.FREE)
        return {name: ctypes.cast(getattr(self.library, name), ctypes.c_void_p).value or 0 for name in wanted}


def build_driver(folder: Path, name: str) -> str:
    """The path of the driver as a shared object of this name."""
    return build("tests/runtime/cuda/fake_cuda.c", folder, "gpu/host_grid.c", name=name)


@pytest.fixture(scope="session")
def built_cuda(tmp_path_factory: pytest.TempPathFactory) -> FakeCuda:
    return FakeCuda(build_driver(tmp_path_factory.mktemp("fake_cuda"), "fake_cuda.so"))


@pytest.fixture
def cuda(built_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    """The fake driver in the place of the real one, with two GPUs; PyTorch's functions for CUDA are known."""
    built_cuda.library.fake_reset()
    monkeypatch.setenv(driver.SWITCH, built_cuda.path)
    driver.forget()
    _native.set_cuda_library(built_cuda.torch_functions())
    before = built_cuda.number("modules")
    yield built_cuda
    gc.collect()  # exceptions that tests caught hold their frames
    assert built_cuda.number("links") == 0 and built_cuda.number("modules") == before
    taken, free = built_cuda.workspaces
    assert taken == free
    _native.set_cuda_library({})
    monkeypatch.undo()
    driver.forget()


def ptx(*entries: tuple[str, int]) -> str:
    """PTX with functions of so many parameters."""
    lines = [".version 8.0", ".target sm_75"]
    for name, count in entries:
        parameters = ", ".join(f".param .u64 p{number}" for number in range(count))
        lines.append(f".visible .entry {name}({parameters}) {{ ret; }}")
    return "\n".join(lines)


class Buffer:
    """Numbers on the host that say they are on a GPU."""

    def __init__(self, numbers: Sequence[float], kind: Any = ctypes.c_float, device: int = 0) -> None:
        self.memory = (kind * len(numbers))(*numbers)
        self.device = device

    def data_ptr(self) -> int:
        return ctypes.addressof(self.memory)

    def get_device(self) -> int:
        return self.device


class Grid(NamedTuple):
    """A phase of a kernel. `blocks` is a number, or (slot,) for one of the sizes that a launch is given."""

    symbol: str
    blocks: int | tuple[int]
    threads: int
    shared_bytes: int = 0


def cuda_launcher(
    code: CudaCode, grids: Sequence[Grid], buffers: int, workspace: int | tuple[int] = 0, **options: Any
) -> _native.GridLauncher:
    """A launcher of `grids`, one after the other. `buffers` counts the array of sizes, if there is one."""
    phases = tuple((0, grid.blocks, grid.threads, grid.shared_bytes, True) for grid in grids)
    functions = tuple(GridPhase(grid.symbol, 0, grid.threads, grid.shared_bytes, True) for grid in grids)
    return _native.GridLauncher(phases, buffers, workspace, support=LaunchSupport(code, functions), **options)
