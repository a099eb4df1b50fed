"""A compiled graph as a node of PyTorch's autograd: saved tensors, aliases, mutated inputs, double backward."""
