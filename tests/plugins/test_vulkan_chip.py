"""The Vulkan plug-in's memory, copies, queue and errors, on whatever device there is (lavapipe in CI)."""

import ctypes

import pytest
import torch

from smelt.device import ChipLost, Grid, Launch
from smelt.device.chip import why_not_chip
from tests.codegen.gpu.on_vulkan import OnVulkan, chip, needs_vulkan
from tests.codegen.gpu.test_spirv import of_each


@pytest.fixture(autouse=True)
def _vulkan() -> None:
    needs_vulkan()


def put(tensor: torch.Tensor) -> int:
    at: int = chip().allocate(tensor.nbytes)
    chip().copy_in(at, memoryview(tensor.view(torch.uint8).numpy()))
    return at


def get(at: int, like: torch.Tensor) -> torch.Tensor:
    found = torch.empty_like(like)
    chip().copy_out(at, memoryview(found.view(torch.uint8).numpy()))
    return found


def test_it_is_a_chip() -> None:
    assert why_not_chip(chip()) is None
    target = chip().describe()
    assert target.form == "spirv" and target.warp_size > 1 and target.memory_bytes > 0


def test_copies_of_every_size_and_place() -> None:
    """Longer ones than the memory that both sides see too."""
    before = chip().heap.allocations
    for count in (1, 3, 1000, 3_000_000):
        x = torch.randint(0, 255, (count,), dtype=torch.uint8)
        at = put(x)
        assert torch.equal(get(at, x), x)
        other = chip().allocate(count)
        chip().copy_within(other, at, count)
        assert torch.equal(get(other, x), x)
        assert torch.equal(get(at + count // 2, x[count // 2 :]), x[count // 2 :])
        chip().free(at)
        chip().free(other)
    assert chip().heap.allocations == before


def test_what_is_freed_is_used_again() -> None:
    first = chip().allocate(1 << 20)
    chip().free(first)
    second = chip().allocate(1 << 20)
    chip().free(second)
    assert first == second and first % 64 == 0
    with pytest.raises(ValueError, match="not allocated"):
        chip().free(second)


def test_no_room_is_a_memory_error() -> None:
    with pytest.raises(MemoryError):
        chip().allocate(1 << 50)
    chip().free(chip().allocate(8))


def test_more_groups_than_a_device_takes_at_once() -> None:
    """A grid goes in pieces, each with the number of its first block."""
    count = 256 * (chip().device.physical.most_groups + 3)
    if count > 1 << 25:
        pytest.skip("the device takes more groups than there is memory for here")
    kernel = of_each("neg", torch.float32, count)
    x = torch.arange(count, dtype=torch.float32)
    assert torch.equal(OnVulkan(kernel).run([x, torch.zeros(count)])[1], -x)


def test_events_happen_in_order() -> None:
    built = OnVulkan(of_each("neg", torch.float32, 64))
    x, y = put(torch.ones(64)), put(torch.zeros(64))
    for phase in built.code.phases:
        chip().launch(built.handle, Launch(phase.symbol, (x, y), (), 0, Grid(int(phase.blocks), phase.threads)))
    event = chip().record_event()
    chip().wait_event(event)
    assert chip().query_event(event)
    chip().synchronize()
    assert torch.equal(get(y, torch.zeros(64)), -torch.ones(64))
    chip().free(x)
    chip().free(y)


def test_equal_code_is_compiled_once() -> None:
    OnVulkan(of_each("neg", torch.float32, 4096))
    before = len(chip().pipelines)
    OnVulkan(of_each("neg", torch.float32, 4096))
    assert len(chip().pipelines) == before


def test_a_lost_device_stays_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    from smelt_vulkan import VulkanChip, api

    lost = VulkanChip()

    def refuse(value: int) -> None:
        raise api.VulkanError("vkWaitSemaphores", api.DEVICE_LOST)

    monkeypatch.setattr(lost.queue, "wait", refuse)
    with pytest.raises(ChipLost, match="is lost"):
        lost.synchronize()
    with pytest.raises(ChipLost, match="is lost"):
        lost.allocate(64)
    monkeypatch.undo()
    lost.close()


def test_a_device_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from smelt_vulkan import why_not

    monkeypatch.setenv("SMELT_VULKAN_DEVICE", "no such device")
    reason = why_not()
    assert reason is not None and "no such device" in reason


def test_structures_are_as_long_as_the_specification_says() -> None:
    from smelt_vulkan import api

    assert ctypes.sizeof(api.BufferCreate) == 56
    assert ctypes.sizeof(api.Submit) == 72
    assert ctypes.sizeof(api.ComputeCreate) == 96
    assert api.Limits.maxComputeSharedMemorySize.offset == 216
