"""Scatters on GPUs: as kernels that run in any order, with the results of running them in order."""
