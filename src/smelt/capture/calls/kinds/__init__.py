"""What a call of each kind of callable does: Python functions, PyTorch's, methods of C types, objects."""
