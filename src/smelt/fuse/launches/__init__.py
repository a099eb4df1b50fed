"""How the finished kernels of a program are launched."""
