"""Artifacts without a loader: one object file with weights, kernels and a driver, or a WebAssembly module."""
