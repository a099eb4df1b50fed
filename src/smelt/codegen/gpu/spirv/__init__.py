"""Code for Vulkan: SPIR-V modules of the phases of kernels."""
