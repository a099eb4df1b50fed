"""Python that is run on ghosts instead of being interpreted: marked functions, and NumPy by way of `torch._numpy`."""
