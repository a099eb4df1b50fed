"""Scatters on GPUs: kernels that run in any order and give the results of running in order."""
