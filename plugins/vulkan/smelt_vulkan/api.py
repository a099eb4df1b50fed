"""Vulkan's C interface, as far as computing needs it, by ctypes: structures, constants, and calls that raise.

    call = Vulkan.load(); call("vkDeviceWaitIdle", device)      VulkanError where the driver says no

Names, and the order of members, are those of the Vulkan specification.
"""

import ctypes
from ctypes import c_char, c_char_p, c_int32, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p
from itertools import pairwise
from typing import Any

SUCCESS, TIMEOUT = 0, 2
OUT_OF_HOST_MEMORY, OUT_OF_DEVICE_MEMORY, DEVICE_LOST = -1, -2, -4
_ERRORS = {
    -1: "out of host memory", -2: "out of device memory", -3: "initialization failed", -4: "device lost",
    -5: "mapping memory failed", -6: "layer not present", -7: "extension not present", -8: "feature not present",
    -9: "incompatible driver", -10: "too many objects", -12: "fragmented pool", -13: "unknown error",
}  # fmt: skip

API_1_2 = 1 << 22 | 2 << 12

# Kinds of structures.
APPLICATION_INFO, INSTANCE_CREATE, QUEUE_CREATE, DEVICE_CREATE, SUBMIT, MEMORY_ALLOCATE = 0, 1, 2, 3, 4, 5
SEMAPHORE_CREATE, BUFFER_CREATE, SHADER_CREATE, STAGE_CREATE, COMPUTE_CREATE, LAYOUT_CREATE = 9, 12, 16, 18, 29, 30
POOL_CREATE, COMMAND_ALLOCATE, COMMAND_BEGIN, MEMORY_BARRIER = 39, 40, 42, 46
FEATURES_2, PROPERTIES_2, ALLOCATE_FLAGS, SUBGROUP_PROPERTIES = 1000059000, 1000059001, 1000060000, 1000094000
FEATURES_1_1, FEATURES_1_2, PROPERTIES_1_2 = 49, 51, 52
SEMAPHORE_TYPE_CREATE, TIMELINE_SUBMIT, SEMAPHORE_WAIT = 1000207002, 1000207003, 1000207004
BUFFER_ADDRESS = 1000244001
SUBGROUP_SIZE_CREATE, SUBGROUP_SIZE_FEATURES, SUBGROUP_SIZE_PROPERTIES = 1000225001, 1000225002, 1000225000

COMPUTE_QUEUE = 2
STORAGE_BUFFER, TRANSFER_SOURCE, TRANSFER_TARGET, DEVICE_ADDRESS = 0x20, 1, 2, 0x20000
DEVICE_LOCAL, HOST_VISIBLE, HOST_COHERENT, HOST_CACHED = 1, 2, 4, 8
COMPUTE_STAGE, STAGE_COMPUTE, STAGE_TRANSFER, STAGE_HOST = 0x20, 0x800, 0x1000, 0x4000
SHADER_READ, SHADER_WRITE, TRANSFER_READ, TRANSFER_WRITE, HOST_READ = 0x20, 0x40, 0x800, 0x1000, 0x2000
REQUIRE_FULL_SUBGROUPS = 2
BIND_COMPUTE = 1
RESET_COMMAND_BUFFER = 2
SHUFFLE = 0x10  # among the operations that subgroups have

_Pointer = c_void_p


def _structure(name: str, *members: tuple[str, Any]) -> type[ctypes.Structure]:
    return type(name, (ctypes.Structure,), {"_fields_": list(members)})


def _info(name: str, *members: tuple[str, Any]) -> type[ctypes.Structure]:
    """One that says of which kind it is, and what follows it."""
    return _structure(name, ("sType", c_uint32), ("pNext", c_void_p), *members)


def _words(*names: str) -> list[tuple[str, Any]]:
    return [(name, c_uint32) for name in names]


ApplicationInfo: Any = _info(
    "ApplicationInfo",
    ("pApplicationName", c_char_p), ("applicationVersion", c_uint32), ("pEngineName", c_char_p),
    ("engineVersion", c_uint32), ("apiVersion", c_uint32),
)  # fmt: skip
InstanceCreate: Any = _info(
    "InstanceCreate",
    ("flags", c_uint32), ("pApplicationInfo", _Pointer), ("enabledLayerCount", c_uint32), ("layers", _Pointer),
    ("enabledExtensionCount", c_uint32), ("extensions", _Pointer),
)  # fmt: skip
QueueCreate: Any = _info(
    "QueueCreate",
    ("flags", c_uint32), ("queueFamilyIndex", c_uint32), ("queueCount", c_uint32), ("pQueuePriorities", _Pointer),
)  # fmt: skip
DeviceCreate: Any = _info(
    "DeviceCreate",
    ("flags", c_uint32), ("queueCreateInfoCount", c_uint32), ("pQueueCreateInfos", _Pointer), ("layers", c_uint32),
    ("pLayers", _Pointer), ("enabledExtensionCount", c_uint32), ("extensions", _Pointer), ("features", _Pointer),
)  # fmt: skip
QueueFamily: Any = _structure(
    "QueueFamily",
    ("queueFlags", c_uint32), ("queueCount", c_uint32), ("timestampValidBits", c_uint32), ("granularity", c_uint32 * 3),
)  # fmt: skip
Limits: Any = _structure(
    "Limits",
    ("images", c_uint32 * 5), *_words("maxTexelBufferElements", "maxUniformBufferRange", "maxStorageBufferRange"),
    *_words("maxPushConstantsSize", "maxMemoryAllocationCount", "maxSamplerAllocationCount"),
    ("bufferImageGranularity", c_uint64), ("sparseAddressSpaceSize", c_uint64),
    ("bindings", c_uint32 * 38), *_words("maxComputeSharedMemorySize"),
    ("maxComputeWorkGroupCount", c_uint32 * 3), *_words("maxComputeWorkGroupInvocations"),
    ("maxComputeWorkGroupSize", c_uint32 * 3), ("rest", c_uint8 * 1024),
)  # fmt: skip
Properties2: Any = _info(
    "Properties2",
    *_words("apiVersion", "driverVersion", "vendorID", "deviceID", "deviceType"), ("deviceName", c_char * 256),
    ("pipelineCacheUUID", c_uint8 * 16), ("limits", Limits),
)  # fmt: skip
SubgroupProperties: Any = _info(
    "SubgroupProperties",
    *_words("subgroupSize", "supportedStages", "supportedOperations", "quadOperationsInAllStages"),
)  # fmt: skip
Properties12: Any = _info(
    "Properties12",
    ("driverID", c_uint32), ("driverName", c_char * 256), ("driverInfo", c_char * 256), ("version", c_uint8 * 4),
    *_words(
        "denormIndependence", "roundingIndependence", "nanFloat16", "nanFloat32", "nanFloat64", "denormFloat16",
        "denormFloat32", "denormFloat64", "flushFloat16", "flushFloat32", "flushFloat64", "evenFloat16", "evenFloat32",
        "evenFloat64",
    ), ("rest", c_uint8 * 512),
)  # fmt: skip
SubgroupSizeProperties: Any = _info(
    "SubgroupSizeProperties", *_words("minSubgroupSize", "maxSubgroupSize", "maxComputeWorkgroupSubgroups", "stages")
)
SubgroupSizeFeatures: Any = _info("SubgroupSizeFeatures", *_words("subgroupSizeControl", "computeFullSubgroups"))
SubgroupSizeCreate: Any = _info("SubgroupSizeCreate", ("requiredSubgroupSize", c_uint32))

_CORE = [
    "robustBufferAccess", "fullDrawIndexUint32", "imageCubeArray", "independentBlend", "geometryShader",
    "tessellationShader", "sampleRateShading", "dualSrcBlend", "logicOp", "multiDrawIndirect",
    "drawIndirectFirstInstance", "depthClamp", "depthBiasClamp", "fillModeNonSolid", "depthBounds", "wideLines",
    "largePoints", "alphaToOne", "multiViewport", "samplerAnisotropy", "textureCompressionETC2",
    "textureCompressionASTC_LDR", "textureCompressionBC", "occlusionQueryPrecise", "pipelineStatisticsQuery",
    "vertexPipelineStoresAndAtomics", "fragmentStoresAndAtomics", "shaderTessellationAndGeometryPointSize",
    "shaderImageGatherExtended", "shaderStorageImageExtendedFormats", "shaderStorageImageMultisample",
    "shaderStorageImageReadWithoutFormat", "shaderStorageImageWriteWithoutFormat",
    "shaderUniformBufferArrayDynamicIndexing", "shaderSampledImageArrayDynamicIndexing",
    "shaderStorageBufferArrayDynamicIndexing", "shaderStorageImageArrayDynamicIndexing", "shaderClipDistance",
    "shaderCullDistance", "shaderFloat64", "shaderInt64", "shaderInt16", "shaderResourceResidency",
    "shaderResourceMinLod", "sparseBinding", "sparseResidencyBuffer", "sparseResidencyImage2D",
    "sparseResidencyImage3D", "sparseResidency2Samples", "sparseResidency4Samples", "sparseResidency8Samples",
    "sparseResidency16Samples", "sparseResidencyAliased", "variableMultisampleRate", "inheritedQueries",
]  # fmt: skip
_SINCE_1_1 = [
    "storageBuffer16BitAccess", "uniformAndStorageBuffer16BitAccess", "storagePushConstant16",
    "storageInputOutput16", "multiview", "multiviewGeometryShader", "multiviewTessellationShader",
    "variablePointersStorageBuffer", "variablePointers", "protectedMemory", "samplerYcbcrConversion",
    "shaderDrawParameters",
]  # fmt: skip
_SINCE_1_2 = [
    "samplerMirrorClampToEdge", "drawIndirectCount", "storageBuffer8BitAccess",
    "uniformAndStorageBuffer8BitAccess", "storagePushConstant8", "shaderBufferInt64Atomics",
    "shaderSharedInt64Atomics", "shaderFloat16", "shaderInt8", "descriptorIndexing",
    "shaderInputAttachmentArrayDynamicIndexing", "shaderUniformTexelBufferArrayDynamicIndexing",
    "shaderStorageTexelBufferArrayDynamicIndexing", "shaderUniformBufferArrayNonUniformIndexing",
    "shaderSampledImageArrayNonUniformIndexing", "shaderStorageBufferArrayNonUniformIndexing",
    "shaderStorageImageArrayNonUniformIndexing", "shaderInputAttachmentArrayNonUniformIndexing",
    "shaderUniformTexelBufferArrayNonUniformIndexing", "shaderStorageTexelBufferArrayNonUniformIndexing",
    "descriptorBindingUniformBufferUpdateAfterBind", "descriptorBindingSampledImageUpdateAfterBind",
    "descriptorBindingStorageImageUpdateAfterBind", "descriptorBindingStorageBufferUpdateAfterBind",
    "descriptorBindingUniformTexelBufferUpdateAfterBind", "descriptorBindingStorageTexelBufferUpdateAfterBind",
    "descriptorBindingUpdateUnusedWhilePending", "descriptorBindingPartiallyBound",
    "descriptorBindingVariableDescriptorCount", "runtimeDescriptorArray", "samplerFilterMinmax",
    "scalarBlockLayout", "imagelessFramebuffer", "uniformBufferStandardLayout", "shaderSubgroupExtendedTypes",
    "separateDepthStencilLayouts", "hostQueryReset", "timelineSemaphore", "bufferDeviceAddress",
    "bufferDeviceAddressCaptureReplay", "bufferDeviceAddressMultiDevice", "vulkanMemoryModel",
    "vulkanMemoryModelDeviceScope", "vulkanMemoryModelAvailabilityVisibilityChains",
    "shaderOutputViewportIndex", "shaderOutputLayer", "subgroupBroadcastDynamicId",
]  # fmt: skip
Features2: Any = _info("Features2", *_words(*_CORE))
Features11: Any = _info("Features11", *_words(*_SINCE_1_1))
Features12: Any = _info("Features12", *_words(*_SINCE_1_2))

MemoryType: Any = _structure("MemoryType", ("propertyFlags", c_uint32), ("heapIndex", c_uint32))
MemoryHeap: Any = _structure("MemoryHeap", ("size", c_uint64), ("flags", c_uint32))
MemoryProperties: Any = _structure(
    "MemoryProperties",
    ("memoryTypeCount", c_uint32), ("memoryTypes", MemoryType * 32), ("memoryHeapCount", c_uint32),
    ("memoryHeaps", MemoryHeap * 16),
)  # fmt: skip
MemoryRequirements: Any = _structure(
    "MemoryRequirements", ("size", c_uint64), ("alignment", c_uint64), ("memoryTypeBits", c_uint32)
)
MemoryAllocate: Any = _info("MemoryAllocate", ("allocationSize", c_uint64), ("memoryTypeIndex", c_uint32))
AllocateFlags: Any = _info("AllocateFlags", ("flags", c_uint32), ("deviceMask", c_uint32))
BufferCreate: Any = _info(
    "BufferCreate",
    ("flags", c_uint32), ("size", c_uint64), ("usage", c_uint32), ("sharingMode", c_uint32), ("families", c_uint32),
    ("pFamilies", _Pointer),
)  # fmt: skip
BufferAddress: Any = _info("BufferAddress", ("buffer", c_uint64))
ShaderCreate: Any = _info("ShaderCreate", ("flags", c_uint32), ("codeSize", c_size_t), ("pCode", _Pointer))
StageCreate: Any = _info(
    "StageCreate",
    ("flags", c_uint32), ("stage", c_uint32), ("module", c_uint64), ("pName", c_char_p), ("specialization", _Pointer),
)  # fmt: skip
ComputeCreate: Any = _info(
    "ComputeCreate",
    ("flags", c_uint32), ("stage", StageCreate), ("layout", c_uint64), ("base", c_uint64), ("baseIndex", c_int32),
)  # fmt: skip
PushRange: Any = _structure("PushRange", *_words("stageFlags", "offset", "size"))
LayoutCreate: Any = _info(
    "LayoutCreate",
    ("flags", c_uint32), ("setLayoutCount", c_uint32), ("pSetLayouts", _Pointer), ("pushCount", c_uint32),
    ("pPushConstantRanges", _Pointer),
)  # fmt: skip
PoolCreate: Any = _info("PoolCreate", ("flags", c_uint32), ("queueFamilyIndex", c_uint32))
CommandAllocate: Any = _info("CommandAllocate", ("commandPool", c_uint64), ("level", c_uint32), ("count", c_uint32))
CommandBegin: Any = _info("CommandBegin", ("flags", c_uint32), ("inheritance", _Pointer))
MemoryBarrier: Any = _info("MemoryBarrier", ("srcAccessMask", c_uint32), ("dstAccessMask", c_uint32))
BufferCopy: Any = _structure("BufferCopy", ("srcOffset", c_uint64), ("dstOffset", c_uint64), ("size", c_uint64))
Submit: Any = _info(
    "Submit",
    ("waits", c_uint32), ("pWaits", _Pointer), ("pWaitStages", _Pointer), ("commandBufferCount", c_uint32),
    ("pCommandBuffers", _Pointer), ("signalSemaphoreCount", c_uint32), ("pSignalSemaphores", _Pointer),
)  # fmt: skip
TimelineSubmit: Any = _info(
    "TimelineSubmit",
    ("waits", c_uint32), ("pWaits", _Pointer), ("signalCount", c_uint32), ("pSignalValues", _Pointer),
)  # fmt: skip
SemaphoreCreate: Any = _info("SemaphoreCreate", ("flags", c_uint32))
SemaphoreTypeCreate: Any = _info("SemaphoreTypeCreate", ("semaphoreType", c_uint32), ("initialValue", c_uint64))
SemaphoreWait: Any = _info(
    "SemaphoreWait",
    ("flags", c_uint32), ("semaphoreCount", c_uint32), ("pSemaphores", _Pointer), ("pValues", _Pointer),
)  # fmt: skip


class VulkanError(RuntimeError):
    """What the driver answered."""

    def __init__(self, name: str, code: int) -> None:
        super().__init__(f"{name}: {_ERRORS.get(code, f'error {code}')}")
        self.code = code


# Handles and sizes have 64 bits, which ctypes does not know of a plain number; what is not here takes pointers.
_ARGUMENTS: dict[str, list[Any]] = {
    "vkCreateInstance": [c_void_p] * 3,
    "vkDestroyInstance": [c_void_p] * 2,
    "vkEnumeratePhysicalDevices": [c_void_p] * 3,
    "vkGetPhysicalDeviceProperties2": [c_void_p] * 2,
    "vkGetPhysicalDeviceFeatures2": [c_void_p] * 2,
    "vkGetPhysicalDeviceMemoryProperties": [c_void_p] * 2,
    "vkGetPhysicalDeviceQueueFamilyProperties": [c_void_p] * 3,
    "vkCreateDevice": [c_void_p] * 4,
    "vkDestroyDevice": [c_void_p] * 2,
    "vkGetDeviceQueue": [c_void_p, c_uint32, c_uint32, c_void_p],
    "vkDeviceWaitIdle": [c_void_p],
    "vkCreateBuffer": [c_void_p] * 4,
    "vkDestroyBuffer": [c_void_p, c_uint64, c_void_p],
    "vkGetBufferMemoryRequirements": [c_void_p, c_uint64, c_void_p],
    "vkAllocateMemory": [c_void_p] * 4,
    "vkFreeMemory": [c_void_p, c_uint64, c_void_p],
    "vkBindBufferMemory": [c_void_p, c_uint64, c_uint64, c_uint64],
    "vkMapMemory": [c_void_p, c_uint64, c_uint64, c_uint64, c_uint32, c_void_p],
    "vkGetBufferDeviceAddress": [c_void_p] * 2,
    "vkCreateShaderModule": [c_void_p] * 4,
    "vkDestroyShaderModule": [c_void_p, c_uint64, c_void_p],
    "vkCreatePipelineLayout": [c_void_p] * 4,
    "vkDestroyPipelineLayout": [c_void_p, c_uint64, c_void_p],
    "vkCreateComputePipelines": [c_void_p, c_uint64, c_uint32, c_void_p, c_void_p, c_void_p],
    "vkDestroyPipeline": [c_void_p, c_uint64, c_void_p],
    "vkCreateCommandPool": [c_void_p] * 4,
    "vkDestroyCommandPool": [c_void_p, c_uint64, c_void_p],
    "vkAllocateCommandBuffers": [c_void_p] * 3,
    "vkBeginCommandBuffer": [c_void_p] * 2,
    "vkEndCommandBuffer": [c_void_p],
    "vkCmdBindPipeline": [c_void_p, c_uint32, c_uint64],
    "vkCmdPushConstants": [c_void_p, c_uint64, c_uint32, c_uint32, c_uint32, c_void_p],
    "vkCmdDispatch": [c_void_p, c_uint32, c_uint32, c_uint32],
    "vkCmdPipelineBarrier": [
        c_void_p, c_uint32, c_uint32, c_uint32, c_uint32, c_void_p, c_uint32, c_void_p, c_uint32, c_void_p,
    ],
    "vkCmdCopyBuffer": [c_void_p, c_uint64, c_uint64, c_uint32, c_void_p],
    "vkQueueSubmit": [c_void_p, c_uint32, c_void_p, c_uint64],
    "vkCreateSemaphore": [c_void_p] * 4,
    "vkDestroySemaphore": [c_void_p, c_uint64, c_void_p],
    "vkWaitSemaphores": [c_void_p, c_void_p, c_uint64],
    "vkGetSemaphoreCounterValue": [c_void_p, c_uint64, c_void_p],
}  # fmt: skip
_OTHER_RESULTS: dict[str, Any] = {
    "vkGetBufferDeviceAddress": c_uint64,
    **dict.fromkeys((name for name in _ARGUMENTS if name.startswith(("vkDestroy", "vkCmd", "vkFree"))), None),
    **dict.fromkeys(
        (
            "vkGetPhysicalDeviceProperties2", "vkGetPhysicalDeviceFeatures2", "vkGetPhysicalDeviceMemoryProperties",
            "vkGetPhysicalDeviceQueueFamilyProperties", "vkGetDeviceQueue", "vkGetBufferMemoryRequirements",
        )
    ),
}  # fmt: skip


class Vulkan:
    """The loader's library. OSError: there is none."""

    def __init__(self, library: str = "libvulkan.so.1") -> None:
        loaded = ctypes.CDLL(library)
        self._functions: dict[str, Any] = {}
        for name, arguments in _ARGUMENTS.items():
            function = getattr(loaded, name)
            function.argtypes, function.restype = arguments, _OTHER_RESULTS.get(name, c_int32)
            self._functions[name] = function

    def __call__(self, name: str, *given: Any) -> Any:
        """A call; what is no success raises."""
        found = self._functions[name](*given)
        if name not in _OTHER_RESULTS and found < 0:
            raise VulkanError(name, found)
        return found

    def made(self, name: str, owner: Any, info: Any) -> int:
        """A new object of a device."""
        found = c_uint64()
        self(name, owner, ctypes.byref(info), None, ctypes.byref(found))
        return found.value


def address_of(*structures: Any) -> Any:
    """Of structures one after the other, each of which points at the next: the first."""
    for one, other in pairwise(structures):
        one.pNext = ctypes.addressof(other)
    return ctypes.addressof(structures[0])

