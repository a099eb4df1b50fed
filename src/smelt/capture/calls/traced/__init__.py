"""Python that runs on fake tensors instead of being interpreted: marked functions, and NumPy by `torch._numpy`."""
