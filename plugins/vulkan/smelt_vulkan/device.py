"""Devices that Vulkan finds, what each can do, and one that is open.

    found = physical_devices(vulkan)            all of them; `why_not(each)` says what one lacks
    device = OpenDevice(vulkan, chosen(found))  `SMELT_VULKAN_DEVICE` chooses: a number, or part of a name
"""

import ctypes
import os
from ctypes import byref, c_uint32, c_void_p
from dataclasses import dataclass
from typing import Any

from smelt_vulkan import api
from smelt_vulkan.api import Vulkan, address_of

CHOICE = "SMELT_VULKAN_DEVICE"

# What every kernel needs: numbers of 64 bits for positions and sums, addresses, and one counter for the queue.
_NEEDED = (
    "shaderInt64", "shaderInt16", "shaderFloat64", "shaderInt8", "storageBuffer8BitAccess", "storageBuffer16BitAccess",
    "bufferDeviceAddress", "timelineSemaphore", "subgroupSizeControl", "computeFullSubgroups",
)  # fmt: skip
_WANTED = ("shaderBufferInt64Atomics",)
_KINDS = {1: "integrated GPU", 2: "discrete GPU", 3: "virtual GPU", 4: "processor"}
_PREFERRED = (2, 1, 3, 0, 4)


@dataclass(frozen=True)
class PhysicalDevice:
    """A device as it describes itself."""

    number: int
    handle: int
    name: str
    driver: str
    kind: int
    subgroup: int
    shuffles: bool
    controls: tuple[str, ...]  # of rounding, as features of a target: "+nan32"
    features: frozenset[str]
    most_groups: int
    most_threads: int
    shared_bytes: int
    memory_types: tuple[tuple[int, int], ...]  # flags and heap of each
    heaps: tuple[int, ...]  # bytes
    queue_family: int | None

    def __str__(self) -> str:
        return f"{self.name} ({_KINDS.get(self.kind, 'device')}, {self.driver})"


class NoVulkan(RuntimeError):
    """Why there is nothing to compute on."""


def load() -> Vulkan:
    try:
        return Vulkan()
    except OSError as error:
        raise NoVulkan(f"there is no Vulkan loader: {error}") from error


def make_instance(vulkan: Vulkan) -> Any:
    about = api.ApplicationInfo(api.APPLICATION_INFO, None, b"smelt", 0, b"smelt", 0, api.API_1_2)
    create = api.InstanceCreate(api.INSTANCE_CREATE, None, 0, ctypes.addressof(about), 0, None, 0, None)
    instance = c_void_p()
    try:
        vulkan("vkCreateInstance", byref(create), None, byref(instance))
    except api.VulkanError as error:
        raise NoVulkan(f"Vulkan does not start: {error}") from error
    return instance


def physical_devices(vulkan: Vulkan, instance: Any) -> list[PhysicalDevice]:
    count = c_uint32()
    vulkan("vkEnumeratePhysicalDevices", instance, byref(count), None)
    handles = (c_void_p * max(1, count.value))()
    vulkan("vkEnumeratePhysicalDevices", instance, byref(count), handles)
    return [_described(vulkan, number, handles[number]) for number in range(count.value)]


def _described(vulkan: Vulkan, number: int, handle: int) -> PhysicalDevice:
    properties, subgroups = api.Properties2(api.PROPERTIES_2), api.SubgroupProperties(api.SUBGROUP_PROPERTIES)
    floats = api.Properties12(api.PROPERTIES_1_2)
    vulkan("vkGetPhysicalDeviceProperties2", handle, address_of(properties, subgroups, floats))
    features = set()
    structures = _feature_structures()
    vulkan("vkGetPhysicalDeviceFeatures2", handle, address_of(*structures))
    for each in structures:
        features |= {name for name, _ in each._fields_[2:] if getattr(each, name)}
    memory = api.MemoryProperties()
    vulkan("vkGetPhysicalDeviceMemoryProperties", handle, byref(memory))
    controls = []
    for bits in (32, 64):
        controls += [f"+{what}{bits}" for what in ("nan", "denorm", "even") if getattr(floats, f"{what}Float{bits}")]
    return PhysicalDevice(
        number,
        handle,
        properties.deviceName.decode(),
        floats.driverInfo.decode() or floats.driverName.decode(),
        properties.deviceType,
        subgroups.subgroupSize,
        bool(subgroups.supportedOperations & api.SHUFFLE),
        tuple(controls),
        frozenset(features),
        properties.limits.maxComputeWorkGroupCount[0],
        properties.limits.maxComputeWorkGroupInvocations,
        properties.limits.maxComputeSharedMemorySize,
        tuple((each.propertyFlags, each.heapIndex) for each in memory.memoryTypes[: memory.memoryTypeCount]),
        tuple(each.size for each in memory.memoryHeaps[: memory.memoryHeapCount]),
        _compute_family(vulkan, handle),
    )


def _feature_structures() -> list[Any]:
    return [
        api.Features2(api.FEATURES_2),
        api.Features11(api.FEATURES_1_1),
        api.Features12(api.FEATURES_1_2),
        api.SubgroupSizeFeatures(api.SUBGROUP_SIZE_FEATURES),
    ]


def _compute_family(vulkan: Vulkan, handle: int) -> int | None:
    count = c_uint32()
    vulkan("vkGetPhysicalDeviceQueueFamilyProperties", handle, byref(count), None)
    families = (api.QueueFamily * max(1, count.value))()
    vulkan("vkGetPhysicalDeviceQueueFamilyProperties", handle, byref(count), families)
    return next((place for place in range(count.value) if families[place].queueFlags & api.COMPUTE_QUEUE), None)


def why_not(device: PhysicalDevice) -> str | None:
    """What a device lacks to run kernels; None if it has everything."""
    missing = [name for name in _NEEDED if name not in device.features]
    if missing:
        return f"{device.name} has no {', '.join(missing)}"
    if device.queue_family is None:
        return f"{device.name} has no queue that computes"
    if device.subgroup < 2 or device.subgroup & (device.subgroup - 1):
        return f"{device.name} has subgroups of {device.subgroup} threads"
    if device.most_threads < 256 or device.shared_bytes < 32 << 10:
        return f"{device.name} has groups of {device.most_threads} threads and {device.shared_bytes} bytes at most"
    return None


def chosen(devices: list[PhysicalDevice], wanted: str | None = None) -> PhysicalDevice:
    """The device that is asked for; else the first of those that are likely to be the fastest."""
    wanted = os.environ.get(CHOICE, "") if wanted is None else wanted
    fitting = [each for each in devices if why_not(each) is None]
    if wanted:
        named = [each for each in devices if wanted == str(each.number) or wanted.lower() in each.name.lower()]
        if not named:
            known = ", ".join(f"{each.number}: {each.name}" for each in devices) or "none"
            raise NoVulkan(f"{CHOICE}={wanted}: there is no such device; found: {known}")
        fitting = [each for each in named if why_not(each) is None]
        if not fitting:
            raise NoVulkan(f"{CHOICE}={wanted}: {why_not(named[0])}")
    if not fitting:
        reasons = "; ".join(why_not(each) or "" for each in devices)
        raise NoVulkan(reasons or "Vulkan finds no device: is a driver installed?")
    return min(fitting, key=lambda each: (_PREFERRED.index(each.kind), each.number))


class OpenDevice:
    """A device with one queue."""

    def __init__(self, vulkan: Vulkan, physical: PhysicalDevice) -> None:
        self.vulkan = vulkan
        self.physical = physical
        priority = ctypes.c_float(1.0)
        queue = api.QueueCreate(api.QUEUE_CREATE, None, 0, physical.queue_family, 1, ctypes.addressof(priority))
        structures = _feature_structures()
        for each in structures:
            for name, _ in each._fields_[2:]:
                if name in physical.features and name in (*_NEEDED, *_WANTED):
                    setattr(each, name, 1)
        create = api.DeviceCreate(api.DEVICE_CREATE, None, 0, 1, ctypes.addressof(queue), 0, None, 0, None, None)
        create.pNext = address_of(*structures)
        self.handle = c_void_p()
        vulkan("vkCreateDevice", physical.handle, byref(create), None, byref(self.handle))
        self.queue = c_void_p()
        vulkan("vkGetDeviceQueue", self.handle, physical.queue_family, 0, byref(self.queue))

    def __call__(self, name: str, *given: Any) -> Any:
        return self.vulkan(name, self.handle, *given)

    def made(self, name: str, info: Any) -> int:
        return self.vulkan.made(name, self.handle, info)

    def memory_type(self, allowed: int, wanted: int, rather: int = 0) -> int:
        """The first type of memory with the flags that are wanted; one with those it should rather have, too, if any
        does."""
        types = self.physical.memory_types
        for flags in (wanted | rather, wanted):
            for place, (has, _) in enumerate(types):
                if allowed >> place & 1 and has & flags == flags:
                    return place
        raise NoVulkan(f"{self.physical.name} has no memory with the properties {wanted:#x}")

    def close(self) -> None:
        self.vulkan("vkDestroyDevice", self.handle, None)
