"""The queue of a device: commands are recorded, submitted some at a time, and done in order.

    queue.dispatch(pipeline, parameters, blocks); queue.copy(…); value = queue.submit(); queue.wait(value)

Each command waits for those before it. One counter says how far the device has come (a timeline semaphore): a list of
commands, with the memory that their parameters and copies are in, is recorded anew once the counter has passed it.
"""

import ctypes
import struct
from collections import deque
from ctypes import byref, c_uint64, c_void_p
from dataclasses import dataclass

from smelt_vulkan import api
from smelt_vulkan.device import OpenDevice
from smelt_vulkan.memory import DeviceBuffer

PUSHED = 15  # parameters that are push constants; of more there is an array
PUSH_BYTES = 8 * (PUSHED + 1)
_MOST_COMMANDS = 64  # before they are submitted: the device begins while the host goes on
_ARGUMENT_BYTES = 256 << 10
_STAGING_BYTES = 4 << 20
_ALL_STAGES = api.STAGE_COMPUTE | api.STAGE_TRANSFER
_ALL_ACCESS = api.SHADER_READ | api.SHADER_WRITE | api.TRANSFER_READ | api.TRANSFER_WRITE
_HOST = api.HOST_VISIBLE | api.HOST_COHERENT
_FOREVER = 2**64 - 1


@dataclass
class _Commands:
    """A list of commands. `done`: what the counter says when it is done."""

    handle: int
    arguments: DeviceBuffer
    staging: DeviceBuffer
    count: int = 0
    arguments_used: int = 0
    staging_used: int = 0
    done: int = 0


class Queue:
    def __init__(self, device: OpenDevice) -> None:
        self.device = device
        family = device.physical.queue_family
        pool = api.PoolCreate(api.POOL_CREATE, None, api.RESET_COMMAND_BUFFER, family)
        self._pool = device.made("vkCreateCommandPool", pool)
        kind = api.SemaphoreTypeCreate(api.SEMAPHORE_TYPE_CREATE, None, 1, 0)
        info = api.SemaphoreCreate(api.SEMAPHORE_CREATE, ctypes.addressof(kind), 0)
        self._counter = device.made("vkCreateSemaphore", info)
        push = api.PushRange(api.COMPUTE_STAGE, 0, PUSH_BYTES)
        layout = api.LayoutCreate(api.LAYOUT_CREATE, None, 0, 0, None, 1, ctypes.addressof(push))
        self.layout = device.made("vkCreatePipelineLayout", layout)
        self.submitted = 0
        self._open: _Commands | None = None
        self._waiting: deque[_Commands] = deque()

    # Recording.

    def _commands(self) -> _Commands:
        if self._open is not None and self._open.count >= _MOST_COMMANDS:
            self.submit()
        if self._open is None:
            self._open = self._next()
            begin = api.CommandBegin(api.COMMAND_BEGIN, None, 1, None)
            self.device.vulkan("vkBeginCommandBuffer", self._open.handle, byref(begin))
        return self._open

    def _next(self) -> _Commands:
        if self._waiting and self._waiting[0].done <= self.reached():
            found = self._waiting.popleft()
            found.count = found.arguments_used = found.staging_used = 0
            return found
        info = api.CommandAllocate(api.COMMAND_ALLOCATE, None, self._pool, 0, 1)
        handle = c_void_p()
        self.device("vkAllocateCommandBuffers", byref(info), byref(handle))
        assert handle.value is not None
        arguments = DeviceBuffer(self.device, _ARGUMENT_BYTES, _HOST)
        return _Commands(handle.value, arguments, DeviceBuffer(self.device, _STAGING_BYTES, _HOST, api.HOST_CACHED))

    def _ordered(self, commands: _Commands) -> None:
        """What comes next sees what came before."""
        barrier = api.MemoryBarrier(api.MEMORY_BARRIER, None, _ALL_ACCESS, _ALL_ACCESS)
        self.device.vulkan(
            "vkCmdPipelineBarrier", commands.handle, _ALL_STAGES, _ALL_STAGES, 0, 1, byref(barrier), 0, None, 0, None
        )
        commands.count += 1

    def dispatch(self, pipeline: int, parameters: tuple[int, ...], blocks: int) -> None:
        commands = self._commands()
        if len(parameters) > PUSHED:
            if commands.arguments_used + 8 * len(parameters) > commands.arguments.size:
                self.submit()
                commands = self._commands()
            parameters = (self._array(commands, parameters),)
        self._ordered(commands)
        call = self.device.vulkan
        call("vkCmdBindPipeline", commands.handle, api.BIND_COMPUTE, pipeline)
        most = self.device.physical.most_groups
        for first in range(0, blocks, most):
            words = struct.pack(f"<{1 + len(parameters)}Q", first, *parameters)
            call("vkCmdPushConstants", commands.handle, self.layout, api.COMPUTE_STAGE, 0, len(words), words)
            call("vkCmdDispatch", commands.handle, min(most, blocks - first), 1, 1)

    def _array(self, commands: _Commands, parameters: tuple[int, ...]) -> int:
        words = struct.pack(f"<{len(parameters)}Q", *parameters)
        at = commands.arguments_used
        ctypes.memmove(commands.arguments.mapped + at, words, len(words))
        commands.arguments_used += len(words)
        return commands.arguments.address + at

    def copy(self, source: tuple[int, int], target: tuple[int, int], size: int) -> None:
        """Between buffers, each with an offset."""
        commands = self._commands()
        self._ordered(commands)
        region = api.BufferCopy(source[1], target[1], size)
        self.device.vulkan("vkCmdCopyBuffer", commands.handle, source[0], target[0], 1, byref(region))

    # Copies from and to the host, by way of memory that both see.

    def copy_in(self, target: tuple[int, int], data: int, size: int) -> None:
        done = 0
        while done < size:
            commands, room = self._staging()
            piece, at = min(size - done, room), commands.staging_used
            ctypes.memmove(commands.staging.mapped + at, data + done, piece)
            commands.staging_used += -(-piece // 16) * 16
            self.copy((commands.staging.handle, at), (target[0], target[1] + done), piece)
            done += piece

    def _staging(self) -> tuple[_Commands, int]:
        commands = self._commands()
        if commands.staging_used >= commands.staging.size:
            self.submit()
            commands = self._commands()
        return commands, commands.staging.size - commands.staging_used

    def copy_out(self, source: tuple[int, int], data: int, size: int) -> None:
        done = 0
        while done < size:
            commands, room = self._staging()
            piece, at = min(size - done, room), commands.staging_used
            commands.staging_used += -(-piece // 16) * 16
            self.copy((source[0], source[1] + done), (commands.staging.handle, at), piece)
            self._to_host(commands)
            self.wait(self.submit())
            ctypes.memmove(data + done, commands.staging.mapped + at, piece)
            done += piece

    def _to_host(self, commands: _Commands) -> None:
        barrier = api.MemoryBarrier(api.MEMORY_BARRIER, None, api.TRANSFER_WRITE, api.HOST_READ)
        stages = (api.STAGE_TRANSFER, api.STAGE_HOST)
        self.device.vulkan("vkCmdPipelineBarrier", commands.handle, *stages, 0, 1, byref(barrier), 0, None, 0, None)

    # Order.

    def submit(self) -> int:
        """Have the device begin with what was recorded; what the counter says when that is done."""
        commands, self._open = self._open, None
        if commands is None:
            return self.submitted
        self.device.vulkan("vkEndCommandBuffer", commands.handle)
        value, counter, handle = c_uint64(self.submitted + 1), c_uint64(self._counter), c_void_p(commands.handle)
        signal = api.TimelineSubmit(api.TIMELINE_SUBMIT, None, 0, None, 1, ctypes.addressof(value))
        lists, signals = ctypes.addressof(handle), ctypes.addressof(counter)
        info = api.Submit(api.SUBMIT, ctypes.addressof(signal), 0, None, None, 1, lists, 1, signals)
        self.device.vulkan("vkQueueSubmit", self.device.queue, 1, byref(info), 0)
        self.submitted += 1
        commands.done = self.submitted
        self._waiting.append(commands)
        return self.submitted

    def reached(self) -> int:
        found = c_uint64()
        self.device("vkGetSemaphoreCounterValue", self._counter, byref(found))
        return found.value

    def wait(self, value: int) -> None:
        """Until the counter says so."""
        wanted, counter = c_uint64(value), c_uint64(self._counter)
        info = api.SemaphoreWait(api.SEMAPHORE_WAIT, None, 0, 1, ctypes.addressof(counter), ctypes.addressof(wanted))
        self.device("vkWaitSemaphores", byref(info), _FOREVER)

    def close(self) -> None:
        self.wait(self.submit())
        for commands in self._waiting:
            commands.arguments.close()
            commands.staging.close()
        self.device("vkDestroyCommandPool", self._pool, None)
        self.device("vkDestroySemaphore", self._counter, None)
        self.device("vkDestroyPipelineLayout", self.layout, None)
