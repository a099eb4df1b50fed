"""Products by a GPU's kernels: tiles of the result, by way of shared memory."""
