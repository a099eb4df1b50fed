"""Products as GPU kernels: tiles of the result, staged through shared memory."""
