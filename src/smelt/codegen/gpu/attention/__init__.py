"""Attention as GPU kernels: few queries, keys in parts."""
