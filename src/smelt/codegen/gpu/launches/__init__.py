"""Grids that several kernels share."""
