"""Vulkan's devices as chips of smelt. `VulkanChip` is what the entry point group `smelt.chips` names."""

from smelt_vulkan.chip import VulkanChip, why_not

__all__ = ["VulkanChip", "why_not"]
