"""Grids of pointwise kernels and of rows: the records of their schedules, and what writes them."""
