"""The CUDA driver: why there is none, its GPUs, code assembled, kept, loaded and unloaded; its errors in words."""

import gc
import subprocess
import sys
import threading

import pytest

from smelt import _native
from smelt.base.errors import SmeltError
from smelt.runtime.cuda import driver
from smelt.runtime.cuda.driver import devices, why_not_cuda, why_not_device
from smelt.runtime.cuda.image import CudaCode, assemble, image_key
from tests.runtime.cuda.fake_cuda import INVALID_PTX, OUT_OF_MEMORY, FakeCuda, ptx

TEXT = ptx(("k0", 2), ("k1", 3))


def test_a_driver_and_its_devices(cuda: FakeCuda) -> None:
    assert why_not_cuda() is None
    found = devices()
    assert [device.name for device in found] == ["Fake GPU 0", "Fake GPU 1"]
    assert found[1].number == 1 and found[1].capability == (9, 0) and found[1].warp == 32
    assert found[0].multiprocessors == 1016 and found[0].threads_per_multiprocessor == 1039
    assert driver.driver().text == "12.4"


@pytest.mark.parametrize(
    ("path", "reason"),
    [("/nowhere/libcuda.so.1", "there is no CUDA driver: /nowhere"), ("libm.so.6", "libm.so.6 has no function cu")],
)
def test_no_driver(monkeypatch: pytest.MonkeyPatch, path: str, reason: str) -> None:
    monkeypatch.setenv(driver.SWITCH, path)
    driver.forget()
    try:
        assert reason in (why_not_cuda() or "")
        assert devices() == ()
        with pytest.raises(SmeltError, match="SM030: there is no CUDA driver"):
            driver.driver()
    finally:
        driver.forget()


def test_reasons_against_a_driver(cuda: FakeCuda) -> None:
    cuda.set(version=11080)
    assert why_not_cuda() == "the CUDA driver is for CUDA 11.8, and 12 is needed"
    cuda.set(version=12000, devices=0)
    assert why_not_cuda() == "the CUDA driver sees no GPU"
    cuda.set(devices=1, major=6, minor=1)
    assert why_not_cuda() == "Fake GPU 0 has compute capability 6.1, and 7.5 is needed"
    with pytest.raises(SmeltError, match=r"compute capability 6\.1"):
        CudaCode(TEXT).module(0)
    cuda.set(major=7, minor=5)
    assert why_not_cuda() is None
    for function in ("cuInit", "cuDeviceGetCount", "cuDeviceGetAttribute"):
        driver.forget()
        cuda.fail(function, OUT_OF_MEMORY)
        reason = f"the CUDA driver does not start: {function}: out of memory (CUDA_ERROR_OUT_OF_MEMORY)"
        assert why_not_cuda() == reason and devices() == ()


def test_code_is_assembled_once_for_devices_of_a_kind(cuda: FakeCuda) -> None:
    code = CudaCode(TEXT)
    first, second = code.function("k0", 0), code.function("k0", 1)
    assert first and second and first != second
    (image,) = code.images
    assert image.capability == (9, 0) and image.driver == 12040 and "Used 24 registers" in image.log
    assert image.key == image_key(devices()[0]) == "sm_90 driver 12040"
    assert [code.module(device).device for device in (0, 1)] == [0, 1] and code.module(0) is code.module(0)


def test_devices_of_two_kinds(cuda: FakeCuda) -> None:
    cuda.set(major=8, minor=0, newer=6)
    code = CudaCode(TEXT)
    assert code.function("k0", 1) and code.function("k0", 0)
    assert [image.key for image in code.images] == ["sm_86 driver 12040", "sm_80 driver 12040"]
    stored = code.images
    cuda.fail("cuLinkCreate", INVALID_PTX)
    assert CudaCode(TEXT, stored).function("k0", 0)
    cuda.fail("", 0)
    cuda.set(major=7, minor=0, newer=5)  # the first is too old, and says so; the second is not
    assert why_not_cuda() is None
    assert [why_not_device(device) is None for device in devices()] == [False, True]
    assert CudaCode(TEXT).image(devices()[1]).capability == (7, 5)


def test_stored_code_needs_no_assembler(cuda: FakeCuda) -> None:
    stored = assemble(TEXT, devices()[0])
    assert stored.code == b"cubin of\n" + TEXT.encode() + b"\0"
    cuda.fail("cuLinkCreate", INVALID_PTX)
    assert CudaCode(TEXT, [stored]).function("k1", 0)
    cuda.set(version=12050)  # another driver: it assembles anew
    with pytest.raises(SmeltError):
        CudaCode(TEXT, [stored]).module(0)


def test_what_the_assembler_refuses(cuda: FakeCuda) -> None:
    code = CudaCode("nonsense")
    with pytest.raises(SmeltError) as failure:
        code.function("k0", 0)
    text = str(failure.value)
    assert "SM030" in text and "Fake GPU 0" in text and "a PTX JIT compilation failed" in text
    assert "line 1; fatal   : Missing .version directive" in text
    assert why_not_cuda() is None  # it is about this code


def test_a_driver_that_refuses_all_ptx(cuda: FakeCuda) -> None:
    cuda.fail("cuLinkAddData", 222)
    with pytest.raises(SmeltError, match="unsupported toolchain"):
        CudaCode(TEXT).module(0)
    assert (why_not_cuda() or "").startswith("the CUDA driver refuses PTX: the provided PTX was compiled")


@pytest.mark.parametrize("function", ["cuLinkCreate", "cuLinkComplete", "cuModuleLoadDataEx", "cuCtxSetCurrent"])
def test_failures_on_the_way_leave_nothing(cuda: FakeCuda, function: str) -> None:
    code = CudaCode(TEXT)
    cuda.fail(function, OUT_OF_MEMORY)
    with pytest.raises(SmeltError, match="out of memory"):
        code.module(0)
    assert code.function("k0", 0)  # the next try


def test_functions_that_are_not_there(cuda: FakeCuda) -> None:
    code = CudaCode(TEXT)
    with pytest.raises(SmeltError, match="k7 cannot be launched on Fake GPU 1"):
        code.function("k7", 1)
    with pytest.raises(SmeltError, match="no GPU number 5"):
        code.function("k0", 5)
    with pytest.raises(SmeltError, match="cannot be launched"):
        code.function("k0", 0, shared_bytes=1 << 20)


def test_what_a_function_takes(cuda: FakeCuda) -> None:
    used = CudaCode(TEXT).usage("k0", 0, threads=256, shared_bytes=64 * 1024)
    assert (used.registers, used.local_bytes, used.blocks_per_multiprocessor) == (24, 16, 8)


def test_unloaded_with_the_last_who_holds_it(cuda: FakeCuda) -> None:
    before = cuda.number("modules")
    code = CudaCode(TEXT)
    code.module(0), code.module(1)
    assert cuda.number("modules") == before + 2
    kept = code.module(1)
    del code
    gc.collect()
    assert cuda.number("modules") == before + 1
    del kept
    assert cuda.number("modules") == before


def test_loading_while_a_graph_is_recorded(cuda: FakeCuda) -> None:
    cuda.set(capturing=1)
    code = CudaCode(TEXT)
    assert code.function("k0", 0)
    del code


def test_this_threads_context_is_left_as_it_was(cuda: FakeCuda) -> None:
    code = CudaCode(TEXT)
    for device in (-1, 1):
        cuda.library.fake_set_current(device)
        before = cuda.library.fake_current()
        code.function("k0", 0)
        assert cuda.library.fake_current() == before
        code = CudaCode(TEXT)
        assert cuda.library.fake_current() == before


def test_threads_load_once(cuda: FakeCuda) -> None:
    code = CudaCode(TEXT)
    before = cuda.number("modules")
    threads = [threading.Thread(target=code.module, args=(number % 2,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cuda.number("modules") == before + 2 and len(code.images) == 1


_EXIT = """
import atexit, ctypes, os
from smelt import _native
from smelt.runtime.cuda.image import CudaCode
library = ctypes.CDLL(os.environ["SMELT_LIBCUDA"])
library.fake_reset()
code = CudaCode(".version 8.0\\n.entry k0()")
code.module(0)
child = os.fork()
if child == 0:
    del code
    os._exit(ctypes.c_int.in_dll(library, "fake_modules").value)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1, "a child of fork() unloaded it"
import builtins
builtins.held = code   # goes when the interpreter ends
print("modules", ctypes.c_int.in_dll(library, "fake_modules").value)
"""


def test_nothing_is_unloaded_by_a_child_or_at_the_end(cuda: FakeCuda) -> None:
    done = subprocess.run([sys.executable, "-c", _EXIT], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout == "modules 1\n", done.stderr


def test_questions_without_a_driver() -> None:
    script = "from smelt import _native\ntry: _native.cuda_device_names()\nexcept RuntimeError as e: print(e)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout == "no CUDA driver was opened\n", done.stderr


def test_errors_have_their_number_and_the_log(cuda: FakeCuda) -> None:
    devices()
    with pytest.raises(_native.CudaError) as failure:
        _native.cuda_link(b"nonsense", 0)
    assert failure.value.code == INVALID_PTX and "Missing .version" in failure.value.log
    assert _native.cuda_error_text(OUT_OF_MEMORY) == "out of memory"
    assert _native.cuda_error_text(-5) == "unknown error -5"
    with pytest.raises(ValueError, match="not the number of a GPU"):
        _native.cuda_link(b"", 500)
