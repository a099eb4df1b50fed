"""Symbolic sizes and numbers: expressions, PyTorch's view of them, and sizes that stages compute with."""
