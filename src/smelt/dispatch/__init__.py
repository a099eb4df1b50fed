"""A PyTorch device of our own: tensors without data, and every operator on them handed to an owner object."""
