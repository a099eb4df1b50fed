"""Code for kernels with a contraction: reads a `Problem` from the kernel, and the cheapest schedule of the table writes
it.
"""
