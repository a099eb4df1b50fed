"""Code for kernels with a contraction: a `Problem` is read out of the kernel, and a schedule of the table writes it."""
