"""Code for attention kernels, in blocks of queries and keys, and for their gradients."""
