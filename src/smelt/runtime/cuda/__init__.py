"""Kernels on NVIDIA GPUs: the driver, machine code in a GPU's memory, launchers."""
