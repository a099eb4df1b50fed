"""SPIR-V → what a device runs, once for each binary however many modules it comes in."""

import ctypes
import hashlib
from ctypes import byref, c_uint64

from smelt_vulkan import api
from smelt_vulkan.device import OpenDevice


class Pipelines:
    """Pipelines by the hash of their binary; dropped with the device."""

    def __init__(self, device: OpenDevice, layout: int) -> None:
        self.device, self.layout = device, layout
        self._made: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._made)

    def of(self, binary: bytes, symbol: str) -> int:
        key = hashlib.sha256(binary).digest()
        if key not in self._made:
            self._made[key] = self._make(binary, symbol)
        return self._made[key]

    def _make(self, binary: bytes, symbol: str) -> int:
        code = ctypes.create_string_buffer(binary, len(binary))
        info = api.ShaderCreate(api.SHADER_CREATE, None, 0, len(binary), ctypes.addressof(code))
        module = self.device.made("vkCreateShaderModule", info)
        size = api.SubgroupSizeCreate(api.SUBGROUP_SIZE_CREATE, None, self.device.physical.subgroup)
        stage = api.StageCreate(
            api.STAGE_CREATE, ctypes.addressof(size), api.REQUIRE_FULL_SUBGROUPS, api.COMPUTE_STAGE, module,
            symbol.encode(), None,
        )  # fmt: skip
        create = api.ComputeCreate(api.COMPUTE_CREATE, None, 0, stage, self.layout, 0, -1)
        found = c_uint64()
        try:
            self.device("vkCreateComputePipelines", 0, 1, byref(create), None, byref(found))
        finally:
            self.device("vkDestroyShaderModule", module, None)
        return found.value

    def close(self) -> None:
        for pipeline in self._made.values():
            self.device("vkDestroyPipeline", pipeline, None)
        self._made = {}
